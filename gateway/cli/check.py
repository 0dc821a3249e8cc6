"""``gateway check``: is the config right, and, with ``--connect``, do its upstreams answer?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal import DEFAULT_CONFIG, CommandFailed, ConfigOption, load_config, out, people

if TYPE_CHECKING:
    from gateway.config.loader import Loaded


def check(
    config: ConfigOption = DEFAULT_CONFIG,
    connect: Annotated[bool, typer.Option("--connect", help="Dial each upstream.")] = False,
) -> None:
    """Validate the config: every error as file:line:col: path: message."""
    from gateway.app import kernel_problems

    loaded = load_config(config)
    problems = kernel_problems(loaded.config)
    if problems:
        raise CommandFailed(*(f"{config}: {path}: {message}" for path, message in problems))
    upstreams, tenants = len(loaded.config.upstreams), len(loaded.config.tenants)
    typer.echo(f"{config}: fine: {upstreams} upstreams, {tenants} tenants", err=True)
    if connect:
        asyncio.run(_connect(loaded))


async def _connect(loaded: Loaded) -> None:
    from rich.table import Table

    from gateway.app import describe_upstream
    from gateway.catalog.build import make_tools
    from gateway.facade.accounts import listed
    from gateway.metering.meter import Meter
    from gateway.upstreams.federation import Federation

    meter = Meter.of(loaded.config.metering)
    await meter.start()
    table = Table(box=None, header_style="bold")
    for column in ("UPSTREAM", "STATE", "ERA", "MS", "TOOLS", "TOKENS", "COMMAND OR URL", "REASON"):
        table.add_column(column, overflow="fold", justify="right" if column in ("MS", "TOOLS", "TOKENS") else "left")
    failed = 0
    async with Federation(loaded.config.upstreams, loaded.folder, lambda upstream: None) as federation:
        console = people()
        with console.status("dialling …"):
            await asyncio.gather(*(upstream.first_attempt() for upstream in federation.upstreams.values()))
            await meter.wait_loaded()
        for name, upstream in sorted(federation.upstreams.items()):
            row = describe_upstream(upstream)
            tools = make_tools(name, loaded.config.upstreams[name], [t.definition for t in upstream.tools]).tools
            tokens = await meter.count_definitions([listed(tool) for tool in tools])
            failed += row["state"] != "ready"
            reason = f"{row['stage']}: {row['reason']}" if row["reason"] else ""
            table.add_row(
                name,
                row["state"],
                f"{row['era']} {row['version']}".strip(),
                str(row["connectMs"] or ""),
                str(len(tools)),
                f"{tokens.tokens:,}",
                row["target"],
                reason,
            )
    await meter.stop()
    out().print(table)
    if failed:
        raise CommandFailed(f"{failed} of {len(loaded.config.upstreams)} upstreams did not answer")
