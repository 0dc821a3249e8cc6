"""``gateway import``: the servers of another MCP client as upstreams of ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.terminal import CommandFailed


def import_clients_config(
    file: Annotated[
        Path, typer.Argument(help="claude_desktop_config.json, .cursor/mcp.json, .vscode/mcp.json …; - for stdin.")
    ],
) -> None:
    """Turn an mcpServers JSON file into an upstreams block, on stdout."""
    from gateway.config.importer import import_clients
    from gateway.config.problem import ConfigError

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    try:
        imported = import_clients(text, str(file))
    except ConfigError as error:
        raise CommandFailed(*map(str, error.problems)) from None
    typer.echo(imported.yaml, nl=False)
    for note in imported.notes:
        typer.echo(f"note: {note}", err=True)
    if imported.variables:
        typer.echo(f"set these variables before you start the gateway: {', '.join(imported.variables)}", err=True)
