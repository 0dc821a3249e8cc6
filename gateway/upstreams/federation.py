"""All upstreams of a gateway, started side by side and ended together.

None waits for another: one that cannot start, hangs or dies is that one's business alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType, TracebackType

from gateway.config.model import HttpUpstream, StdioUpstream
from gateway.upstreams.supervisor import Upstream

log = logging.getLogger("gateway.upstreams")

SPAWNS_AT_ONCE = 8
HOLD_S = 3.0


class Places:
    """Limits how many processes start at once: each burns a core for its first second.

    A place is held until the start has ended, but at most ``hold_s``, so that servers that hang cannot keep the others
    out.

    Args:
        places: how many start at once.
        hold_s: seconds.
    """

    def __init__(self, places: int, hold_s: float = HOLD_S) -> None:
        self._free = asyncio.Semaphore(places)
        self._hold_s = hold_s

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        await self._free.acquire()
        timer = asyncio.get_running_loop().call_later(self._hold_s, self._free.release)
        try:
            yield
        finally:
            if timer.when() > asyncio.get_running_loop().time() and not timer.cancelled():
                timer.cancel()
                self._free.release()


class Federation:
    """The upstreams of one configuration.

    Use as ``async with Federation(...) as federation:``; entering begins all starts and does not wait for any, leaving
    ends every connection and every process.

    Args:
        configs: name → configuration. Those that are ``disabled`` are left out.
        folder: the folder of ``gateway.yaml``.
        on_change: called after each change of an upstream's status or tools, in the event loop; must not block or
            raise.
        on_announced: called with an upstream and method and params of what it announces; see
            :class:`~gateway.upstreams.supervisor.Upstream`.

    Attributes:
        upstreams: name → upstream, in the order of the configuration.
    """

    def __init__(
        self,
        configs: Mapping[str, StdioUpstream | HttpUpstream],
        folder: Path,
        on_change: Callable[[Upstream], None] = lambda _: None,
        on_announced: Callable[[Upstream, str, bytes], None] = lambda upstream, method, params: None,
    ) -> None:
        places = Places(SPAWNS_AT_ONCE)
        self.upstreams: Mapping[str, Upstream] = MappingProxyType(
            {
                name: Upstream(
                    name,
                    config,
                    folder,
                    on_change,
                    place=places.place if isinstance(config, StdioUpstream) else nullcontext,
                    on_announced=on_announced,
                )
                for name, config in configs.items()
                if not config.disabled
            }
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Federation:
        self._task = asyncio.create_task(self._run(), name="upstreams")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled() and (fault := self._task.exception()) is not None:
                log.error("the owner of all upstreams has failed", exc_info=fault)

    async def started(self) -> None:
        """Returns when each upstream's first start has succeeded or failed."""
        for upstream in self.upstreams.values():
            await upstream.first_attempt()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name, upstream in self.upstreams.items():
                group.create_task(upstream.run(), name=f"upstream {name}")
