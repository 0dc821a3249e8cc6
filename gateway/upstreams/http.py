"""The streamable HTTP connector, both eras: every request is a POST of its own, answered by JSON or by an event stream.

Theory of operation: there is no connection to lose, so one failed request says nothing about the others. The connector
ends (``wait_closed``) only when the server cannot be connected to, has changed its era, or does not let us renew a
session, *and* nothing else is in flight; what is in flight is never torn down for the failure of a neighbour.

Cancelling: in the modern era closing the response is the cancellation; a legacy server is told by a notification. A
``tools/call`` is never sent twice, with one exception that the specification gives: 404 to a legacy session id means
that it was not executed, so the session is renewed (once, however many calls found out) and the call repeated once.

What a server says in the stream of a request belongs to that request (:mod:`gateway.upstreams.beside`); what it says
in the stream of announcements belongs to none.

Not done: HTTP proxies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from gateway.config.model import HttpUpstream
from gateway.errors import GatewayError
from gateway.upstreams import era, rpc
from gateway.upstreams.base import (
    MODERN_VERSION,
    Beside,
    Era,
    RpcFailed,
    ServerInfo,
    Stage,
    UpstreamFailed,
    UpstreamTimedOut,
)
from gateway.upstreams.beside import ANNOUNCEMENTS, ASKS_FOR_INPUT, MAY_ASK, Talk, for_the_caller
from gateway.upstreams.errands import Errands, send_off
from gateway.upstreams.httphead import BadTarget, Session, Target, modern_headers, parse_target, request_head
from gateway.upstreams.httplisten import Held, hold
from gateway.upstreams.httpreply import Hear, Reply, ReplyReader, media_type
from gateway.upstreams.httpwire import Answer, Pool, WireFailed
from gateway.upstreams.legacy_sse import OldTransport, begins_with_endpoint
from gateway.upstreams.listing import list_tools
from gateway.upstreams.paramheaders import ParamHeaders
from gateway.upstreams.redact import Redactor
from gateway.upstreams.results import input_required
from gateway.upstreams.sse import SseParser

_ABOUT_THE_REQUEST = (-32601, -32602)  # a 404 with such an error does not mean that the session is gone
_RESUMES = 5  # how often one legacy event stream that broke off is taken up again
_ENDPOINT_S = 5.0  # for the first event of a stream that may be the old transport's


class HttpConnector:
    """One server that is reached over HTTP.

    Args:
        name: of the upstream, for errors.
        config: URL and headers.
        known_era: the verdict of an earlier connection: ``legacy`` spares the probe.
        on_list_changed: called when the server says that its tools have changed, or may have while nobody listened.
        on_announced: called with method and params (JSON bytes) of each announcement, that one included.

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
        on_announced: Callable[[str, bytes], None] = lambda method, params: None,
    ) -> None:
        self._name = name
        self._known_era = known_era
        self._declared = config.client_capabilities
        self._on_list_changed = on_list_changed
        self._on_announced = on_announced
        try:
            self._target: Target = parse_target(config.url, config.headers)
        except BadTarget as error:
            raise UpstreamFailed(name, "connect", str(error)) from None
        self._redactor = Redactor(self._target.secrets)
        self._reader = ReplyReader(name, self._redactor)
        self._pool = Pool(self._target)
        self._era: Era = "legacy"
        self._info = ServerInfo("legacy", "")
        self._session: Session | None = None  # legacy only; replaced by _initialize
        self._param_headers = ParamHeaders()  # modern only; changed by plan_calls
        self._renewing = asyncio.Lock()
        self._last_id = 0
        self._in_flight = 0
        self._unusable: UpstreamFailed | None = None  # why the connector will end when nothing is in flight any more
        self._closed: asyncio.Future[UpstreamFailed] = asyncio.get_running_loop().create_future()
        self._watch: asyncio.Task[None] | None = None
        self._followed: set[str] = set()  # legacy only: resources that the session tells of; changed by follow()
        self._updates = Held(f"upstream {name}: updates of resources")  # modern only; replaced by follow()
        self._errands = Errands(name)

    # -------------------------------------------------------------- Connector

    async def open(self, timeout_s: float) -> ServerInfo:
        """See :class:`gateway.upstreams.base.Connector`."""
        try:
            async with asyncio.timeout(timeout_s):
                info = await self._handshake()
        except TimeoutError:
            raise UpstreamTimedOut(self._name, "the handshake", timeout_s) from None
        self._era = info.era
        self._info = info
        if era.announced_lists(info) or (info.era == "legacy" and era.announces_updates(info)):
            self._watch = asyncio.create_task(self._watch_lists(), name=f"upstream {self._name}: announcements")
        return info

    async def request(
        self, method: str, params: Mapping[str, Any] | bytes, timeout_s: float, beside: Beside | None = None
    ) -> bytes:
        """See :class:`gateway.upstreams.base.Connector`."""
        if self._closed.done():
            why = self._closed.result()
            raise UpstreamFailed(self._name, why.stage, why.reason, detail=why.detail)
        self._in_flight += 1
        try:
            if beside is None:
                async with asyncio.timeout(timeout_s):
                    reply = await self._either_exchange(method, params, timeout_s)
            else:
                self._last_id += 1
                async with Talk(beside, self._last_id, timeout_s) as talk, talk.deadline:
                    reply = await self._either_exchange(method, params, timeout_s, talk)
        except TimeoutError:
            raise UpstreamTimedOut(self._name, method, timeout_s) from None
        finally:
            self._in_flight -= 1
            self._end_if_unusable()
        return self._reader.result(reply, method)

    async def follow(self, uris: Collection[str], timeout_s: float) -> Mapping[str, RpcFailed]:
        """See :class:`gateway.upstreams.base.Connector`. What a legacy server goes on telling besides is nobody's."""
        refused: dict[str, RpcFailed] = {}
        if self._era == "legacy":
            for uri in set(uris) - self._followed:
                try:
                    await self.request("resources/subscribe", {"uri": uri}, timeout_s)
                    self._followed.add(uri)
                except RpcFailed as refusal:
                    refused[uri] = refusal
        else:
            await self._follow_anew(tuple(uris), timeout_s)
        return refused

    def plan_calls(self, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
        """See :class:`gateway.upstreams.base.Connector`. Which arguments become headers is a matter of this era."""
        return self._param_headers.plan(tools if self._era == "modern" else ())

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
        await self._updates.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        await self._errands.close()
        session, self._session = self._session, None
        if session is not None and session.id:
            await send_off(self._pool, request_head(self._target, "DELETE", session.headers(), None), b"")
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
        reply = await self._exchange(method, rpc.initialize_params(self._declared))
        error = reply.response.error if reply.response is not None else None
        outdated = self._known_era == "legacy" and 400 <= reply.status < 500
        if may_probe and (outdated or (error is not None and era.was_modern_after_all(error))):
            info = await self._probe()  # the server was upgraded, or the probe was only late
            if info is not None:
                return info
        if reply.status in (400, 404, 405) and may_probe and await self._speaks_the_old_transport():
            raise OldTransport(self._name)
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
        session = Session(reply.session_id, told.version)
        body = rpc.notification("notifications/initialized")
        answer = await self._send(request_head(self._target, "POST", session.headers(), len(body)), body)
        answer.finished = True
        answer.release()
        if answer.status >= 300:
            raise self._reader.refusal(Reply(answer.status, None), "notifications/initialized")
        self._session = session
        return told

    async def _speaks_the_old_transport(self) -> bool:
        """Whether GET is answered as in 2024-11-05."""
        answer = await self._send(request_head(self._target, "GET", {}, None), b"")
        try:
            async with asyncio.timeout(_ENDPOINT_S):
                return await begins_with_endpoint(answer)
        except TimeoutError:
            return False
        finally:
            answer.release()

    async def _renew(self, lost: Session) -> None:
        """A new session in place of ``lost``; callers that find it lost at the same time share one handshake."""
        async with self._renewing:
            if self._session is not lost and self._session is not None:
                return
            try:
                await self._initialize()
            except UpstreamFailed as failure:
                self._unusable = failure
                raise
            if (renewed := self._session) is None:
                return
            for uri in self._followed:
                self._last_id += 1
                self._send_beside(renewed, rpc.request(self._last_id, "resources/subscribe", {"uri": uri}))

    # --------------------------------------------------------------- exchanges

    async def _either_exchange(
        self, method: str, params: Mapping[str, Any] | bytes, timeout_s: float, talk: Talk | None = None
    ) -> Reply:
        """A request of a caller, with the one repetition that its era allows."""
        token = talk.token if talk is not None else None
        if self._era == "modern":
            beside = talk.beside if talk is not None else None
            full = rpc.modern_params(params, beside, token)
            reply = await self._exchange(method, full, talk)
            if method == "tools/call" and reply.error_code == era.HEADER_MISMATCH:
                reply = await self._call_anew(full, reply, timeout_s, talk)
            return reply
        full = rpc.legacy_params(params, token)
        session = self._session
        if session is None:  # a renewal has failed, or is under way
            await self._renew(Session("", ""))
            session = self._session
        reply = await self._exchange(method, full, talk)
        if reply.status == 404 and session is not None and session.id and reply.error_code not in _ABOUT_THE_REQUEST:
            await self._renew(session)
            reply = await self._exchange(method, full, talk)
        return reply

    async def _call_anew(self, params: Mapping[str, Any], refused: Reply, timeout_s: float, talk: Talk | None) -> Reply:
        """After the server missed a header: its tool wants others than when it was listed. The call has not run."""
        try:
            await list_tools(self, self._name, self._info, timeout_s)
        except GatewayError:
            return refused
        self._on_list_changed()
        return await self._exchange("tools/call", params, talk)

    async def _exchange(self, method: str, params: Mapping[str, Any], talk: Talk | None = None) -> Reply:
        """One request, one reply. The caller sets the deadline."""
        self._last_id += 1
        message_id = self._last_id
        session = self._session
        speaks = self._era
        hear = partial(self._hear, session, method, talk)
        body = rpc.request(message_id, method, params)
        head = request_head(self._target, "POST", self._headers(method, params), len(body))
        try:
            answer = await self._send(head, body, repeatable=method != "tools/call")
            try:
                reply = await self._reader.read(answer, message_id, hear)
            finally:
                answer.release()
            if reply.unfinished is not None:
                reply = await self._resume(reply.unfinished, message_id, hear)
        except WireFailed as error:
            raise self._broken(error) from None
        except asyncio.CancelledError:
            if speaks == "legacy" and session is not None:
                self._send_beside(session, rpc.cancelled(message_id))
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
            return self._session.headers() if self._session is not None else {}
        headers = modern_headers(method, params)
        if method == "tools/call":
            headers |= self._param_headers.of_call(headers["mcp-name"], params.get("arguments"))
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

    async def _resume(self, parser: SseParser, message_id: int, hear: Hear) -> Reply:
        """Take up a legacy stream that the server ended early and said how to (2025-11-25, polling)."""
        for _ in range(_RESUMES):
            if parser.last_id is None or self._session is None:
                break
            pause_ms = 1000 if parser.retry_ms is None else parser.retry_ms
            await asyncio.sleep(pause_ms / 1000)
            headers = self._session.headers() | {"last-event-id": parser.last_id.decode("latin-1")}
            answer = await self._send(request_head(self._target, "GET", headers, None), b"")
            try:
                if answer.status != 200 or media_type(answer) != "text/event-stream":
                    break
                following = SseParser()
                following.last_id, following.retry_ms = parser.last_id, parser.retry_ms
                parser = following
                response = await self._reader.stream(answer, parser, message_id, hear)
            finally:
                answer.release()
            if response is not None:
                return Reply(200, response)
        raise UpstreamFailed(self._name, "closed", "its event stream ended without the answer", delivered=True)

    def _end_if_unusable(self) -> None:
        if self._unusable is not None and self._in_flight == 0 and not self._closed.done():
            self._closed.set_result(self._unusable)

    # ---------------------------------------------------- messages beside calls

    def _hear(
        self, session: Session | None, method: str, talk: Talk | None, message: rpc.Request | rpc.Notification
    ) -> None:
        """What a server says in the stream of a request. Raises InputRequired when there is nobody to be asked."""
        if isinstance(message, rpc.Notification):
            if message.method in ANNOUNCEMENTS:
                self._announced(message)
            elif talk is not None:
                talk.take(message, _no_reply)
        elif session is not None and talk is not None and for_the_caller(message, self._declared):
            talk.take(message, partial(self._send_beside, session))
        else:
            self._answer_ourselves(session, message)
            if message.method in ASKS_FOR_INPUT and method in MAY_ASK:
                raise input_required(self._name, message.method, message.params)

    def _hear_announcement(self, message: rpc.Request | rpc.Notification) -> None:
        """What a server says in the stream that belongs to no request. Log messages there are nobody's."""
        if isinstance(message, rpc.Request):
            self._answer_ourselves(self._session, message)
        elif message.method in ANNOUNCEMENTS:
            self._announced(message)

    def _announced(self, news: rpc.Notification) -> None:
        if news.method == rpc.LIST_CHANGED:
            self._on_list_changed()
        self._on_announced(news.method, news.params)

    def _answer_ourselves(self, session: Session | None, request: rpc.Request) -> None:
        if session is not None:  # modern servers may send no requests, and no answer to one can be sent to them
            self._send_beside(session, rpc.answer_to(request))

    def _send_beside(self, session: Session, body: bytes) -> None:
        """Send a message that no caller waits for."""
        head = request_head(self._target, "POST", session.headers(), len(body))
        self._errands.start(send_off(self._pool, head, body))

    async def _watch_lists(self) -> None:
        """Hold the stream of announcements. After a break the lists count as changed."""

        def missed() -> None:
            for kind in era.announced_lists(self._info):
                self._announced(rpc.Notification(f"notifications/{kind}/list_changed"))

        # 404 to GET: the session is gone, and a call will renew it
        again_after = frozenset({404} if self._era == "legacy" else ())
        await hold(
            partial(self._open_stream, era.announced_lists(self._info)),
            self._reader,
            self._hear_announcement,
            missed=missed,
            ended=self._has_ended,
            again_after=again_after,
        )

    async def _follow_anew(self, uris: Collection[str], timeout_s: float) -> None:
        """A stream of updates in place of the one that there was."""

        def missed() -> None:
            for uri in uris:
                self._announced(rpc.Notification("notifications/resources/updated", msgspec.json.encode({"uri": uri})))

        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def hear(message: rpc.Request | rpc.Notification) -> None:
            if message.method == rpc.ACKNOWLEDGED and not acknowledged.done():
                acknowledged.set_result(None)
            self._hear_announcement(message)

        opening = partial(self._open_stream, (), uris)
        holding = hold(opening, self._reader, hear, missed=missed, ended=self._has_ended)
        await self._updates.replace(holding, acknowledged, timeout_s)

    def _has_ended(self) -> bool:
        self._end_if_unusable()
        return self._closed.done()

    async def _open_stream(self, lists: Collection[str], uris: Collection[str] = ()) -> tuple[Answer, int] | None:
        self._last_id += 1
        message_id = self._last_id
        if self._era == "modern":
            method = "subscriptions/listen"
            params = rpc.modern_params(era.listen_params(lists, uris))
            body = rpc.request(message_id, method, params)
            head = request_head(self._target, "POST", self._headers(method, params), len(body))
        elif self._session is not None:
            head, body = request_head(self._target, "GET", self._session.headers(), None), b""
        else:
            return None
        return await self._send(head, body), message_id


def _no_reply(message: bytes) -> None:
    """Notifications are not answered."""
