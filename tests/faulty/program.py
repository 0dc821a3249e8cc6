"""From the command line to the end of the process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence

from tests.faulty.control import ControlPort
from tests.faulty.http_wire import HttpWire
from tests.faulty.server import Server
from tests.faulty.stdio_wire import StdioWire
from tests.faulty.switches import BadSwitch, Switches, parse, usage

CHILD_LIFE_S = 120
PARENT_CHECK_S = 0.2


def main(arguments: Sequence[str]) -> int:
    """Run until it is over; returns the exit code."""
    if "--help" in arguments:
        print(usage())
        return 0
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        switches = parse(arguments)
        if any(fault.kind == "start" for fault in switches.die_on):
            return switches.exit_code
        children = _fork_children(switches)
        if switches.ignore_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        asyncio.run(_live(switches, children))
    except (BadSwitch, OSError) as error:
        print(f"faulty: {error}", file=sys.stderr)
        return 2
    return 0


async def _live(switches: Switches, children: tuple[int, ...]) -> None:
    server = Server(switches, children)
    wire = None
    if switches.http is not None:
        wire = HttpWire(server)
        _say(f"http 127.0.0.1:{await wire.start(switches.http)}{switches.path}")
    if switches.control is not None:
        _say(f"control 127.0.0.1:{await ControlPort(server, wire).start(switches.control)}")
    background = asyncio.create_task(server.background())
    ends = {background, asyncio.create_task(_parent_gone())}
    if wire is None:
        ends.add(asyncio.create_task(_stdio(server)))
    done, left = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    for task in done:
        task.result()


async def _stdio(server: Server) -> None:
    await StdioWire(server).serve()
    if server.switches.ignore_sigterm:
        await asyncio.Event().wait()


async def _parent_gone() -> None:
    """Returns when the parent has died: its place is taken by another process."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - the system has no event for it
        await asyncio.sleep(PARENT_CHECK_S)


def _fork_children(switches: Switches) -> tuple[int, ...]:
    """Start the children of ``--fork-children``; they keep stdout and stderr open, as children do."""
    children = []
    for number in range(1, switches.fork_children + 1):
        pid = os.fork()
        if pid == 0:
            last = number == switches.fork_children
            if last and switches.own_group:
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN if last and switches.ignore_sigterm else signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            time.sleep(CHILD_LIFE_S)
            os._exit(0)
        children.append(pid)
    return tuple(children)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
