"""The streamable HTTP connector, both eras: every request is a POST of its own, answered by JSON or by an event stream.

Theory of operation: there is no connection to lose, so one failed request says nothing about the others. The connector
ends (``wait_closed``) only when the server cannot be connected to, has changed its era, or does not let us renew a
session, *and* nothing else is in flight; what is in flight is never torn down for the failure of a neighbour.

Cancelling: in the modern era closing the response is the cancellation; a legacy server is told by a notification. A
``tools/call`` is never sent twice, with one exception that the specification gives: 404 to a legacy session id means
that it was not executed, so the session is renewed (once, however many calls found out) and the call repeated once.

Not done: ``Mcp-Param-*`` headers for ``x-mcp-header`` (no real server of 119 uses them), the HTTP+SSE transport of
2024-11-05, HTTP proxies.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.config.model import HttpUpstream
from gateway.upstreams import era, rpc
from gateway.upstreams.base import MODERN_VERSION, Era, ServerInfo, Stage, UpstreamFailed, UpstreamTimedOut
from gateway.upstreams.httphead import BadTarget, Target, parse_target, request_head
from gateway.upstreams.httpreply import Reply, ReplyReader, media_type
from gateway.upstreams.httpwire import Answer, Pool, WireFailed
from gateway.upstreams.lifecycle import backoff
from gateway.upstreams.redact import Redactor
from gateway.upstreams.sse import SseParser

_SIDE_S = 2.0  # deadline of messages beside the call: cancellations, answers to server requests, DELETE
_ABOUT_THE_REQUEST = (-32601, -32602)  # a 404 with such an error does not mean that the session is gone
_MOST_BESIDE = 100  # at once; a server that asks faster than it reads gets no answer to the rest
_RESUMES = 5  # how often one legacy event stream that broke off is taken up again
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}  # what Mcp-Name mirrors
_LISTEN_S = 15.0  # for the head of an announcement stream
_SETTLED_S = 60.0  # an announcement stream that lasted this long was sound


@dataclass(frozen=True, slots=True)
class _Session:
    """A legacy session. ``id`` is "" when the server gave none."""

    id: str
    version: str


class HttpConnector:
    """One server that is reached over HTTP.

    Args:
        name: of the upstream, for errors.
        config: URL and headers.
        known_era: the verdict of an earlier connection: ``legacy`` spares the probe.
        on_list_changed: called when the server says that its tools have changed, or may have while nobody listened.

    Raises:
        UpstreamFailed: the URL or a header cannot be used.
    """

    def __init__(
        self,
        name: str,
        config: HttpUpstream,
        *,
        known_era: Era | None = None,
        on_list_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._known_era = known_era
        self._on_list_changed = on_list_changed
        try:
            self._target: Target = parse_target(config.url, config.headers)
        except BadTarget as error:
            raise UpstreamFailed(name, "connect", str(error)) from None
        self._redactor = Redactor(self._target.secrets)
        self._reader = ReplyReader(name, self._redactor, self._asked, on_list_changed)
        self._pool = Pool(self._target)
        self._era: Era = "legacy"
        self._session: _Session | None = None  # legacy only; replaced by _initialize
        self._renewing = asyncio.Lock()
        self._last_id = 0
        self._in_flight = 0
        self._unusable: UpstreamFailed | None = None  # why the connector will end when nothing is in flight any more
        self._closed: asyncio.Future[UpstreamFailed] = asyncio.get_running_loop().create_future()
        self._watch: asyncio.Task[None] | None = None
        self._side: set[asyncio.Task[None]] = set()  # messages beside calls; awaited by close

    # -------------------------------------------------------------- Connector

    async def open(self, timeout_s: float) -> ServerInfo:
        """See :class:`gateway.upstreams.base.Connector`."""
        try:
            async with asyncio.timeout(timeout_s):
                info = await self._handshake()
        except TimeoutError:
            raise UpstreamTimedOut(self._name, "the handshake", timeout_s) from None
        self._era = info.era
        if era.announces_list_changes(info):
            self._watch = asyncio.create_task(self._watch_list(), name=f"upstream {self._name}: announcements")
        return info

    async def request(self, method: str, params: Mapping[str, Any] | bytes, timeout_s: float) -> bytes:
        """See :class:`gateway.upstreams.base.Connector`."""
        if self._closed.done():
            why = self._closed.result()
            raise UpstreamFailed(self._name, why.stage, why.reason, detail=why.detail)
        self._in_flight += 1
        try:
            async with asyncio.timeout(timeout_s):
                if self._era == "modern":
                    reply = await self._exchange(method, rpc.modern_params(params))
                else:
                    reply = await self._legacy_exchange(method, rpc.legacy_params(params))
        except TimeoutError:
            raise UpstreamTimedOut(self._name, method, timeout_s) from None
        finally:
            self._in_flight -= 1
            self._end_if_unusable()
        return self._reader.result(reply, method)

    @property
    def closed(self) -> bool:
        """See :class:`gateway.upstreams.base.Connector`."""
        return self._closed.done()

    async def wait_closed(self) -> UpstreamFailed:
        """See :class:`gateway.upstreams.base.Connector`."""
        return await asyncio.shield(self._closed)

    async def close(self) -> None:
        """See :class:`gateway.upstreams.base.Connector`. Takes some seconds at the very most."""
        if not self._closed.done():
            self._closed.set_result(UpstreamFailed(self._name, "closed", "the gateway closed the connection"))
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        if self._side:
            await asyncio.wait(self._side, timeout=_SIDE_S)
        session, self._session = self._session, None
        if session is not None and session.id:
            head = request_head(self._target, "DELETE", _session_headers(session), None)
            await self._side_message(head, b"")
        await self._pool.close()

    # -------------------------------------------------------------- handshake

    async def _handshake(self) -> ServerInfo:
        if self._known_era != "legacy":
            info = await self._probe()
            if info is not None:
                return info
        return await self._initialize(may_probe=True)

    async def _probe(self, *, again: bool = True) -> ServerInfo | None:
        """The server's information when it is modern, None when it is legacy."""
        self._era = "modern"
        method = "server/discover"
        reply = await self._exchange(method, rpc.modern_params({}))
        verdict = era.judge_probe(reply.response, reply.status)
        if verdict.kind == "again" and again:
            return await self._probe(again=False)
        if verdict.kind == "none":
            raise self._reader.refusal(reply, method)
        if verdict.kind == "incompatible":
            raise UpstreamFailed(self._name, "handshake", verdict.reason)
        if verdict.kind == "modern":
            return verdict.info or ServerInfo("modern", MODERN_VERSION)
        return None

    async def _initialize(self, *, may_probe: bool = False) -> ServerInfo:
        """The legacy handshake; sets the session."""
        self._era = "legacy"
        self._session = None
        method = "initialize"
        reply = await self._exchange(method, rpc.initialize_params())
        error = reply.response.error if reply.response is not None else None
        outdated = self._known_era == "legacy" and 400 <= reply.status < 500
        if may_probe and (outdated or (error is not None and era.was_modern_after_all(error))):
            info = await self._probe()  # the server was upgraded, or the probe was only late
            if info is not None:
                return info
        if reply.response is None or reply.status != 200:
            raise self._reader.refusal(reply, method)
        if error is not None:
            text = self._redactor.one_line(error.message, 200)
            raise UpstreamFailed(self._name, "handshake", f"it refused initialize with error {error.code}", detail=text)
        told = era.info_from_initialize(reply.response.result or b"")
        if told is None:
            raise UpstreamFailed(
                self._name, "handshake", "it answered initialize without a protocol version that we speak"
            )
        session = _Session(reply.session_id, told.version)
        body = rpc.notification("notifications/initialized")
        answer = await self._send(request_head(self._target, "POST", _session_headers(session), len(body)), body)
        answer.finished = True
        answer.release()
        if answer.status >= 300:
            raise self._reader.refusal(Reply(answer.status, None), "notifications/initialized")
        self._session = session
        return told

    async def _renew(self, lost: _Session) -> None:
        """A new session in place of ``lost``; callers that find it lost at the same time share one handshake."""
        async with self._renewing:
            if self._session is not lost and self._session is not None:
                return
            try:
                await self._initialize()
            except UpstreamFailed as failure:
                self._unusable = failure
                raise

    # --------------------------------------------------------------- exchanges

    async def _legacy_exchange(self, method: str, params: Mapping[str, Any]) -> Reply:
        session = self._session
        if session is None:  # a renewal has failed, or is under way
            await self._renew(_Session("", ""))
            session = self._session
        reply = await self._exchange(method, params)
        if reply.status == 404 and session is not None and session.id and reply.error_code not in _ABOUT_THE_REQUEST:
            await self._renew(session)
            reply = await self._exchange(method, params)
        return reply

    async def _exchange(self, method: str, params: Mapping[str, Any]) -> Reply:
        """One request, one reply. The caller sets the deadline."""
        self._last_id += 1
        message_id = self._last_id
        session = self._session
        speaks = self._era
        body = rpc.request(message_id, method, params)
        head = request_head(self._target, "POST", self._headers(method, params), len(body))
        try:
            answer = await self._send(head, body, repeatable=method != "tools/call")
            try:
                reply = await self._reader.read(answer, message_id)
            finally:
                answer.release()
            if reply.unfinished is not None:
                reply = await self._resume(reply.unfinished, message_id)
        except WireFailed as error:
            raise self._broken(error) from None
        except asyncio.CancelledError:
            if speaks == "legacy" and session is not None:
                notice = rpc.cancelled(message_id)
                self._beside(request_head(self._target, "POST", _session_headers(session), len(notice)), notice)
            raise
        if method not in ("server/discover", "initialize"):
            doubt = era.doubts_era(speaks, method, reply.response, reply.status)
            if doubt == "perhaps":
                self._on_list_changed()
            elif doubt == "yes":
                reason = "it no longer speaks the protocol version it began with"
                self._unusable = UpstreamFailed(self._name, "handshake", reason, status=reply.status)
                raise self._unusable
        return reply

    def _headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        if self._era == "legacy":
            return _session_headers(self._session) if self._session is not None else {}
        headers = {"mcp-protocol-version": MODERN_VERSION, "mcp-method": method}
        if method in _NAMED:
            name = params.get(_NAMED[method], "")
            headers["mcp-name"] = str(msgspec.json.decode(name) if isinstance(name, msgspec.Raw) else name)
        return headers

    async def _send(self, head: bytes, body: bytes, *, repeatable: bool = True) -> Answer:
        """Raises WireFailed, or UpstreamFailed when there is no connection."""
        try:
            try:
                answer = await self._pool.send(head, body)
            except WireFailed as error:
                # The server closed the idle connection while we wrote. Whether it read the request cannot be known.
                if not (repeatable and error.reused and not error.answered):
                    raise
                answer = await self._pool.send(head, body)
        except WireFailed as error:
            raise self._broken(error) from None
        self._unusable = None
        return answer

    def _broken(self, error: WireFailed) -> UpstreamFailed:
        stage: Stage = "closed" if error.connected else "connect"
        failure = UpstreamFailed(self._name, stage, error.reason, detail=self._target.authority, delivered=error.sent)
        if not error.connected:
            self._unusable = failure
        return failure

    async def _resume(self, parser: SseParser, message_id: int) -> Reply:
        """Take up a legacy stream that the server ended early and said how to (2025-11-25, polling)."""
        for _ in range(_RESUMES):
            if parser.last_id is None or self._session is None:
                break
            pause_ms = 1000 if parser.retry_ms is None else parser.retry_ms
            await asyncio.sleep(pause_ms / 1000)
            headers = _session_headers(self._session) | {"last-event-id": parser.last_id.decode("latin-1")}
            answer = await self._send(request_head(self._target, "GET", headers, None), b"")
            try:
                if answer.status != 200 or media_type(answer) != "text/event-stream":
                    break
                following = SseParser()
                following.last_id, following.retry_ms = parser.last_id, parser.retry_ms
                parser = following
                response = await self._reader.stream(answer, parser, message_id)
            finally:
                answer.release()
            if response is not None:
                return Reply(200, response)
        raise UpstreamFailed(self._name, "closed", "its event stream ended without the answer", delivered=True)

    def _end_if_unusable(self) -> None:
        if self._unusable is not None and self._in_flight == 0 and not self._closed.done():
            self._closed.set_result(self._unusable)

    # ---------------------------------------------------- messages beside calls

    def _beside(self, head: bytes, body: bytes) -> None:
        """Send a message that no caller waits for. Its task belongs to the connector."""
        if not self._closed.done() and len(self._side) < _MOST_BESIDE:
            task = asyncio.create_task(
                self._side_message(head, body), name=f"upstream {self._name}: message beside a call"
            )
            self._side.add(task)
            task.add_done_callback(self._side.discard)

    def _asked(self, request: rpc.Request) -> None:
        """A request of the server, in an event stream. Modern servers send none."""
        if self._session is not None:
            body = rpc.answer_to(request)
            self._beside(request_head(self._target, "POST", _session_headers(self._session), len(body)), body)

    async def _side_message(self, head: bytes, body: bytes) -> None:
        try:
            async with asyncio.timeout(_SIDE_S):
                answer = await self._pool.send(head, body)
        except (WireFailed, TimeoutError):
            return  # it was a courtesy
        answer.finished = True
        answer.release()

    async def _watch_list(self) -> None:
        """Hold the stream on which the server announces changes.

        After a break it is opened again, and the list counts as changed: what was announced meanwhile is lost.
        """
        loop = asyncio.get_running_loop()
        breaks = 0
        while True:
            began = loop.time()
            try:
                wanted = await self._announcements(again=breaks > 0)
            except UpstreamFailed:
                wanted = True
            self._end_if_unusable()
            if not wanted or self._closed.done():
                return
            breaks = 1 if loop.time() - began > _SETTLED_S else breaks + 1
            await asyncio.sleep(backoff(breaks, random.random))

    async def _announcements(self, *, again: bool) -> bool:
        """Read one stream to its end. False when the server serves none.

        Without a deadline on reading: silence is what it is for. A dead peer is noticed by TCP keep-alive.
        """
        self._last_id += 1
        if self._era == "modern":
            params = rpc.modern_params({"notifications": {"toolsListChanged": True}})
            body = rpc.request(self._last_id, "subscriptions/listen", params)
            head = request_head(self._target, "POST", self._headers("subscriptions/listen", params), len(body))
        elif self._session is not None:
            head, body = request_head(self._target, "GET", _session_headers(self._session), None), b""
        else:
            return True
        try:
            async with asyncio.timeout(_LISTEN_S):
                answer = await self._send(head, body)
            try:
                if answer.status != 200 or media_type(answer) != "text/event-stream":
                    # 404 to GET: the session is gone, and a call will renew it.
                    return answer.status >= 500 or answer.status == 429 or (not body and answer.status == 404)
                if again:
                    self._on_list_changed()
                end = await self._reader.stream(answer, SseParser(), self._last_id)
            finally:
                answer.release()
        except TimeoutError:
            return True
        except WireFailed as error:
            raise self._broken(error) from None
        return end is None or end.error is None


def _session_headers(session: _Session) -> dict[str, str]:
    headers = {"mcp-protocol-version": session.version}
    if session.id:
        headers["mcp-session-id"] = session.id
    return headers
