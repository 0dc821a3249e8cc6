"""``gateway keys``: create, list, rotate and revoke API keys. A key's text is printed once and stored nowhere."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal import DEFAULT_CONFIG, CommandFailed, ConfigOption, load_config, out, parse_duration_option

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.tenancy.keyring import KeyRing

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@contextmanager
def _keyring(config: Path) -> Iterator[KeyRing]:
    from gateway.tenancy.keyring import KeyRing
    from gateway.tenancy.pepper import PepperUnavailable
    from gateway.tenancy.store import KeyRefused, KeyStoreUnavailable

    loaded = load_config(config)
    try:
        with KeyRing.open(loaded.config.state, loaded.folder) as ring:
            yield ring
    except (KeyRefused, KeyStoreUnavailable, PepperUnavailable) as error:
        raise CommandFailed(str(error)) from None


@app.command("create")
def create(
    tenant: Annotated[str, typer.Option("--tenant", help="Whose key.")],
    config: ConfigOption = DEFAULT_CONFIG,
    name: Annotated[str, typer.Option("--name", help="A label for lists.")] = "",
    expires: Annotated[str, typer.Option("--expires", help="Lifetime, such as 90d or 12h; never: no end.")] = "90d",
    scopes: Annotated[
        str | None, typer.Option("--scopes", help="Comma-separated; default: all that clients need.")
    ] = None,
) -> None:
    """Create a key. Its text goes to stdout, alone on its line, once."""
    from gateway.tenancy.store import DEFAULT_SCOPES, KeyRefused, parse_scopes

    lifetime = None if expires == "never" else parse_duration_option(expires)
    tenants = load_config(config).config.tenants
    if tenant not in tenants:
        raise CommandFailed(f"unknown tenant {tenant!r}; the config has {', '.join(tenants) or 'none'}")
    try:
        wanted = DEFAULT_SCOPES if scopes is None else parse_scopes(s for s in scopes.split(",") if s)
    except KeyRefused as error:
        raise CommandFailed(str(error)) from None
    with _keyring(config) as ring:
        new = ring.create(tenant, expires_in_s=lifetime, name=name, scopes=wanted)
    typer.echo(new.text)
    typer.echo(f"key {new.key_id} of tenant {tenant}; keep the line above, it is not stored", err=True)


@app.command("list")
def list_keys(
    config: ConfigOption = DEFAULT_CONFIG,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List keys: never their text."""
    with _keyring(config) as ring:
        records = ring.list(tenant)
    now = time.time()
    if as_json:
        rows = [
            {
                "keyId": r.key_id,
                "tenant": r.tenant,
                "name": r.name,
                "state": r.state(now),
                "created": r.created,
                "expires": r.expires,
                "lastUsed": r.last_used,
                "scopes": sorted(r.scopes),
            }
            for r in records
        ]
        typer.echo(json.dumps(rows))
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in ("KEY ID", "TENANT", "NAME", "STATE", "CREATED", "EXPIRES", "LAST USED", "SCOPES"):
        table.add_column(column, overflow="fold")
    for r in records:
        table.add_row(
            r.key_id,
            r.tenant,
            r.name,
            r.state(now),
            _day(r.created),
            _day(r.expires) or "never",
            _day(r.last_used) or "never",
            ",".join(sorted(r.scopes)),
        )
    out().print(table)


@app.command("rotate")
def rotate(
    key_id: Annotated[str, typer.Argument(help="The key to replace.")],
    config: ConfigOption = DEFAULT_CONFIG,
    overlap: Annotated[
        str, typer.Option("--overlap", help="How long the old key goes on working; 0: not at all.")
    ] = "24h",
) -> None:
    """Replace a key by a new one with the same tenant, scopes and length of life."""
    seconds = 0.0 if overlap == "0" else parse_duration_option(overlap)
    with _keyring(config) as ring:
        new = ring.rotate(key_id, overlap_s=seconds)
    typer.echo(new.text)
    typer.echo(f"key {new.key_id} replaces {key_id}, which works for another {overlap}", err=True)


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key to refuse from now on.")], config: ConfigOption = DEFAULT_CONFIG
) -> None:
    """Revoke a key; running gateways follow within a second."""
    with _keyring(config) as ring:
        record = ring.revoke(key_id)
    typer.echo(f"key {record.key_id} of tenant {record.tenant} is revoked", err=True)


def _day(moment: float | None) -> str:
    return "" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")
