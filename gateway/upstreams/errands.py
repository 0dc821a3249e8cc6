"""Messages over HTTP that no caller waits for: cancellations, answers to requests of the server, the end of a session.

Each is a task with a deadline of its own; all belong to the connector that started them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from gateway.upstreams.httpwire import Pool, WireFailed

ERRAND_S = 2.0
"""Deadline of one message, and of all that are left at the end, seconds."""


class Errands:
    """The tasks of one connector.

    Args:
        upstream: names the tasks.
        most: at once. A server that asks faster than it reads gets no answer to the rest.
    """

    def __init__(self, upstream: str, most: int = 100) -> None:
        self._name = f"upstream {upstream}: message beside a call"
        self._most = most
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run it in the background. False when there are too many, or the end has come; then it does not run."""
        if self._closed or len(self._tasks) >= self._most:
            work.close()
            return False
        task = asyncio.create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def close(self) -> None:
        """No more are started; those under way may end, but not for long."""
        self._closed = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=ERRAND_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


async def send_off(pool: Pool, head: bytes, body: bytes) -> None:
    """Send one message and see that it was taken. It is a courtesy: failures are nobody's."""
    try:
        async with asyncio.timeout(ERRAND_S):
            answer = await pool.send(head, body)
    except (WireFailed, TimeoutError):
        return
    answer.finished = True
    answer.release()
