"""What happens before a request is looked at: noise, delay, silence, death."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import NoReturn

from tests.faulty.faults import size
from tests.faulty.recording import Request

NOISE_BYTES = 200_000
"""On stderr, when ``--discover noisy`` asks for it."""


async def meet(request: Request) -> None:
    """Go through everything that the plan puts before the answer; may never return."""
    plan = request.plan
    if plan.first("die_on", "init", "call") is not None:
        os._exit(plan.switches.exit_code)
    flood = plan.first("stderr_flood")
    if flood is not None:
        _flood_stderr(size(flood.kind))
    if plan.first("discover", "noisy") is not None:
        _flood_stderr(NOISE_BYTES)
    if plan.first("hang") is not None or plan.first("discover", "silent") is not None:
        await for_ever()
    for switch in ("init_delay", "list_delay", "call_delay"):
        delay = plan.first(switch)
        if delay is not None:
            await asyncio.sleep(float(delay.kind))


async def for_ever() -> NoReturn:
    """Until the task is cancelled."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


def _flood_stderr(amount: int) -> None:
    """Blocking, as real servers write: whoever does not read stderr stops us. The second half has no newline."""
    lines = b"noise on stderr, line after line\n" * (amount // 66)
    data = memoryview(lines + b"." * (amount - len(lines)))
    while data:
        data = data[os.write(sys.stderr.fileno(), data) :]
