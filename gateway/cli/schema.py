"""``gateway schema``: the JSON Schema of gateway.yaml, for editors."""

from __future__ import annotations

import typer


def schema() -> None:
    """Print the JSON Schema of gateway.yaml."""
    from gateway.config.schema import render

    typer.echo(render(), nl=False)
