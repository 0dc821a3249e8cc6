"""``gateway init``: a commented gateway.yaml to start from."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.terminal import DEFAULT_CONFIG, CommandFailed, ConfigOption


def init(
    config: ConfigOption = DEFAULT_CONFIG,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented gateway.yaml."""
    from gateway.config.schema import render
    from gateway.config.template import TEMPLATE

    try:
        with config.open("w" if force else "x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise CommandFailed(f"{config} exists already; --force overwrites it") from None
    except OSError as error:
        raise CommandFailed(f"{config}: {error.strerror or error}") from None
    try:
        # beside the config, where its first line points editors to
        config.with_name("gateway.schema.json").write_text(render(), encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"gateway.schema.json: {error.strerror or error}") from None
    typer.echo(f"wrote {config} and gateway.schema.json", err=True)
    typer.echo("next: gateway check, gateway keys create --tenant default, gateway serve", err=True)
