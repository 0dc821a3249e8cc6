"""How commands speak: stdout and stderr, one-line errors, exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from gateway.config.loader import Loaded

ConfigOption = Annotated[Path, typer.Option("--config", help="The config file.", show_default=True)]
PortOption = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Overrides server.port; 0: a free one.")
]
AdminPortOption = Annotated[
    int | None, typer.Option("--admin-port", min=0, max=65535, help="Overrides admin.port; 0: a free one.")
]
DEFAULT_CONFIG = Path("gateway.yaml")


class CommandFailed(Exception):
    """What was asked about is wrong: one or more lines for stderr, exit code 1."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))


def run(app: Callable[..., Any]) -> NoReturn:
    """Run the application and exit: 0 fine, 1 the thing asked about is wrong, 2 usage, 130 interrupted.

    Typer itself ends its own cases: usage, interruption, a reader of our output that has gone. This is the last border:
    whatever was not expected becomes one line, unless ``--debug`` was given.
    """
    debug = "--debug" in sys.argv[1:]
    try:
        app(prog_name="gateway")
    except CommandFailed as error:
        typer.echo(str(error), err=True)
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        typer.echo(f"error: {type(error).__name__}: {error} (more with --debug)".replace("\n", " "), err=True)
        sys.exit(1)
    sys.exit(0)


def load_config(path: Path) -> Loaded:
    """The validated config, or CommandFailed with every error as ``file:line:col: path: message``."""
    from gateway.config.loader import load
    from gateway.config.problem import ConfigError

    try:
        return load(path)
    except ConfigError as error:
        raise CommandFailed(*map(str, error.problems)) from None


def people() -> Console:
    """A rich console on stderr; no colour when it is not a terminal."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def out() -> Console:
    """A rich console on stdout, for tables."""
    from rich.console import Console

    return Console(highlight=False)


def parse_duration_option(text: str) -> float:
    """``90d``, ``12h`` → seconds. Raises typer.BadParameter, which is a usage error."""
    from gateway.config.units import parse_duration

    try:
        return float(parse_duration(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
