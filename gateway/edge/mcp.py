"""The MCP endpoint: one POST in, one answer out, both eras, no state but what is in flight.

A raw ASGI application, because the request objects of a framework cost as much as everything below. The order is:
Host and Origin → method → key → media types → body → envelope → era rules → facade → answer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.edge.client import ClientEnd, Questions
from gateway.edge.eras import (
    ASSUMED_LEGACY,
    CACHEABLE,
    LEGACY,
    META_SERVER_INFO,
    META_SUBSCRIPTION,
    META_VERSION,
    MODERN,
    Era,
    check_modern,
    era_of,
    error_status,
    unsupported_version,
)
from gateway.edge.exchange import KEEPALIVE_S, Exchange
from gateway.edge.http import (
    Authorities,
    Headers,
    HttpRefused,
    Receive,
    Scope,
    Send,
    check_media,
    read_body,
    send_refusal,
)
from gateway.edge.sessions import SessionIds
from gateway.edge.streams import disconnected, listen, watch
from gateway.edge.strict import INLINE_BYTES
from gateway.edge.wire import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    Reply,
    Request,
    RequestId,
    WireError,
    error_bytes,
    parse_call,
    parse_message,
    parse_params,
    result_bytes,
)
from gateway.errors import ErrorClass, GatewayError
from gateway.facade.base import Caller, Facade, Refused, Retry
from gateway.metering.metrics import Metrics
from gateway.tenancy.authenticator import Authenticator, AuthFailed, Principal
from gateway.tenancy.tenant import Tenant

log = logging.getLogger("gateway.edge")

Handler = Callable[[Request, Caller], Coroutine[Any, Any, Mapping[str, Any]]]

CHALLENGE = ((b"www-authenticate", b"Bearer"),)
LIMIT_CODE = 429
"""JSON-RPC code of a limit hit outside a tool call: an own code, outside the reserved range."""
FORBIDDEN_CODE = 403
MAX_STREAMS = 200
"""Streams of announcements that one tenant may have open on one path."""
_ONE_ERA_OF: Mapping[Era, frozenset[str]] = {
    "modern": frozenset({"server/discover", "subscriptions/listen"}),
    "legacy": frozenset({"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}),
}
_ONE_ERA = frozenset().union(*_ONE_ERA_OF.values())
"""Methods that exist in one era only (2026-07-28, changelog)."""
STOPPING = "the gateway is shutting down; what was still running has been cancelled"
"""For requests that the HTTP server cancels, which it does once, at the end of its grace."""


@dataclass(slots=True)
class _Run:
    """One request on its way, and what is observed of it: ``tool`` and ``error_type`` are metric labels."""

    request: Request
    id: RequestId
    era: Era
    headers: Headers
    caller: Caller
    receive: Receive
    exchange: Exchange
    tool: str = ""
    error_type: str = ""


class McpEndpoint:
    """ASGI application for one path.

    Args:
        facade: what answers: code mode or direct mode.
        authenticator: tells who a key belongs to.
        tenant_of: the current tenant by name.
        authorities: accepted Host and Origin values; asked per request, since a free port is known only once bound.
        sessions: signs the session ids of the legacy era.
        metrics: durations by method.
        server_info: ``{name, version}``.
        max_body: bytes.
        stopping: set when the gateway begins to stop: streams that only announce changes end then.

    Mutable state, touched only here: ``_in_flight``, the running legacy calls by (tenant, session, request id);
    ``_streams``, how many streams of announcements a tenant has open.
    """

    def __init__(
        self,
        facade: Facade,
        *,
        authenticator: Authenticator,
        tenant_of: Callable[[str], Tenant],
        authorities: Callable[[], Authorities],
        sessions: SessionIds,
        metrics: Metrics,
        server_info: Mapping[str, str],
        max_body: int,
        stopping: asyncio.Event,
    ) -> None:
        self._facade = facade
        self._authenticator = authenticator
        self._tenant_of = tenant_of
        self._authorities = authorities
        self._sessions = sessions
        self._metrics = metrics
        self._server_info = server_info
        self._max_body = max_body
        self._stopping = stopping
        self._questions = Questions()
        self._streams: Counter[str] = Counter()
        self._in_flight: dict[tuple[str, str, RequestId], asyncio.Task[Mapping[str, Any]]] = {}
        self._legacy: Mapping[str, Handler] = {
            "initialize": self._initialize,
            "ping": self._ping,
            "tools/list": self._list_tools,
        }
        self._modern: Mapping[str, Handler] = {
            "server/discover": self._discover,
            "tools/list": self._list_tools,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope["headers"])
        try:
            self._authorities().check(headers)
            if scope["method"] == "GET":
                await self._watch(headers, self._authenticate(scope), receive, send)
                return
            if scope["method"] != "POST":
                raise HttpRefused(405, "only POST is served here", ((b"allow", b"POST"),))
            principal = self._authenticate(scope)
            check_media(headers)
            body = await read_body(receive, self._max_body, headers.get(b"content-length"))
        except HttpRefused as refused:
            await send_refusal(send, refused, unread=scope["method"] == "POST")
            return
        except asyncio.CancelledError:
            await send_refusal(send, HttpRefused(503, STOPPING), unread=True)
            return
        if body is None:
            return
        request_id = "req_" + secrets.token_hex(8)
        exchange = Exchange(send, _accepts_stream(headers), ((b"x-request-id", request_id.encode()),))
        version = headers.get(b"mcp-protocol-version")
        era = era_of(version)
        try:
            request = parse_message(body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(parse_message, body)
        except WireError as wrong:
            await exchange.finish(error_status(era, wrong.code), error_bytes(None, wrong))
            return
        except asyncio.CancelledError:
            await exchange.finish(503, error_bytes(None, WireError(INTERNAL_ERROR, STOPPING)))
            return
        if isinstance(request, Reply):
            await self._replied(request, era, headers, principal, exchange)
            return
        if request.id is None:
            await self._notified(request, era, version, headers, principal, exchange)
            return
        caller = Caller(
            request_id,
            self._tenant_of(principal.tenant),
            principal.key_id,
            principal.scopes,
            version or ASSUMED_LEGACY,
            "" if era == "modern" else headers.get(b"mcp-session-id") or "",
            live=partial(self._authenticator.is_live, principal.key_id),
        )
        started = time.perf_counter()
        run = _Run(request, request.id, era, headers, caller, receive, exchange)
        try:
            await self._answer(run)
        except WireError as wrong:
            run.error_type = str(wrong.code)
            await exchange.finish(error_status(era, wrong.code), error_bytes(request.id, wrong))
        except HttpRefused as refusal:
            run.error_type = str(refusal.status)
            await send_refusal(send, refusal)
        except Refused as refused:
            run.error_type = refused.reason
            await _finish_refused(exchange, request.id, era, refused)
        except GatewayError as failed:
            run.error_type = failed.error_class
            self._metrics.tenant(caller.tenant.name).reject(failed.error_class)
            await _finish_limited(exchange, request.id, failed)
        except asyncio.CancelledError:
            run.error_type = ErrorClass.CANCELLED
            await exchange.finish(503, error_bytes(request.id, WireError(INTERNAL_ERROR, STOPPING)))
        except Exception:
            # the border: whatever went wrong inside, its text stays inside
            run.error_type = "internal"
            log.exception("request failed", extra={"request_id": request_id, "tenant": principal.tenant})
            internal = WireError(INTERNAL_ERROR, f"Internal error (request {request_id})")
            await exchange.finish(error_status(era, internal.code), error_bytes(request.id, internal))
        finally:
            seconds = time.perf_counter() - started
            self._metrics.observe_server(request.method, run.error_type, caller.protocol, seconds, tool=run.tool)

    def _authenticate(self, scope: Scope) -> Principal:
        try:
            return self._authenticator.authenticate(scope["headers"])
        except AuthFailed as failed:
            self._metrics.tenant("").reject("unauthenticated")
            log.info("authentication failed", extra={"reason": failed.reason, "key_id": failed.key_id})
            if failed.status == 401:
                raise HttpRefused(401, "a valid API key is required: Authorization: Bearer cmg_…", CHALLENGE) from None
            text = "send exactly one credential" if failed.status == 400 else "keys cannot be checked at the moment"
            raise HttpRefused(failed.status, text) from None

    # ---- one request ----------------------------------------------------------------------------------------------

    async def _answer(self, run: _Run) -> None:
        request, era = run.request, run.era
        capabilities: Mapping[str, Any] = {}
        if era == "modern":
            check_modern(request, run.headers)
        elif META_VERSION in request.meta:
            # a modern client that forgot its header must not be told about sessions
            raise WireError(HEADER_MISMATCH, "Header mismatch: MCP-Protocol-Version is missing")
        elif request.method != "initialize" and run.caller.session:
            capabilities = self._session(run.caller)
        handler = (self._modern if era == "modern" else self._legacy).get(request.method)
        if handler is not None:
            # nothing to cancel and nothing to stream: no task, no watcher
            result = await handler(request, run.caller)
            await self._finish(run, result, self._session_header(request, run.caller))
            return
        end = ClientEnd(
            request, era, run.exchange, run.caller.tenant.name, run.caller.session, capabilities, self._questions
        )
        run.caller = replace(run.caller, client=end)
        if era == "modern" and request.method == "subscriptions/listen":
            await self._listen(run)
            return
        if request.method in _ONE_ERA and request.method not in _ONE_ERA_OF[era]:
            raise WireError(METHOD_NOT_FOUND, f"Method not found: {request.method[:64]}")
        answer = await self._watched(self._work(run), run)
        if answer is None:
            # a cancelled request gets no response (cancellation section, all revisions)
            run.error_type = ErrorClass.CANCELLED
            await run.exchange.finish(202, b"")
            return
        if answer.get("isError"):
            run.error_type = "tool_error"
        await self._finish(run, answer)

    def _work(self, run: _Run) -> Coroutine[Any, Any, Mapping[str, Any]]:
        request = run.request
        if request.method != "tools/call":
            return self._facade.request(run.caller, request.method, request.params)
        call = parse_call(request.params)
        run.tool = call.name
        retry = Retry(bytes(call.answers) or None, call.state)
        return self._facade.call_tool(run.caller, call.name, bytes(call.arguments), request.meta, retry)

    async def _finish(
        self, run: _Run, result: Mapping[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        body = result_bytes(run.id, self._dress(result, run.request.method, run.era))
        await run.exchange.finish(200, body, headers)

    async def _watched(self, work: Coroutine[Any, Any, Mapping[str, Any]], run: _Run) -> Mapping[str, Any] | None:
        """Run a call and watch its connection: a closed one is the cancellation in the modern era, and only there.

        Returns:
            the result, or None when the call was cancelled.
        """
        exchange, session = run.exchange, run.caller.session
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(disconnected(run.receive))
        key = (run.caller.tenant.name, session, run.id) if session else None
        if key is not None:
            self._in_flight[key] = task
        try:
            while not task.done():
                waiting: set[asyncio.Future[Any]] = {task} if gone.done() else {task, gone}
                timeout = KEEPALIVE_S if exchange.accepts_stream and not gone.done() else None
                done, _ = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if gone in done:
                    exchange.gone = True
                    if run.era == "modern":
                        task.cancel()
                elif not done:
                    await exchange.keep_alive()
        finally:
            gone.cancel()
            # a client that uses an id twice has only the later call under it
            if key is not None and self._in_flight.get(key) is task:
                del self._in_flight[key]
            if not task.done():
                # the server itself is stopping: the call must not outlive its request
                task.cancel()
                await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    def _dress(self, result: Mapping[str, Any], method: str, era: Era) -> Mapping[str, Any]:
        """Add what only one era has: resultType, server info and cache hints are words of 2026-07-28."""
        if era == "legacy":
            return {k: v for k, v in result.items() if k not in ("resultType", "ttlMs", "cacheScope")}
        meta = {META_SERVER_INFO: self._server_info, **result.get("_meta", {})}
        dressed = {"resultType": "complete", **result, "_meta": meta}
        if method in CACHEABLE and dressed["resultType"] == "complete":
            dressed.setdefault("ttlMs", 0)
            dressed.setdefault("cacheScope", "private")
        return dressed

    # ---- methods --------------------------------------------------------------------------------------------------

    async def _initialize(self, request: Request, caller: Caller) -> Mapping[str, Any]:
        asked = parse_params(request.params).get("protocolVersion")
        return {
            "protocolVersion": asked if asked in LEGACY else LEGACY[-1],
            "capabilities": self._facade.capabilities(caller),
            "serverInfo": self._server_info,
            "instructions": await self._facade.introduce(caller),
        }

    async def _ping(self, request: Request, caller: Caller) -> Mapping[str, Any]:
        return {}

    async def _discover(self, request: Request, caller: Caller) -> Mapping[str, Any]:
        return {
            "supportedVersions": list(MODERN),
            "capabilities": self._facade.capabilities(caller),
            "instructions": await self._facade.introduce(caller),
            "ttlMs": 60_000,
            "cacheScope": "private",
        }

    async def _list_tools(self, request: Request, caller: Caller) -> Mapping[str, Any]:
        cursor = parse_params(request.params).get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise WireError(INVALID_PARAMS, "Invalid params: cursor must be a string")
        return await self._facade.list_tools(caller, cursor)

    def _session_header(self, request: Request, caller: Caller) -> tuple[tuple[bytes, bytes], ...]:
        if request.method != "initialize":
            return ()
        capabilities = parse_params(request.params).get("capabilities")
        declared = capabilities if isinstance(capabilities, dict) else {}
        return ((b"mcp-session-id", self._sessions.mint(caller.tenant.name, caller.key_id, declared).encode()),)

    def _session(self, caller: Caller) -> Mapping[str, Any]:
        """What the client of a session can be asked for.

        Raises:
            HttpRefused: 404 for an id that is not this tenant's, upon which the client initializes again.
        """
        capabilities = self._sessions.open(caller.session, caller.tenant.name, caller.key_id)
        if capabilities is None:
            raise HttpRefused(404, "this session is unknown or has expired; initialize again")
        return capabilities

    # ---- notifications and subscriptions ----------------------------------------------------------------------------

    async def _notified(
        self,
        request: Request,
        era: Era,
        version: str | None,
        headers: Headers,
        principal: Principal,
        exchange: Exchange,
    ) -> None:
        """Acknowledge a notification; a legacy cancel finds its call by tenant, session and request id together."""
        if era == "modern":
            if version not in MODERN:
                await exchange.finish(400, error_bytes(None, unsupported_version(version)))
                return
        elif request.method == "notifications/cancelled":
            session = headers.get(b"mcp-session-id")
            target = parse_params(request.params).get("requestId")
            if session is not None and isinstance(target, (str, int)):
                running = self._in_flight.get((principal.tenant, session, target))
                if running is not None:
                    running.cancel()
        await exchange.finish(202, b"")

    async def _replied(
        self, reply: Reply, era: Era, headers: Headers, principal: Principal, exchange: Exchange
    ) -> None:
        """A client's answer to what it was asked on a stream; only its own session's questions can be answered."""
        session = headers.get(b"mcp-session-id") or ""
        if era == "modern" or not self._sessions.open(session, principal.tenant, principal.key_id):
            wrong = WireError(INVALID_REQUEST, "Body must be one JSON-RPC request or notification: nothing was asked")
            await exchange.finish(400, error_bytes(None, wrong))
            return
        self._questions.answered(principal.tenant, session, reply)
        await exchange.finish(202, b"")

    async def _listen(self, run: _Run) -> None:
        if not run.exchange.accepts_stream:
            await run.exchange.finish(406, error_bytes(run.id, WireError(INVALID_REQUEST, "Not Acceptable")))
            return
        params = parse_params(run.request.params)
        with self._stream_of(run.caller.tenant.name):
            ended = await listen(self._facade, run.caller, run.id, params, run.receive, run.exchange, self._stopping)
        if ended:
            result = {"resultType": "complete", "_meta": {META_SUBSCRIPTION: run.id}}
            await run.exchange.finish(200, result_bytes(run.id, result))

    async def _watch(self, headers: Headers, principal: Principal, receive: Receive, send: Send) -> None:
        """GET: a session's stream of announcements, where there is anything to announce. Raises HttpRefused."""
        session = headers.get(b"mcp-session-id") or ""
        caller = Caller(
            "req_" + secrets.token_hex(8),
            self._tenant_of(principal.tenant),
            principal.key_id,
            principal.scopes,
            headers.get(b"mcp-protocol-version") or ASSUMED_LEGACY,
            session,
            live=partial(self._authenticator.is_live, principal.key_id),
        )
        if era_of(headers.get(b"mcp-protocol-version")) == "modern" or not self._facade.announces(caller):
            raise HttpRefused(405, "only POST is served here", ((b"allow", b"POST"),))
        exchange = Exchange(send, _accepts_stream(headers))
        if not session or not exchange.accepts_stream:
            raise HttpRefused(
                405, "a GET opens the event stream of a session, and nothing else", ((b"allow", b"POST"),)
            )
        self._session(caller)
        try:
            with self._stream_of(caller.tenant.name):
                ended = await watch(self._facade, caller, receive, exchange, self._stopping)
        except GatewayError as limited:
            raise HttpRefused(429, limited.message, ((b"retry-after", b"60"),)) from None
        if ended:
            await exchange.finish(200, b"")

    @contextmanager
    def _stream_of(self, tenant: str) -> Iterator[None]:
        """Open streams are the dearest thing a client can hold for nothing. Raises GatewayError(RATE_LIMITED)."""
        if self._streams[tenant] >= MAX_STREAMS:
            raise GatewayError(
                ErrorClass.RATE_LIMITED, f"{MAX_STREAMS} streams of this tenant are open", retry_after_s=60
            )
        self._streams[tenant] += 1
        try:
            yield
        finally:
            self._streams[tenant] -= 1
            if not self._streams[tenant]:
                del self._streams[tenant]


