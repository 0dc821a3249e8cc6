"""One upstream and its one owner task: start, list, serve, and start again when it is lost.

Everything that changes an :class:`Upstream` runs in :meth:`Upstream.run`; calls only read. So a call that fails, is
slow or is cancelled can never disturb the connection or another call.
"""

from __future__ import annotations

import asyncio
import logging
import random as _random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import msgspec

from gateway.config.model import HttpUpstream, StdioUpstream
from gateway.errors import GatewayError
from gateway.upstreams.base import (
    Beside,
    CallResult,
    Connector,
    Era,
    ServerInfo,
    Stage,
    UpstreamFailed,
    UpstreamTimedOut,
)
from gateway.upstreams.following import Following
from gateway.upstreams.http import HttpConnector
from gateway.upstreams.legacy_sse import LegacySseConnector, OldTransport
from gateway.upstreams.lifecycle import (
    STABLE_S,
    TRANSITIONS,
    Failure,
    State,
    UpstreamStatus,
    backoff,
    failure_of,
    restart_delay,
)
from gateway.upstreams.listing import Listing, RawTool, list_tools
from gateway.upstreams.results import parse_call_result
from gateway.upstreams.stdio import StdioConnector

log = logging.getLogger("gateway.upstreams")

DEBOUNCE_S = 0.25
"""Changes that are announced within this time are read at once, seconds."""

PATIENCE_S = 5.0
"""How long a call waits for an upstream that is just starting, seconds."""

Place = Callable[[], AbstractAsyncContextManager[None]]


