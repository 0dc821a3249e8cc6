"""Holding the stream on which an HTTP server announces changes: opened again for as long as the server serves it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gateway.upstreams.base import UpstreamFailed
from gateway.upstreams.httpreply import Hear, ReplyReader, media_type
from gateway.upstreams.httpwire import Answer, WireFailed
from gateway.upstreams.lifecycle import backoff
from gateway.upstreams.sse import SseParser

OPEN_S = 15.0
"""For the head of the answer, seconds."""
SETTLED_S = 60.0
"""A stream that lasted this long was sound, seconds."""

Open = Callable[[], Awaitable[tuple[Answer, int] | None]]
"""Sends the request for the stream: the answer and the id of the request; None: it cannot be sent just now. Raises
UpstreamFailed."""


async def hold(
    open_stream: Open,
    reader: ReplyReader,
    hear: Hear,
    *,
    missed: Callable[[], None],
    ended: Callable[[], bool],
    again_after: frozenset[int] = frozenset(),
) -> None:
    """Until the server serves no such stream, or the connection has ended.

    Args:
        hear: called with what the server says.
        missed: called when the stream is open again after a break: what was announced meanwhile is lost.
        ended: called after each break; whether the connection has ended.
        again_after: HTTP statuses, besides 5xx and 429, after which it is tried again.
    """
    loop = asyncio.get_running_loop()
    breaks = 0
    while True:
        began = loop.time()
        try:
            serves = await _one(open_stream, reader, hear, missed if breaks else _nothing, again_after)
        except (UpstreamFailed, WireFailed, TimeoutError):
            serves = True
        if ended() or not serves:
            return
        breaks = 1 if loop.time() - began > SETTLED_S else breaks + 1
        await asyncio.sleep(backoff(breaks, random.random))


async def _one(
    open_stream: Open, reader: ReplyReader, hear: Hear, opened: Callable[[], None], again_after: frozenset[int]
) -> bool:
    """Read one stream to its end. False when the server serves none.

    Without a deadline on reading: silence is what it is for. A dead peer is noticed by TCP keep-alive.
    """
    async with asyncio.timeout(OPEN_S):
        sent = await open_stream()
    if sent is None:
        return True
    answer, message_id = sent
    try:
        if answer.status != 200 or media_type(answer) != "text/event-stream":
            return answer.status >= 500 or answer.status == 429 or answer.status in again_after
        opened()
        end = await reader.stream(answer, SseParser(), message_id, hear)
    finally:
        answer.release()
    return end is None or end.error is None


def _nothing() -> None:
    """The first stream has missed nothing."""


class Held:
    """A stream that is held in the background until another takes its place.

    Args:
        name: of the task.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None  # changed by replace() only, which must not run twice at once

    async def replace(
        self, holding: Coroutine[Any, Any, None], acknowledged: asyncio.Future[None], timeout_s: float
    ) -> None:
        """Hold another one. The last one ends when it is acknowledged, or has ended, or after ``timeout_s`` seconds.

        Args:
            holding: :func:`hold`.
            acknowledged: done when the server has said what it will tell.
        """
        last = self._task
        self._task = asyncio.create_task(holding, name=self._name)
        try:
            await asyncio.wait({acknowledged, self._task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if last is not None:
                last.cancel()
                await asyncio.wait({last})

    async def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
