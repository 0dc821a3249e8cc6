"""Running a gateway in the foreground: sockets, both HTTP servers, signals, and what the operator sees meanwhile.

Shared by ``gateway serve`` and ``gateway demo``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from gateway.cli.terminal import CommandFailed, people

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config.loader import Loaded

KEEP_ALIVE_S = 75
"""Longer than the idle time of any client's pool, so that no pooled connection is closed under a request."""
GRACE_S = 5
"""How long open requests may go on after the first signal."""
NAMED = 6
"""How many upstreams the waiting line names."""

M_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES = 1024 * 1024

Speak = Callable[["Gateway"], None]
"""Prints what a command has to say of its gateway."""


def _silent(_: Gateway) -> None:
    pass


def listening_on(
    loaded: Loaded, *, host: str | None = None, port: int | None = None, admin_port: int | None = None
) -> Loaded:
    """The config with the listeners of the command line; None leaves what the file says."""
    server = {k: v for k, v in (("host", host), ("port", port)) if v is not None}
    admin = {} if admin_port is None else {"port": admin_port}
    config = loaded.config.model_copy(
        update={
            "server": loaded.config.server.model_copy(update=server),
            "admin": loaded.config.admin.model_copy(update=admin),
        }
    )
    return dataclasses.replace(loaded, config=config)


def run_gateway(loaded: Loaded, opened: Speak = _silent, started: Speak = _silent) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly.

    Args:
        loaded: the config.
        opened: called once both listeners are open.
        started: called after the start-up summary, when every upstream has been tried once.

    Raises:
        CommandFailed: a port that is taken, a store that cannot be used, a kernel that does not start.
    """
    import uvloop

    from gateway.app import kernel_problems

    problems = kernel_problems(loaded.config)
    if problems:
        raise CommandFailed(*(f"{loaded.path}: {path}: {message}" for path, message in problems))
    _give_memory_back()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(loaded, opened, started))


def _give_memory_back() -> None:
    """Make large blocks return to the system when they are freed.

    By default glibc raises its own threshold with each large block, up to 32 MB, and keeps freed ones in the arena of
    every thread: after 48 scripts with large values or errors a process stayed at 245 MB, with a fixed threshold at 73.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, another system
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


