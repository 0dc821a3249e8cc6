"""The resources of one upstream whose updates somebody wants, over all of its connections, one after another."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from gateway.errors import GatewayError
from gateway.upstreams.base import Connector

log = logging.getLogger("gateway.upstreams")

MAX_FOLLOWED = 1_000
"""Resources of one upstream whose updates are wanted at once."""


class Following:
    """Keeps what is wanted, and tells connectors.

    Args:
        upstream: its name.
        timeout_s: how long the server may take to note it, seconds.

    Mutable state: ``_wanted``, the last wanted last. A connector must not be told twice at once, so ``_telling`` is
    held meanwhile.
    """

    def __init__(self, upstream: str, timeout_s: float) -> None:
        self._upstream = upstream
        self._timeout_s = timeout_s
        self._telling = asyncio.Lock()
        self._wanted: OrderedDict[str, None] = OrderedDict()

    async def want(self, uri: str, connector: Connector) -> None:
        """One resource more, told to the connector that there is.

        Raises:
            RpcFailed: the server refused. UpstreamFailed, UpstreamTimedOut
        """
        async with self._telling:
            if uri in self._wanted:
                self._wanted.move_to_end(uri)
                return
            self._wanted[uri] = None
            if len(self._wanted) > MAX_FOLLOWED:
                self._wanted.popitem(last=False)
            try:
                refused = await connector.follow(tuple(self._wanted), self._timeout_s)
            except (GatewayError, asyncio.CancelledError):
                del self._wanted[uri]
                raise
            for other in refused:
                self._wanted.pop(other, None)
        if uri in refused:
            raise refused[uri]

    async def again(self, connector: Connector) -> None:
        """Over a new connection, everything that was wanted over the last one. A failure is logged."""
        async with self._telling:
            if not self._wanted:
                return
            try:
                refused = await connector.follow(tuple(self._wanted), self._timeout_s)
            except GatewayError as error:
                log.warning("upstream %s: its resources could not be followed again: %s", self._upstream, error)
                return
            for uri in refused:
                del self._wanted[uri]
