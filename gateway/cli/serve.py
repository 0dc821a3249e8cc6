"""``gateway serve``: run the gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.terminal import DEFAULT_CONFIG, AdminPortOption, ConfigOption, PortOption, load_config


def serve(
    config: ConfigOption = DEFAULT_CONFIG,
    host: Annotated[str | None, typer.Option("--host", help="Overrides server.host.")] = None,
    port: PortOption = None,
    admin_port: AdminPortOption = None,
) -> None:
    """Run the gateway until it is told to stop."""
    from gateway.cli.logs import configure
    from gateway.cli.serving import listening_on, run_gateway

    loaded = listening_on(load_config(config), host=host, port=port, admin_port=admin_port)
    configure()
    run_gateway(loaded)
