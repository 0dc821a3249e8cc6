"""Who wants to hear of changes, and telling them: the hub between the catalogue and open streams.

A storm of changes is one message: what a subscriber has not heard yet is a set, not a queue, so it is bounded by the
kinds of changes there are and the URIs it asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
RESOURCE_UPDATED = "notifications/resources/updated"
MAX_LEVELS = 32
"""How far up an updated resource's URI is followed to find what was subscribed to."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a stream asked for.

    Attributes:
        methods: of the notifications.
        uris: the resources whose updates it wants to hear of: (upstream, its own URI) → the URI as the client knows it.
            May grow and shrink while the stream is open.
    """

    methods: frozenset[str]
    uris: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Subscription:
    """One open stream. ``news`` holds (method, URI or "") in the order they happened, each once."""

    wanted: Wanted
    news: dict[tuple[str, str], None] = field(default_factory=dict)
    _awake: asyncio.Event = field(default_factory=asyncio.Event)

    async def next(self) -> list[tuple[str, str]]:
        """Wait for news and take all of it."""
        await self._awake.wait()
        self._awake.clear()
        taken = list(self.news)
        self.news.clear()
        return taken

    def tell(self, method: str, upstream: str = "", uri: str = "") -> None:
        """Note a change, if this stream wants to hear of it."""
        if method not in self.wanted.methods:
            return
        known = self._known(upstream, uri) if method == RESOURCE_UPDATED else ""
        if known is not None:
            self.news[method, known] = None
            self._awake.set()

    def _known(self, upstream: str, uri: str) -> str | None:
        """What the client calls a resource; a part of one that it subscribed to counts (2025-11-25, resources)."""
        whole = uri
        for _ in range(MAX_LEVELS):
            for wanted in (whole, whole + "/"):
                if (known := self.wanted.uris.get((upstream, wanted))) is not None:
                    return known + uri[len(wanted) :]
            whole = whole.rpartition("/")[0]
        return None


class Changes:
    """All open streams by tenant. Used on the event loop only.

    Mutable state: the subscriptions, entered and left by :meth:`subscribed`.
    """

    def __init__(self) -> None:
        self._by_tenant: dict[str, set[Subscription]] = {}

    @contextmanager
    def subscribed(self, tenant: str, wanted: Wanted) -> Iterator[Subscription]:
        """A subscription for as long as the block lasts."""
        subscription = Subscription(wanted)
        self._by_tenant.setdefault(tenant, set()).add(subscription)
        try:
            yield subscription
        finally:
            others = self._by_tenant[tenant]
            others.discard(subscription)
            if not others:
                del self._by_tenant[tenant]

    def listeners(self) -> list[str]:
        """Tenants that have open streams."""
        return list(self._by_tenant)

    def tell(self, tenant: str, method: str, upstream: str = "", uri: str = "") -> None:
        """Tell the streams of one tenant. ``upstream`` and its own ``uri``: which resource was updated."""
        for subscription in self._by_tenant.get(tenant, ()):
            subscription.tell(method, upstream, uri)