class Upstream:
    """One MCP server, kept alive.

    Args:
        name: as in ``gateway.yaml``.
        config: how to start or reach it, with its deadlines.
        folder: the folder of ``gateway.yaml``.
        on_change: called after each change of ``status`` or ``tools``, in the event loop; must not block or raise.
        place: what to hold while starting a process, so that not all start at once.
        random: gives a number in [0, 1), for the backoff.
        on_announced: called with method and params (JSON bytes) of each ``list_changed`` and ``resources/updated``
            notification, and with ``{}`` for lists that may have changed while nobody listened; in the event loop, must
            not block or raise. A change of tools is told before they are read again.

    Attributes:
        status: what is known about it; replaced as a whole.
        tools: the last good list; kept while it is down.
    """

    def __init__(
        self,
        name: str,
        config: StdioUpstream | HttpUpstream,
        folder: Path,
        on_change: Callable[[Upstream], None] = lambda _: None,
        *,
        place: Place = nullcontext,
        random: Callable[[], float] = _random.random,
        on_announced: Callable[[Upstream, str, bytes], None] = lambda upstream, method, params: None,
    ) -> None:
        self.name = name
        self.config = config
        self.status = UpstreamStatus("starting", time())
        self.tools: tuple[RawTool, ...] = ()
        self._folder = folder
        self._on_change = on_change
        self._on_announced = on_announced
        self._place = place
        self._random = random
        # written by run() and what it calls, read by calls
        self._connector: Connector | None = None  # the one that serves calls; None while there is none
        self._diagnostics: Connector | None = None  # the last one, also when it failed to start
        self._era: Era | None = None  # the verdict of the last handshake that succeeded
        self._old_transport = False  # it turned out to speak HTTP+SSE
        self._attempts = 0
        self._failures = 0  # in a row
        self._following = Following(name, config.call_timeout)
        # set by anybody, waited for by run() or by calls
        self._stale = asyncio.Event()  # the list should be read again
        self._attempted = asyncio.Event()  # the first start has ended, either way
        self._changed = asyncio.Event()  # the status has changed; replaced each time

    def __repr__(self) -> str:
        return f"Upstream({self.name!r}, {self.status.state})"

    # ------------------------------------------------------------------- calls

    async def call_tool(
        self,
        raw_name: str,
        arguments: bytes,
        timeout_s: float | None = None,
        meta: Mapping[str, Any] | None = None,
        beside: Beside | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> CallResult:
        """Call one tool.

        Args:
            raw_name: the upstream's own name of it.
            arguments: a JSON object as UTF-8 bytes, already validated; sent as it is. ``b""`` means ``{}``.
            timeout_s: seconds, for everything; default: the upstream's ``callTimeout``. See
                :mod:`gateway.upstreams.beside` for what extends it.
            meta: for ``_meta``, such as ``traceparent``.
            beside: who hears what the server says during the call, and is asked what it asks.
            extra: further members of the params: ``inputResponses``, ``requestState``. Values may be raw.

        Raises:
            UpstreamFailed: not reachable, broke off, or no MCP; ``delivered`` says whether it may have run.
            InputRequired: the tool wants input; from a modern server also when there is someone beside the call.
            UpstreamTimedOut, RpcFailed
        """
        params: dict[str, Any] = {**(extra or {}), "name": raw_name, "arguments": msgspec.Raw(arguments or b"{}")}
        if meta:
            params["_meta"] = meta
        return parse_call_result(await self.request("tools/call", params, timeout_s, beside), self.name)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | bytes,
        timeout_s: float | None = None,
        beside: Beside | None = None,
    ) -> bytes:
        """Send any request; JSON bytes of its ``result`` as it is, a wish for input too.

        Arguments and errors as for :meth:`call_tool`.
        """
        loop = asyncio.get_running_loop()
        timeout_s = self.config.call_timeout if timeout_s is None else timeout_s
        deadline = loop.time() + timeout_s
        connector = await self._serving(timeout_s)
        try:
            return await connector.request(method, params, max(deadline - loop.time(), 0.001), beside)
        except UpstreamTimedOut as late:
            # the deadline that somebody set, not what was left of it
            raise UpstreamTimedOut(late.upstream, late.what, timeout_s) from None
        except UpstreamFailed as failure:
            if failure.stage in ("connect", "closed") or failure.status == 401:
                self._stale.set()  # is it still there, does it still let us in? Reading the list will tell
            raise

    async def follow(self, uri: str) -> None:
        """Be told when a resource changes, also over connections that come after this one.

        Nobody is asked to forget one again: what is told of it besides reaches nobody, and when there are too many the
        one that was wanted first is given up.

        Raises:
            RpcFailed: the server refused. UpstreamFailed, UpstreamTimedOut
        """
        await self._following.want(uri, await self._serving(self.config.call_timeout))

    async def first_attempt(self) -> None:
        """Returns when the first start has succeeded or failed."""
        await self._attempted.wait()

    def stderr_tail(self) -> list[str]:
        """The last lines that a stdio server wrote to stderr, also of one that is gone; for the operator."""
        last = self._diagnostics
        return last.stderr_tail() if isinstance(last, StdioConnector) else []

    async def _serving(self, timeout_s: float) -> Connector:
        """The connector, if there is one. Waits only while the upstream is just starting.

        A connector may have ended a moment ago and its owner not have noticed yet; that is waited for too, since the
        owner mostly starts a new one at once.
        """
        if self._connector is not None and not self._connector.closed:
            return self._connector
        try:
            async with asyncio.timeout(min(timeout_s, PATIENCE_S)):
                while self._connector.closed if self._connector is not None else self.status.state == "starting":
                    await self._changed.wait()
        except TimeoutError:
            raise UpstreamFailed(self.name, "handshake", "it is still starting") from None
        if self._connector is not None:
            return self._connector
        status = self.status
        reason = status.reason or "it is not running"
        retry_after_s = None
        if status.state == "down":
            retry_after_s = max(status.retry_at - time(), 0.0) if status.retry_at else 0.0
            reason += f"; next try in {retry_after_s:.0f} s" if retry_after_s >= 1 else "; it is being tried again"
        raise UpstreamFailed(
            self.name, status.stage or "closed", reason, detail=status.detail, retry_after_s=retry_after_s
        )

    # ---------------------------------------------------------------- the owner

    async def run(self) -> None:
        """Keep the upstream alive until cancelled. Awaited once, by its owner."""
        try:
            while True:
                try:
                    delay = await self._attempt()
                except Exception as error:
                    failure = Failure("closed", f"internal error ({type(error).__name__})")
                    if failure.reason != self.status.reason:
                        log.exception("upstream %s: internal error", self.name)
                    delay = self._lost(failure, None)
                await asyncio.sleep(delay)
        finally:
            self._connector = None
            self._become("stopped", stage=None, reason="the gateway has stopped it", detail="", retry_at=None)

    async def _attempt(self) -> float:
        """One connection from its start to its end. Returns how long to wait before the next one, seconds."""
        self._attempts += 1
        self._stale.clear()
        try:
            connector = self._diagnostics = self._make_connector()
        except UpstreamFailed as error:
            return self._lost(failure_of(error, "connect"), None)
        try:
            failure, ready_for_s = await self._live(connector)
            # Before the remains are cleared away, which may take seconds: calls shall know at once.
            return self._lost(failure, ready_for_s)
        except OldTransport:
            self._old_transport = True
            self._attempts -= 1  # the same attempt goes on, over the other transport
            return 0.0
        finally:
            self._connector = None
            await connector.close()

    async def _live(self, connector: Connector) -> tuple[Failure, float | None]:
        """Open, list, serve. Returns why it ended, and for how many seconds it had been ready, None for never.

        Raises:
            OldTransport
        """
        loop = asyncio.get_running_loop()
        ready_at: float | None = None
        during: Stage = "handshake"
        began = loop.time()
        try:
            async with self._place():
                info = await connector.open(self.config.start_timeout)
                self._era = info.era
                during = "list"
                listing = await list_tools(connector, self.name, info, self.config.list_timeout)
            ready_at = loop.time()
            self._ready(connector, info, listing, (ready_at - began) * 1000)
            await self._following.again(connector)
            failure = await self._serve(connector, info)
        except OldTransport:
            raise
        except GatewayError as error:
            failure = failure_of(error, during)
        except Exception as error:
            failure = Failure(during, f"internal error ({type(error).__name__})")
            if failure.reason != self.status.reason:
                log.exception("upstream %s: internal error", self.name)
        return failure, None if ready_at is None else loop.time() - ready_at

    def _lost(self, failure: Failure, ready_for_s: float | None) -> float:
        """Note that a connection has ended, or never began. Returns the pause before the next one, seconds.

        Args:
            ready_for_s: how long it had been ready; None when it never was.
        """
        self._connector = None
        if ready_for_s is None or failure.stage == "handshake":
            self._era = None  # what was learnt about it explains nothing any more
            self._old_transport = False
        if ready_for_s is not None and ready_for_s >= STABLE_S:
            self._failures = 0
        self._failures += 1
        delay = max(restart_delay(self._failures, ready_for_s is not None, self._random), failure.retry_after_s)
        repeated = self.status.state == "down" and self.status.reason == failure.reason
        level = logging.DEBUG if repeated else logging.WARNING
        log.log(level, "upstream %s is down (%s): %s", self.name, failure.stage, failure.reason)
        news = {"stage": failure.stage, "reason": failure.reason, "detail": failure.detail}
        if delay:
            self._become("down", retry_at=time() + delay, **news)
        else:
            self._become("starting", **news)
        return delay

    def _make_connector(self) -> Connector:
        if isinstance(self.config, StdioUpstream):
            return StdioConnector(
                self.name,
                self.config,
                self._folder,
                known_era=self._era,
                on_list_changed=self._stale.set,
                on_announced=self._announced,
            )
        if self.config.type == "sse" or self._old_transport:
            return LegacySseConnector(
                self.name, self.config, on_list_changed=self._stale.set, on_announced=self._announced
            )
        return HttpConnector(
            self.name,
            self.config,
            known_era=self._era,
            on_list_changed=self._stale.set,
            on_announced=self._announced,
        )

    def _announced(self, method: str, params: bytes) -> None:
        try:
            self._on_announced(self, method, params)
        except Exception:
            log.exception("upstream %s: whoever was told of %s has failed", self.name, method)

    async def _serve(self, connector: Connector, info: ServerInfo) -> Failure:
        """Until the connection ends; reads the list again when it may have changed."""
        closed = asyncio.create_task(connector.wait_closed(), name=f"upstream {self.name}: end of connection")
        stale = asyncio.create_task(self._stale.wait(), name=f"upstream {self.name}: change of tools")
        failed_reads = 0
        pause: float | None = None
        try:
            while True:
                await asyncio.wait({closed, stale}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({closed}, timeout=DEBOUNCE_S)
                if closed.done():
                    return failure_of(closed.result(), "closed")
                self._stale.clear()
                if stale.done():
                    stale = asyncio.create_task(self._stale.wait(), name=f"upstream {self.name}: change of tools")
                failure = await self._read_again(connector, info)
                if failure is None:
                    failed_reads, pause = 0, None
                else:
                    failed_reads += 1
                    pause = max(backoff(failed_reads, self._random), failure.retry_after_s or 0.0)
                if isinstance(failure, UpstreamFailed) and failure.status == 401:
                    return failure_of(failure, "list")
        finally:
            closed.cancel()
            stale.cancel()
            await asyncio.wait({closed, stale})

    async def _read_again(self, connector: Connector, info: ServerInfo) -> GatewayError | None:
        """A list that cannot be read leaves the last good one in place, and the state says so."""
        try:
            listing = await list_tools(connector, self.name, info, self.config.list_timeout)
        except GatewayError as error:
            failure = failure_of(error, "list")
            log.warning("upstream %s: its tools could not be read again: %s", self.name, failure.reason)
            self._become("degraded", stage=failure.stage, reason=failure.reason, detail=failure.detail)
            return error
        if listing.tools != self.tools or self.status.state != "ready":
            self._take(listing)
        else:
            self.status = replace(self.status, tools_at=time())
        return None

    # ------------------------------------------------------------------ changes

    def _ready(self, connector: Connector, info: ServerInfo, listing: Listing, connect_ms: float) -> None:
        self._connector = connector
        log.info("upstream %s is ready: %s, %d tools", self.name, info.version, len(listing.tools))
        self._take(
            listing,
            era=info.era,
            version=info.version,
            server=info.name,
            instructions=info.instructions,
            capabilities=info.capabilities,
            connect_ms=connect_ms,
        )

    def _take(self, listing: Listing, **news: Any) -> None:
        self.tools = listing.tools
        self._become(
            "ready",
            stage=None,
            reason="" if listing.tools else "it offers no tools",
            detail="",
            retry_at=None,
            tools=len(listing.tools),
            tools_at=time(),
            dropped=listing.dropped,
            **news,
        )

    def _become(self, state: State, **news: Any) -> None:
        """The one place where the status changes."""
        old = self.status
        if state not in TRANSITIONS[old.state]:
            raise AssertionError(f"{old.state} → {state} is no transition")
        since = old.since if state == old.state else time()
        self.status = replace(old, state=state, since=since, restarts=max(self._attempts - 1, 0), **news)
        if state != "starting":
            self._attempted.set()
        self._changed.set()
        self._changed = asyncio.Event()
        try:
            self._on_change(self)
        except Exception:
            log.exception("upstream %s: whoever was told of its change has failed", self.name)
