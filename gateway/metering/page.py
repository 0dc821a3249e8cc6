"""The Prometheus page, rendered where it stops nobody; and how long the event loop makes others wait.

12,000 lines take 100 to 180 ms to render: on the event loop every request would wait for that.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.openmetrics import exposition as openmetrics

_KEPT_S = 1.0
_SAMPLE_S, _SAMPLES = 0.25, 20


class MetricsPage:
    """The page of a registry in both formats.

    Attributes:
        before: called on the event loop just before a page is rendered, to set gauges.

    Mutable state, guarded by ``_one_at_a_time``: the pages rendered last, by format, with the time they were made.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.before: list[Callable[[], None]] = []
        self._registry = registry
        self._one_at_a_time = asyncio.Lock()
        self._kept: dict[bool, tuple[float, tuple[bytes, str]]] = {}

    def render(self, accept: str) -> tuple[bytes, str]:
        """Bytes and content type. Blocks for as long as the rendering takes."""
        if _wants_openmetrics(accept):
            return openmetrics.generate_latest(self._registry), openmetrics.CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
        page = exposition.generate_latest(self._registry)
        return page, exposition.CONTENT_TYPE_PLAIN_0_0_4

    async def get(self, accept: str) -> tuple[bytes, str]:
        """Bytes and content type, at most a second old, rendered in a thread by one scrape at a time."""
        wanted = _wants_openmetrics(accept)
        async with self._one_at_a_time:
            made, page = self._kept.get(wanted, (0.0, None))
            if page is None or time.monotonic() - made > _KEPT_S:
                for refresh in self.before:
                    refresh()
                page = await asyncio.to_thread(self.render, accept)
                self._kept[wanted] = (time.monotonic(), page)
            return page


class LoopLag:
    """Measures how late the event loop wakes a sleeper: what every request waits on top of its own work.

    Args:
        publish: gets the largest delay of the last 5 seconds, in seconds, four times a second.
    """

    def __init__(self, publish: Callable[[float], None]) -> None:
        self._publish = publish
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._sample(), name="event-loop-lag")

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        delays: deque[float] = deque(maxlen=_SAMPLES)
        while True:
            due = loop.time() + _SAMPLE_S
            await asyncio.sleep(_SAMPLE_S)
            delays.append(max(0.0, loop.time() - due))
            self._publish(max(delays))


def _wants_openmetrics(accept: str) -> bool:
    return "application/openmetrics-text" in accept
