"""The command line, one file a command.

``main`` is the console script. stdout carries what can be piped (a key, JSON, YAML), stderr what is for people. Exit
codes: 0 fine, 1 the thing asked about is wrong, 2 usage. Errors are one line; a traceback only with ``--debug``.
Heavy modules are imported inside the commands, so that ``gateway --help`` stays quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli import call, check, demo, doctor, importer, init, keys, schema, serve, usage
from gateway.cli.terminal import run

app = typer.Typer(
    name="gateway",
    help="One MCP endpoint with two tools, in front of all your MCP servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("serve")(serve.serve)
app.command("check")(check.check)
app.command("init")(init.init)
app.command("import")(importer.import_clients_config)
app.add_typer(keys.app, name="keys", help="Create, list, rotate and revoke API keys.")
app.command("call")(call.call)
app.command("usage")(usage.usage)
app.command("doctor")(doctor.doctor)
app.command("schema")(schema.schema)
app.command("demo")(demo.demo)


def _version(asked: bool) -> None:
    if asked:
        from gateway import __version__

        typer.echo(f"codemode-gateway {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command; ``--debug`` is read by :func:`gateway.cli.terminal.run`."""


def main() -> None:
    """Entry point of the console scripts ``gateway`` and ``codemode-gateway``."""
    run(app)
