"""Streams that stay open to announce changes: ``subscriptions/listen`` and the GET stream of the older era.

Both bring the same news; only the wrapping differs: a 2026-07-28 message carries the id of its subscription, an older
one carries nothing. Between news a comment line every 15 seconds tells proxies that the stream lives.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gateway.edge.eras import META_SUBSCRIPTION
from gateway.edge.exchange import KEEPALIVE_S, Exchange
from gateway.edge.http import Receive, disconnected
from gateway.edge.wire import INVALID_PARAMS, RequestId, WireError, notification_bytes
from gateway.errors import ErrorClass, GatewayError
from gateway.facade.base import Caller, Facade
from gateway.facade.changes import (
    PROMPTS_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
    Subscription,
)

FLAGS = {
    "toolsListChanged": TOOLS_CHANGED,
    "promptsListChanged": PROMPTS_CHANGED,
    "resourcesListChanged": RESOURCES_CHANGED,
}
MAX_STREAMS = 200
"""Streams that one tenant may have open on one path."""
MAX_URIS = 1_000
MAX_URI_CHARS = 64 * 1024
"""All URIs of one stream together."""
LOOK_S = 1.0
"""How often a stream looks whether its key still holds, seconds: a revocation ends it."""


class OpenStreams:
    """Counts streams by tenant: an open one is the dearest thing a client can hold for nothing."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def one_of(self, tenant: str) -> Iterator[None]:
        """Hold one. Raises GatewayError(RATE_LIMITED)."""
        if self._open[tenant] >= MAX_STREAMS:
            raise GatewayError(
                ErrorClass.RATE_LIMITED, f"{MAX_STREAMS} streams of this tenant are open", retry_after_s=60
            )
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]


async def listen(
    facade: Facade,
    caller: Caller,
    request_id: RequestId,
    params: Mapping[str, Any],
    receive: Receive,
    exchange: Exchange,
    stopping: asyncio.Event,
) -> bool:
    """``subscriptions/listen`` (2026-07-28): acknowledge the part that is honoured, then tell of it until the end.

    Returns:
        whether it is we who end it, since the gateway stops or the key holds no more; then the client is owed a result.

    Raises:
        WireError: -32602 for a malformed filter.
    """
    asked = params.get("notifications", {})
    if not isinstance(asked, dict):
        raise WireError(INVALID_PARAMS, "Invalid params: notifications must be an object")
    possible = facade.announces(caller)
    honoured: dict[str, Any] = {
        flag: True for flag, method in FLAGS.items() if asked.get(flag) is True and method in possible
    }
    methods = {FLAGS[flag] for flag in honoured}
    uris = _uris(asked.get("resourceSubscriptions")) if RESOURCE_UPDATED in possible else []
    if uris:
        methods.add(RESOURCE_UPDATED)
    tag = {"_meta": {META_SUBSCRIPTION: request_id}}
    async with facade.subscribed(caller, frozenset(methods), uris) as subscription:
        if uris:
            served = set(subscription.wanted.uris.values())
            honoured["resourceSubscriptions"] = [uri for uri in uris if uri in served]
        acknowledged = {**tag, "notifications": honoured}
        await exchange.say(notification_bytes("notifications/subscriptions/acknowledged", acknowledged))
        return await _tell(caller, subscription, tag, receive, exchange, stopping)


async def watch(facade: Facade, caller: Caller, receive: Receive, exchange: Exchange, stopping: asyncio.Event) -> bool:
    """The GET stream of a session (2025-03-26 … 2025-11-25): all that this facade announces. Returns as above."""
    async with facade.subscribed(caller, facade.announces(caller)) as subscription:
        await exchange.begin_stream()
        await exchange.keep_alive()
        return await _tell(caller, subscription, {}, receive, exchange, stopping)


async def _tell(
    caller: Caller,
    subscription: Subscription,
    tag: Mapping[str, Any],
    receive: Receive,
    exchange: Exchange,
    stopping: asyncio.Event,
) -> bool:
    """Send news until the client leaves (False), or the gateway stops or the key holds no more (True)."""
    loop = asyncio.get_running_loop()
    gone = asyncio.ensure_future(disconnected(receive))
    stop = asyncio.ensure_future(stopping.wait())
    said = loop.time()
    news = asyncio.ensure_future(subscription.next())
    try:
        while True:
            done, _ = await asyncio.wait({gone, stop, news}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if gone in done:
                return False
            if stop in done or not caller.live():
                return True
            if news in done:
                for method, uri in news.result():
                    await exchange.say(notification_bytes(method, {**tag, "uri": uri} if uri else tag))
                news = asyncio.ensure_future(subscription.next())
                said = loop.time()
            elif loop.time() - said >= KEEPALIVE_S:
                await exchange.keep_alive()
                said = loop.time()
    finally:
        for waiting in (gone, stop, news):
            waiting.cancel()


def _uris(asked: Any) -> list[str]:
    if asked is None:
        return []
    if (
        not isinstance(asked, list)
        or len(asked) > MAX_URIS
        or not all(isinstance(uri, str) for uri in asked)
        or sum(map(len, asked)) > MAX_URI_CHARS
    ):
        raise WireError(
            INVALID_PARAMS, f"Invalid params: resourceSubscriptions must be a list of up to {MAX_URIS} URIs"
        )
    return asked
