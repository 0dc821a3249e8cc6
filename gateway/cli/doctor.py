"""``gateway doctor``: which kernels work on this host, and at what isolation level."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from gateway.cli.terminal import CommandFailed, out


def doctor(as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False) -> None:
    """Which kernels work on this host, what isolates them, and which manifest fields they enforce."""
    from gateway.kernels.registry import describe

    engines = describe()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(engine) for engine in engines]))
    else:
        from rich.table import Table

        table = Table(box=None, header_style="bold")
        for column in ("ENGINE", "LANGUAGE", "STATE", "ISOLATION", "REFUSES"):
            table.add_column(column, overflow="fold")
        for engine in engines:
            refused = ", ".join(field for field, how in engine.enforcement.items() if how == "refused")
            state = "works" if engine.available else f"missing: {engine.reason}"
            table.add_row(engine.engine, engine.language, state, engine.isolation, refused)
        out().print(table)
    if not any(engine.available for engine in engines):
        raise CommandFailed("no kernel works on this host")