def _accepts_stream(headers: Headers) -> bool:
    accept = headers.get(b"accept") or ""
    return "text/event-stream" in accept or "*/*" in accept


async def _finish_refused(exchange: Exchange, request_id: RequestId, era: Era, refused: Refused) -> None:
    """A missing scope is 403 with the challenge of RFC 6750 section 3.1; our own refusals are -32602 or -32601."""
    if refused.reason == "forbidden":
        challenge = f'Bearer error="insufficient_scope", scope="{refused.scope}"'.encode()
        wrong = WireError(FORBIDDEN_CODE, refused.message)
        await exchange.finish(403, error_bytes(request_id, wrong), ((b"www-authenticate", challenge),))
        return
    if refused.code is not None:
        # An upstream's code says nothing about this exchange: its "method not found" must not read as our 404. But what
        # our client did not declare is about this client, and is 400 whoever misses it.
        status = error_status(era, refused.code) if refused.code == MISSING_CAPABILITY else 200
        wrong = WireError(refused.code, refused.message, refused.data)
        await exchange.finish(status, error_bytes(request_id, wrong))
        return
    code = METHOD_NOT_FOUND if refused.reason == "unknown_method" else INVALID_PARAMS
    wrong = WireError(code, refused.message, refused.data)
    await exchange.finish(error_status(era, wrong.code), error_bytes(request_id, wrong))


async def _finish_limited(exchange: Exchange, request_id: RequestId, failed: GatewayError) -> None:
    """A limit outside a tool call: 429 with Retry-After (RFC 6585). Other failures are 503."""
    limited = failed.error_class in (ErrorClass.RATE_LIMITED, ErrorClass.QUOTA_EXCEEDED)
    data = {"class": failed.error_class, "retryAfter": failed.retry_after_s}
    wrong = WireError(LIMIT_CODE if limited else INTERNAL_ERROR, str(failed), data)
    extra = ((b"retry-after", b"%d" % max(1, round(failed.retry_after_s or 1))),)
    await exchange.finish(429 if limited else 503, error_bytes(request_id, wrong), extra)