async def _serve(loaded: Loaded, opened: Speak, started: Speak) -> None:
    import uvicorn

    from gateway.app import Gateway, http_protocol
    from gateway.errors import GatewayError
    from gateway.metering.ledger import LedgerUnavailable
    from gateway.tenancy.pepper import PepperUnavailable
    from gateway.tenancy.store import KeyStoreUnavailable

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # two servers share one process: the signals are ours

    def server(app: Any) -> Server:
        return Server(
            uvicorn.Config(
                app,
                interface="asgi3",
                loop="none",
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )

    config = loaded.config
    protocol = http_protocol(config.server)
    with contextlib.ExitStack() as sockets:
        tenant_socket = sockets.enter_context(_listen(config.server.host, config.server.port))
        admin_socket = sockets.enter_context(_listen(config.admin.host, config.admin.port))
        gateway = Gateway(loaded)
        gateway.port = tenant_socket.getsockname()[1]
        gateway.admin_port = admin_socket.getsockname()[1]
        servers = (server(gateway.tenant_app), server(gateway.admin_app))
        stop = _stop_on_signal(servers)
        try:
            async with gateway.running(), asyncio.TaskGroup() as group:
                for one, sock in zip(servers, (tenant_socket, admin_socket), strict=True):
                    group.create_task(one.serve(sockets=[sock]))
                announcing = group.create_task(_announce(gateway, opened, started))
                await stop.wait()
                announcing.cancel()
                gateway.stopping.set()
                typer.echo("stopping", err=True)  # servers that ignore the end of their input take seconds
                for one in servers:
                    one.should_exit = True
        except* (LedgerUnavailable, KeyStoreUnavailable, PepperUnavailable, GatewayError) as group_error:
            raise CommandFailed(*(str(error) for error in _leaves(group_error))) from None


def _stop_on_signal(servers: Sequence[Any]) -> asyncio.Event:
    """An event set by the first SIGTERM or SIGINT; the second one ends open requests at once."""
    stop = asyncio.Event()

    def stopping() -> None:
        if stop.is_set():
            for one in servers:
                one.force_exit = True
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping)
    return stop


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(2048)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise CommandFailed(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return sock


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


# ---- what the operator sees -----------------------------------------------------------------------------------------


async def _announce(gateway: Gateway, opened: Speak, started: Speak) -> None:
    typer.echo(f"tenants  {tenant_url(gateway)}\nadmin    {admin_url(gateway)}", err=True)
    opened(gateway)
    await _show_starting(gateway)
    await gateway.catalogue.settled()
    show_summary(gateway)
    started(gateway)


def tenant_url(gateway: Gateway) -> str:
    """Where tenants connect."""
    server = gateway.config.server
    return f"{server.public_url or f'http://{_literal(server.host)}:{gateway.port}'}/mcp"


def admin_url(gateway: Gateway) -> str:
    """Where the operator looks."""
    return f"http://{_literal(gateway.config.admin.host)}:{gateway.admin_port}/"


def _literal(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _show_starting(gateway: Gateway) -> None:
    """What is still being waited for, on a terminal; elsewhere a line for each upstream, unless the log has it."""
    waiting = {
        asyncio.create_task(upstream.first_attempt(), name=name): name
        for name, upstream in gateway.federation.upstreams.items()
    }
    console = people()
    logged = logging.getLogger("gateway.upstreams").isEnabledFor(logging.INFO)
    try:
        with console.status("") if console.is_terminal else contextlib.nullcontext() as status:
            pending = set(waiting)
            while pending:
                if status is not None:
                    status.update(_waiting_line(len(waiting), sorted(waiting[task] for task in pending)))
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if status is None and not logged:
                    for name in sorted(waiting[task] for task in done):
                        typer.echo(f"  {_state_line(gateway, name)}", err=True)
    finally:
        for task in waiting:
            task.cancel()


def _waiting_line(total: int, pending: Sequence[str]) -> str:
    names = ", ".join(pending[:NAMED]) + (", …" if len(pending) > NAMED else "")
    return f"{total - len(pending)} of {total} upstreams started; waiting for {names}"


def _state_line(gateway: Gateway, name: str) -> str:
    from gateway.app import describe_upstream

    row = describe_upstream(gateway.federation.upstreams[name])
    if row["state"] == "ready":
        return f"{name}: ready, {row['tools']} tools, MCP {row['version']}, {row['connectMs']} ms"
    return f"{name}: {row['state']} ({row['stage']}): {row['reason']}"


def show_summary(gateway: Gateway) -> None:
    """The start-up summary: upstreams with state and tools, tenants, both URLs. Never a secret."""
    from rich.table import Table

    console = people()
    rows = gateway.describe_upstreams()
    upstreams = Table("UPSTREAM", "STATE", box=None, header_style="bold")
    upstreams.add_column("TOOLS", justify="right")
    upstreams.add_column("MCP")
    upstreams.add_column("STARTED IN", justify="right")
    if any(row["reason"] for row in rows):
        upstreams.add_column("REASON")
    for row in rows:
        took = "" if row["connectMs"] is None else f"{row['connectMs'] / 1000:.1f} s"
        reason = [f"{row['stage']}: {row['reason']}"] if row["reason"] else []
        upstreams.add_row(row["name"], row["state"], str(row["tools"]), row["version"], took, *reason)
    tenants = Table("TENANT", "MODE", box=None, header_style="bold")
    for title in ("TOOLS", "LIST IN CODE MODE", "IN DIRECT MODE"):
        tenants.add_column(title, justify="right")
    for tenant in gateway.describe_tenants():
        tokens = tenant["toolsListTokens"].values()  # code, direct; zeros while nothing has been counted
        figures = [f"{count:,} tokens" if count else "" for count in tokens]
        tenants.add_row(tenant["name"], tenant["mode"], str(tenant["tools"]), *figures)
    for table in (upstreams, tenants):
        console.print()
        console.print(table)
    typer.echo(f"\nready: {tenant_url(gateway)} for tenants, {admin_url(gateway)} for operators", err=True)
