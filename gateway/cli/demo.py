"""``gateway demo``: the example with real MCP servers, a key for each tenant, and what to do with it.

Demo keys are kept in ``.gateway/demo-keys.json`` beside the config, readable by its owner only, so that a client that
was set up once goes on working after a restart. That is a convenience of the demo: real keys are never stored.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal import DEFAULT_CONFIG, AdminPortOption, CommandFailed, PortOption, load_config

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config.loader import Loaded

KEY_NAME = "demo"
STATE = ".gateway"
FIRST_START_S = 180.0
PACKAGE = Path(__file__).parent.parent
WELCOME = "# Demo files\n\nThe `files` server of the demo reads and writes this folder.\n"

ATTEMPT = ("time__get_current_time", "await time__get_current_time(timezone='Asia/Tokyo')")
"""A tool of the example, and a script that shows it."""


def demo(
    config: Annotated[Path | None, typer.Option("--config", help="Another config than the bundled example.")] = None,
    port: PortOption = None,
    admin_port: AdminPortOption = None,
) -> None:
    """Serve the example: real MCP servers, a key for each tenant, ready to paste."""
    import logging

    from gateway.cli.logs import configure
    from gateway.cli.serving import listening_on, run_gateway

    loaded = _patient(_bundled() if config is None else _given(config))
    loaded = listening_on(loaded, port=port, admin_port=admin_port)
    configure(logging.WARNING)
    keys = _demo_keys(loaded)
    run_gateway(
        loaded,
        opened=lambda _: _show_keys(keys),
        started=lambda gateway: _show_next_steps(gateway, keys, config),
    )


# ---- the config -----------------------------------------------------------------------------------------------------


def _given(config: Path) -> Loaded:
    _keep_memory_in(config.absolute().parent)
    return load_config(config)


def _bundled() -> Loaded:
    """The example that travels in the wheel, or in a checkout the one at its root; it runs in the current folder."""
    folder = Path.cwd()
    _keep_memory_in(folder)
    if "DEMO_FILES" not in os.environ:
        files = _state_folder(folder) / "files"
        try:
            files.mkdir(exist_ok=True)
            (files / "README.md").write_text(WELCOME, encoding="utf-8")
        except OSError as error:
            raise CommandFailed(f"{files}: {error.strerror or error}") from None
        os.environ["DEMO_FILES"] = str(files)
    bundled = PACKAGE / "example.yaml"
    loaded = load_config(bundled if bundled.exists() else PACKAGE.parent / "gateway.yaml")
    return dataclasses.replace(loaded, folder=folder)


def _patient(loaded: Loaded) -> Loaded:
    """The same with time for a first start, which downloads its servers."""
    upstreams = {
        name: upstream.model_copy(update={"start_timeout": max(upstream.start_timeout, FIRST_START_S)})
        for name, upstream in loaded.config.upstreams.items()
    }
    return dataclasses.replace(loaded, config=loaded.config.model_copy(update={"upstreams": upstreams}))


def _keep_memory_in(folder: Path) -> None:
    os.environ.setdefault("DEMO_MEMORY_FILE", str(folder / STATE / "memory.jsonl"))


def _state_folder(folder: Path) -> Path:
    path = folder / STATE
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror or error}") from None
    return path


# ---- keys -----------------------------------------------------------------------------------------------------------


def _demo_keys(loaded: Loaded) -> dict[str, str]:
    """The kept key of each tenant where it still works, else a new one."""
    from gateway.tenancy.authenticator import Authenticator, AuthFailed
    from gateway.tenancy.keyring import KeyRing
    from gateway.tenancy.pepper import PepperUnavailable
    from gateway.tenancy.store import KeyStoreUnavailable

    path = _state_folder(loaded.folder) / "demo-keys.json"
    kept = _read(path)
    keys: dict[str, str] = {}
    try:
        with KeyRing.open(loaded.config.state, loaded.folder) as ring:
            checker = Authenticator(ring.store, ring.pepper(), loaded.config.tenants)
            asyncio.run(checker.refresh())
            for tenant in loaded.config.tenants:
                try:
                    works = checker.authenticate_key(kept.get(tenant, "")).tenant == tenant
                except AuthFailed:
                    works = False
                if works:
                    keys[tenant] = kept[tenant]
                else:
                    keys[tenant] = ring.create(tenant, expires_in_s=None, name=KEY_NAME).text
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(keys, file)
    except (KeyStoreUnavailable, PepperUnavailable) as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror or error}") from None
    return keys


def _read(path: Path) -> dict[str, str]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in kept.items() if isinstance(v, str)} if isinstance(kept, dict) else {}


# ---- what the visitor sees ------------------------------------------------------------------------------------------


def _show_keys(keys: dict[str, str]) -> None:
    typer.echo("\nKeys, for the header `Authorization: Bearer KEY`:")
    width = max(map(len, keys), default=0)
    for tenant, key in keys.items():
        typer.echo(f"  {tenant:{width}}  {key}")
    typer.echo("\nThe first start downloads the servers, which can take minutes. Ctrl-C stops everything.")


def _show_next_steps(gateway: Gateway, keys: dict[str, str], config: Path | None) -> None:
    from gateway.cli.call import DEFAULT_URL
    from gateway.cli.serving import tenant_url

    if not keys:
        return
    name, key = next(iter(keys.items()))
    visible = {tool.name for tool in gateway.view_of(gateway.tenants[name]).visible}
    script = ATTEMPT[1] if ATTEMPT[0] in visible else "6 * 7"
    program, url = _program(), tenant_url(gateway)
    lines = [
        "",
        "Try it in another terminal:",
        f"  export GATEWAY_KEY={key}",
        *([] if url == DEFAULT_URL else [f"  export GATEWAY_URL={url}"]),
        f"  {program} call docs_search --query 'what time is it'",
        f'  {program} call execute_code --code "{script}"',
    ]
    if config is not None:
        # the bundled example keeps its ledger in the current folder, where no config names it
        where = "" if config == DEFAULT_CONFIG else f" --config {shlex.quote(str(config))}"
        lines.append(f"  {program} usage{where}")
    lines += [
        "",
        f"Connect an agent as tenant {name}, for instance Claude Code:",
        f"  claude mcp add --transport http gateway {url} \\",
        f'    --header "Authorization: Bearer {key}"',
    ]
    typer.echo("\n".join(lines))


def _program() -> str:
    """How this program is called from the current folder: ``make run`` has a PATH that the next terminal has not."""
    program = Path(sys.argv[0]).absolute()
    if program.name == "gateway" and program.is_relative_to(Path.cwd()):
        return shlex.quote(str(program.relative_to(Path.cwd())))
    return "gateway"
