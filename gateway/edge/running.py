"""Requests that run: each has its connection watched, and one of a legacy session can be cancelled by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from gateway.edge.eras import Era
from gateway.edge.exchange import KEEPALIVE_S, Exchange
from gateway.edge.http import Receive, disconnected
from gateway.edge.wire import RequestId

Key = tuple[str, str, RequestId]
"""Tenant, session and request id: only together do they name a call, or one tenant could cancel another's."""


class Running:
    """The calls in flight on one path.

    Mutable state: ``_tasks``, those of legacy sessions by their key.
    """

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[Mapping[str, Any]]] = {}

    def cancel(self, tenant: str, session: str, request_id: RequestId) -> None:
        """Cancel that call, if it is still running."""
        task = self._tasks.get((tenant, session, request_id))
        if task is not None:
            task.cancel()

    async def watched(
        self,
        work: Coroutine[Any, Any, Mapping[str, Any]],
        receive: Receive,
        exchange: Exchange,
        era: Era,
        key: Key | None,
    ) -> Mapping[str, Any] | None:
        """Run a call and watch its connection: a closed one is the cancellation in the modern era, and only there.

        Returns:
            the result, or None when the call was cancelled.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(disconnected(receive))
        if key is not None:
            self._tasks[key] = task
        try:
            while not task.done():
                waiting: set[asyncio.Future[Any]] = {task} if gone.done() else {task, gone}
                timeout = KEEPALIVE_S if exchange.accepts_stream and not gone.done() else None
                done, _ = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if gone in done:
                    exchange.gone = True
                    if era == "modern":
                        task.cancel()
                elif not done:
                    await exchange.keep_alive()
        finally:
            gone.cancel()
            # a client that uses an id twice has only the later call under it
            if key is not None and self._tasks.get(key) is task:
                del self._tasks[key]
            if not task.done():
                # the server itself is stopping: the call must not outlive its request
                task.cancel()
                await asyncio.wait({task})
        return None if task.cancelled() else task.result()
