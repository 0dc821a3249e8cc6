"""The MCP endpoint: one POST in, one answer out, both eras, no state but what is in flight.

A raw ASGI application, because the request objects of a framework cost as much as everything below. The order is:
Host and Origin → method → key → media types → body → envelope → era rules → facade → answer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
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
    unsupported_version,
)
from gateway.edge.exchange import Exchange
from gateway.edge.failures import failure_of, unexpected
from gateway.edge.http import Authorities, Headers, HttpRefused, Receive, Scope, Send, check_media, read_body
from gateway.edge.running import Running
from gateway.edge.sessions import SessionIds
from gateway.edge.streams import OpenStreams, listen, watch
from gateway.edge.strict import INLINE_BYTES
from gateway.edge.wire import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Reply,
    Request,
    RequestId,
    WireError,
    parse_call,
    parse_message,
    parse_params,
    result_bytes,
)
from gateway.errors import ErrorClass, GatewayError
from gateway.facade.base import Caller, Facade, Retry
from gateway.metering.metrics import Metrics
from gateway.tenancy.authenticator import Authenticator, AuthFailed, Principal
from gateway.tenancy.tenant import Tenant

log = logging.getLogger("gateway.edge")

Handler = Callable[[Request, Caller], Coroutine[Any, Any, Mapping[str, Any]]]

CHALLENGE = ((b"www-authenticate", b"Bearer"),)
_ONE_ERA_OF: Mapping[Era, frozenset[str]] = {
    "modern": frozenset({"server/discover", "subscriptions/listen"}),
    "legacy": frozenset({"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}),
}
_ONE_ERA = frozenset().union(*_ONE_ERA_OF.values())
"""Methods that exist in one era only (2026-07-28, changelog)."""


@dataclass(slots=True)
class _Visit:
    """One HTTP exchange on its way, and what is observed of it.

    Attributes:
        name: our own id of it, for logs and the client.
        unread: its body has not been read, so the connection cannot serve another.
        id: of the JSON-RPC request, once it is known and when it has one.
        method, tool, error_type: metric labels.
        started: when its body had been read; ``time.perf_counter``.
    """

    name: str
    headers: Headers
    receive: Receive
    exchange: Exchange
    version: str | None
    era: Era
    unread: bool = False
    id: RequestId | None = None
    tenant: str = ""
    method: str = ""
    tool: str = ""
    error_type: str = ""
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class _Run:
    """A request and whose it is."""

    visit: _Visit
    request: Request
    id: RequestId
    caller: Caller


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

    Mutable state is what is in flight, each kind with its own keeper: ``_running``, ``_questions``, ``_streams``.
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
        self._streams = OpenStreams()
        self._running = Running()
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
        """The border: whatever goes wrong inside becomes one answer here, and its text stays inside."""
        headers = Headers(scope["headers"])
        name = "req_" + secrets.token_hex(8)
        exchange = Exchange(send, _accepts_stream(headers), ((b"x-request-id", name.encode()),))
        version = headers.get(b"mcp-protocol-version")
        visit = _Visit(name, headers, receive, exchange, version, era_of(version), unread=scope["method"] == "POST")
        try:
            await self._serve(scope, visit)
        except (Exception, asyncio.CancelledError) as error:
            failure = failure_of(error, visit.id, visit.era)
            if failure is None:
                log.exception("request failed", extra={"request_id": name, "tenant": visit.tenant})
                failure = unexpected(name, visit.id, visit.era)
            if isinstance(error, GatewayError):
                self._metrics.tenant(visit.tenant).reject(error.error_class)
            visit.error_type = failure.error_type
            closing = ((b"connection", b"close"),) if visit.unread else ()
            await exchange.finish(failure.status, failure.body, (*failure.headers, *closing))
        finally:
            if visit.method:
                seconds = time.perf_counter() - visit.started
                self._metrics.observe_server(
                    visit.method, visit.error_type, version or ASSUMED_LEGACY, seconds, tool=visit.tool
                )

    async def _serve(self, scope: Scope, visit: _Visit) -> None:
        """Host and Origin → method → key → media types → body → envelope; then the message has a kind."""
        self._authorities().check(visit.headers)
        if scope["method"] == "GET":
            await self._watch(visit, self._authenticate(scope))
            return
        if scope["method"] != "POST":
            raise HttpRefused(405, "only POST is served here", ((b"allow", b"POST"),))
        principal = self._authenticate(scope)
        check_media(visit.headers)
        body = await read_body(visit.receive, self._max_body, visit.headers.get(b"content-length"))
        visit.unread = False
        if body is None:
            return
        message = parse_message(body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(parse_message, body)
        visit.tenant = principal.tenant
        if isinstance(message, Reply):
            await self._replied(message, visit, principal)
        elif message.id is None:
            await self._notified(message, visit, principal)
        else:
            visit.id, visit.method, visit.started = message.id, message.method, time.perf_counter()
            session = "" if visit.era == "modern" else visit.headers.get(b"mcp-session-id") or ""
            await self._answer(_Run(visit, message, message.id, self._caller(visit, principal, session)))

    def _caller(self, visit: _Visit, principal: Principal, session: str) -> Caller:
        return Caller(
            visit.name,
            self._tenant_of(principal.tenant),
            principal.key_id,
            principal.scopes,
            visit.version or ASSUMED_LEGACY,
            session,
            live=partial(self._authenticator.is_live, principal.key_id),
        )

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
        request, visit, caller = run.request, run.visit, run.caller
        era, exchange = visit.era, visit.exchange
        capabilities: Mapping[str, Any] = {}
        if era == "modern":
            check_modern(request, visit.headers)
        elif META_VERSION in request.meta:
            # a modern client that forgot its header must not be told about sessions
            raise WireError(HEADER_MISMATCH, "Header mismatch: MCP-Protocol-Version is missing")
        elif request.method != "initialize" and caller.session:
            capabilities = self._session(caller)
        handler = (self._modern if era == "modern" else self._legacy).get(request.method)
        if handler is not None:
            # nothing to cancel and nothing to stream: no task, no watcher
            await self._finish(run, await handler(request, caller), self._session_header(request, caller))
            return
        end = ClientEnd(request, era, exchange, caller.tenant.name, caller.session, capabilities, self._questions)
        run = replace(run, caller=replace(caller, client=end))
        if era == "modern" and request.method == "subscriptions/listen":
            await self._listen(run)
            return
        if request.method in _ONE_ERA and request.method not in _ONE_ERA_OF[era]:
            raise WireError(METHOD_NOT_FOUND, f"Method not found: {request.method[:64]}")
        key = (caller.tenant.name, caller.session, run.id) if caller.session else None
        answer = await self._running.watched(self._work(run), visit.receive, exchange, era, key)
        if answer is None:
            # a cancelled request gets no response (cancellation section, all revisions)
            visit.error_type = ErrorClass.CANCELLED
            await exchange.finish(202, b"")
            return
        if answer.get("isError"):
            visit.error_type = "tool_error"
        await self._finish(run, answer)

    def _work(self, run: _Run) -> Coroutine[Any, Any, Mapping[str, Any]]:
        request = run.request
        if request.method != "tools/call":
            return self._facade.request(run.caller, request.method, request.params)
        call = parse_call(request.params)
        run.visit.tool = call.name
        retry = Retry(bytes(call.answers) or None, call.state)
        return self._facade.call_tool(run.caller, call.name, bytes(call.arguments), request.meta, retry)

    async def _finish(
        self, run: _Run, result: Mapping[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        body = result_bytes(run.id, self._dress(result, run.request.method, run.visit.era))
        await run.visit.exchange.finish(200, body, headers)

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

    async def _notified(self, request: Request, visit: _Visit, principal: Principal) -> None:
        """Acknowledge a notification; a legacy cancel finds its call by tenant, session and request id together."""
        if visit.era == "modern":
            if visit.version not in MODERN:
                raise unsupported_version(visit.version)
        elif request.method == "notifications/cancelled":
            session = visit.headers.get(b"mcp-session-id")
            target = parse_params(request.params).get("requestId")
            if session is not None and isinstance(target, (str, int)):
                self._running.cancel(principal.tenant, session, target)
        await visit.exchange.finish(202, b"")

    async def _replied(self, reply: Reply, visit: _Visit, principal: Principal) -> None:
        """A client's answer to what it was asked on a stream; only its own session's questions can be answered."""
        session = visit.headers.get(b"mcp-session-id") or ""
        if visit.era == "modern" or self._sessions.open(session, principal.tenant, principal.key_id) is None:
            raise WireError(INVALID_REQUEST, "Body must be one JSON-RPC request or notification: nothing was asked")
        self._questions.answered(principal.tenant, session, reply)
        await visit.exchange.finish(202, b"")

    async def _listen(self, run: _Run) -> None:
        visit, caller = run.visit, run.caller
        if not visit.exchange.accepts_stream:
            raise HttpRefused(406, "Accept must cover text/event-stream")
        params = parse_params(run.request.params)
        with self._streams.one_of(caller.tenant.name):
            ended = await listen(self._facade, caller, run.id, params, visit.receive, visit.exchange, self._stopping)
        if ended:
            result = {"resultType": "complete", "_meta": {META_SUBSCRIPTION: run.id}}
            await visit.exchange.finish(200, result_bytes(run.id, result))

    async def _watch(self, visit: _Visit, principal: Principal) -> None:
        """GET: a session's stream of announcements, where there is anything to announce."""
        visit.tenant = principal.tenant
        caller = self._caller(visit, principal, visit.headers.get(b"mcp-session-id") or "")
        if visit.era == "modern" or not self._facade.announces(caller):
            raise HttpRefused(405, "only POST is served here", ((b"allow", b"POST"),))
        if not caller.session or not visit.exchange.accepts_stream:
            raise HttpRefused(
                405, "a GET opens the event stream of a session, and nothing else", ((b"allow", b"POST"),)
            )
        self._session(caller)
        with self._streams.one_of(caller.tenant.name):
            ended = await watch(self._facade, caller, visit.receive, visit.exchange, self._stopping)
        if ended:
            await visit.exchange.finish(200, b"")


def _accepts_stream(headers: Headers) -> bool:
    accept = headers.get(b"accept") or ""
    return "text/event-stream" in accept or "*/*" in accept
