"""Direct mode: everything the tenant may use as plain federated MCP, as if one server offered it.

It exists beside code mode for clients that want no scripts, and it is the counterfactual made real: what it lists is
what ``mode="direct"`` of the context metrics counts. Tools go by patterns, like everywhere; resources and prompts are
those of the upstreams that the tenant was given whole (a pattern ``*``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gateway.broker import Broker, Ticket, failure_text
from gateway.catalog.view import TenantView
from gateway.errors import ErrorClass, GatewayError
from gateway.facade.accounts import Accounts, listed
from gateway.facade.base import NO_RETRY, Caller, Refused, Retry
from gateway.facade.changes import (
    PROMPTS_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
    Changes,
    Subscription,
    Wanted,
)
from gateway.facade.features import KINDS, Features, Source
from gateway.facade.hearing import Hearing, Uris
from gateway.facade.relay import Asked, Relay, Rounds, input_wanted, subject_of
from gateway.facade.seals import Broken, Seals
from gateway.metering.context import call_text
from gateway.metering.meter import Part
from gateway.metering.metrics import OK
from gateway.tenancy.limits import Quotas
from gateway.tenancy.tenant import Tenant
from gateway.upstreams.base import CallResult, InputRequired, RpcFailed, UpstreamFailed

SCOPE = "direct:call"
PAGE = 500
"""Entries of one page of any list."""
CURSOR_S = 3_600.0
PASSED_ON = ("traceparent", "tracestate", "baggage")
"""Members of the client's ``_meta`` that travel upstream (W3C trace context, 2026-07-28 base section)."""
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
"""Member of a result's ``_meta`` that names the server which answers: to our client that is the gateway."""
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_params = msgspec.json.Decoder(dict[str, Any]).decode

Sources = Callable[[Iterable[str]], Sequence[Source]]
"""Names of upstreams → those that can be asked now, with what they can do."""


class DirectFacade:
    """The facade of ``/mcp/direct``, and of ``/mcp`` for tenants in direct mode.

    Args:
        broker: the one door.
        view_of: the current view of a tenant.
        accounts: opens the books of each request.
        quotas: limits over time.
        sources: what the upstreams offer besides tools.
        changes: tells open streams.
        seals: protects cursors and request states.
    """

    endpoint = "direct"

    def __init__(
        self,
        broker: Broker,
        view_of: Callable[[Tenant], TenantView],
        accounts: Accounts,
        quotas: Quotas,
        sources: Sources,
        changes: Changes,
        seals: Seals,
    ) -> None:
        self._broker = broker
        self._view_of = view_of
        self._accounts = accounts
        self._quotas = quotas
        self._sources = sources
        self._changes = changes
        self._seals = seals
        self._hearing = Hearing(broker, self._features)
        self._methods = {
            **dict.fromkeys(KINDS, self._list),
            "resources/read": self._read_resource,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
            "logging/setLevel": self._set_level,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
        }

    # ---- what there is ----------------------------------------------------------------------------------------------

    def capabilities(self, caller: Caller) -> Mapping[str, Any]:
        offered = {name for source in self._whole(caller) for name in source.capabilities}
        found: dict[str, Any] = {"tools": {"listChanged": True}}
        if "resources" in offered:
            found["resources"] = {"listChanged": True, **({"subscribe": True} if self._subscribable(caller) else {})}
        if "prompts" in offered:
            found["prompts"] = {"listChanged": True}
        for name in ("completions", "logging"):
            if name in offered:
                found[name] = {}
        return found

    def announces(self, caller: Caller) -> frozenset[str]:
        offered = self.capabilities(caller)
        found = {TOOLS_CHANGED}
        if "resources" in offered:
            found |= {RESOURCES_CHANGED} | ({RESOURCE_UPDATED} if self._subscribable(caller) else set())
        if "prompts" in offered:
            found.add(PROMPTS_CHANGED)
        return frozenset(found)

    @asynccontextmanager
    async def subscribed(
        self, caller: Caller, methods: frozenset[str], uris: Sequence[str] = ()
    ) -> AsyncIterator[Subscription]:
        # what a session subscribes to while its stream is open counts too
        followed = self._hearing.session(caller).uris if caller.session else await self._follow_all(caller, uris)
        with self._changes.subscribed(caller.tenant.name, Wanted(methods, followed)) as subscription:
            yield subscription

    async def introduce(self, caller: Caller) -> str:
        self._quotas.take_request(caller.tenant)
        view = self._view_of(caller.tenant)
        text = "\n\n".join(f"{entry.name}: {entry.instructions}" for entry in view.upstreams() if entry.instructions)
        account = self._accounts.open(caller, view, endpoint="direct", method="initialize", tool="other")
        account.sent(Part.CODE_LIST, text, also=Part.DIRECT_LIST)
        await account.close(OK)
        return text

    async def list_tools(self, caller: Caller, cursor: str | None) -> Mapping[str, Any]:
        self._quotas.take_request(caller.tenant)
        view = self._view_of(caller.tenant)
        page, following = self._page(caller, "tools/list", view.visible, cursor)
        account = self._accounts.open(caller, view, endpoint="direct", method="tools/list", tool="direct")
        if cursor is None:
            # the first page stands for the whole list, which a client reads to its end
            account.listed(Part.CODE_LIST, await self._accounts.definitions(view), also=Part.DIRECT_LIST)
        await account.close(OK)
        return {"tools": [listed(tool) for tool in page], **following, "ttlMs": 0, "cacheScope": "private"}

    # ---- tools ------------------------------------------------------------------------------------------------------

    async def call_tool(
        self, caller: Caller, name: str, arguments: bytes, meta: Mapping[str, Any], retry: Retry = NO_RETRY
    ) -> Mapping[str, Any]:
        self._may(caller)
        view = self._view_of(caller.tenant)
        account = self._accounts.open(caller, view, endpoint="direct", method="tools/call", tool="direct")
        passed = {key: meta[key] for key in PASSED_ON if key in meta}
        relay = Relay(caller.client, self._hearing.log_level(caller))

        async def send(extra: Mapping[str, Any]) -> CallResult | InputRequired:
            try:
                _, result = await self._broker.call(
                    account.ticket, name, arguments, meta=passed or None, beside=relay, extra=extra
                )
            except InputRequired as asked:
                if not asked.raw:
                    raise
                return asked
            return result

        try:
            self._quotas.take_request(caller.tenant)
            self._quotas.check_tokens(caller.tenant)
            rounds = Rounds(self._seals, caller, subject_of("tools/call", name, arguments))
            answer = await rounds.run(send, retry, lambda got: got.raw if isinstance(got, InputRequired) else None)
        except GatewayError as failed:
            self._accounts.rejected(caller.tenant, failed.error_class)
            text = failure_text(failed, name)
            if not account.ticket.calls:
                # refused before the broker saw it; the model wrote and read all the same
                account.sent(Part.CODE_CALL, call_text(name, arguments), also=Part.DIRECT_CALL)
                account.sent(Part.CODE_RESULT, text, also=Part.DIRECT_RESULT)
            usage = await account.close(failed.error_class)
            if isinstance(failed, RpcFailed):
                # the upstream refused the request itself: the client gets that refusal, not our words
                raise Refused("rpc_error", text, code=failed.code, data=failed.data) from None
            if failed.error_class is ErrorClass.UNKNOWN_TOOL:
                raise Refused("invalid_params", text) from None
            return {"content": [{"type": "text", "text": text}], "isError": True, "_meta": usage}
        except Refused:
            account.abandon(ErrorClass.INVALID_ARGUMENTS)
            raise
        except asyncio.CancelledError:
            account.abandon(ErrorClass.CANCELLED)
            raise
        if isinstance(answer, Asked):
            return _with_meta(answer.result, await account.close(OK))
        assert isinstance(answer, CallResult)
        usage = await account.close(ErrorClass.TOOL_ERROR if answer.is_error else OK)
        result: dict[str, Any] = _members(answer.raw)
        result.pop("resultType", None)
        return _with_meta(result, usage)

    # ---- everything else --------------------------------------------------------------------------------------------

    async def request(self, caller: Caller, method: str, params: bytes) -> Mapping[str, Any]:
        handler = self._methods.get(method)
        if handler is None or not self._offers(caller, method):
            raise Refused("unknown_method", f"Method not found: {method[:64]}")
        self._may(caller)
        self._quotas.take_request(caller.tenant)
        try:
            decoded = _params(params)
        except (msgspec.DecodeError, RecursionError):
            raise Refused("invalid_params", "Invalid params") from None
        account = self._accounts.open(
            caller, self._view_of(caller.tenant), endpoint="direct", method=method, tool="direct"
        )
        outcome: str = ErrorClass.CANCELLED
        try:
            result = await handler(caller, account.ticket, method, decoded)
            outcome = OK
            return result
        except RpcFailed as failed:
            outcome = failed.error_class
            raise Refused("rpc_error", failed.message, code=failed.code, data=failed.data) from None
        except GatewayError as failed:
            outcome = failed.error_class
            raise Refused("rpc_error", str(failed), code=-32603) from None
        except Refused:
            outcome = ErrorClass.INVALID_ARGUMENTS
            raise
        finally:
            account.abandon(outcome)

    async def _list(self, caller: Caller, ticket: Ticket, method: str, params: dict[str, Any]) -> Mapping[str, Any]:
        cursor = params.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise Refused("invalid_params", "Invalid params: cursor must be a string")
        entries = await self._features(caller, ticket).entries(method)
        page, following = self._page(caller, method, entries, cursor)
        return {KINDS[method]: page, **following}

    async def _read_resource(
        self, caller: Caller, ticket: Ticket, method: str, params: dict[str, Any]
    ) -> Mapping[str, Any]:
        uri = _text(params, "uri")
        owned = await self._features(caller, ticket).resource_owner(uri)
        result = await self._relayed(caller, ticket, owned.source, method, uri, {"uri": owned.uri}, params)
        return _shown_as(result, owned.prefix) if owned.prefix else result

    async def _get_prompt(
        self, caller: Caller, ticket: Ticket, method: str, params: dict[str, Any]
    ) -> Mapping[str, Any]:
        shown = _text(params, "name")
        source, name = await self._features(caller, ticket).prompt_owner(shown)
        own = {"name": name, **({"arguments": params["arguments"]} if "arguments" in params else {})}
        return await self._relayed(caller, ticket, source, method, shown, own, params)

    async def _complete(self, caller: Caller, ticket: Ticket, method: str, params: dict[str, Any]) -> Mapping[str, Any]:
        ref: dict[str, Any] = dict(params["ref"]) if isinstance(params.get("ref"), dict) else {}
        features = self._features(caller, ticket)
        match ref:
            case {"type": "ref/prompt", "name": str(shown)}:
                source, ref["name"] = await features.prompt_owner(shown)
            case {"type": "ref/resource", "uri": str(uri)}:
                owned = await features.resource_owner(uri)
                source, ref["uri"] = owned.source, owned.uri
            case _:
                raise Refused("invalid_params", "Invalid params: ref must name a prompt or a resource")
        own = {key: value for key, value in params.items() if key != "_meta"} | {"ref": ref}
        return await self._relayed(caller, ticket, source, method, "", own, {})

    async def _set_level(
        self, caller: Caller, ticket: Ticket, method: str, params: dict[str, Any]
    ) -> Mapping[str, Any]:
        await self._hearing.set_log_level(caller, ticket, _text(params, "level"), self._whole(caller))
        return {}

    async def _subscribe(
        self, caller: Caller, ticket: Ticket, method: str, params: dict[str, Any]
    ) -> Mapping[str, Any]:
        await self._hearing.subscribe(caller, ticket, _text(params, "uri"))
        return {}

    async def _unsubscribe(
        self, caller: Caller, ticket: Ticket, method: str, params: dict[str, Any]
    ) -> Mapping[str, Any]:
        self._hearing.unsubscribe(caller, _text(params, "uri"))
        return {}

    async def _follow_all(self, caller: Caller, uris: Sequence[str]) -> Uris:
        """For a stream of 2026-07-28. Raises Refused, GatewayError."""
        if not uris:
            return {}
        self._may(caller)
        self._quotas.take_request(caller.tenant)
        view = self._view_of(caller.tenant)
        account = self._accounts.open(caller, view, endpoint="direct", method="subscriptions/listen", tool="direct")
        try:
            return await self._hearing.follow_all(caller, account.ticket, uris)
        finally:
            account.abandon(OK)

    # ---- parts ------------------------------------------------------------------------------------------------------

    async def _relayed(
        self,
        caller: Caller,
        ticket: Ticket,
        source: Source,
        method: str,
        name: str,
        own: Mapping[str, Any],
        params: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """One request to one upstream, with everything that may pass beside it."""
        relay = Relay(caller.client, self._hearing.log_level(caller))
        meta = params.get("_meta")
        passed = {key: meta[key] for key in PASSED_ON if key in meta} if isinstance(meta, dict) else {}

        async def send(extra: Mapping[str, Any]) -> bytes:
            sent = {**own, **extra, **({"_meta": passed} if passed else {})}
            return await self._broker.ask(ticket, source.name, method, sent, beside=relay)

        answers, state = params.get("inputResponses"), params.get("requestState")
        retry = Retry(
            None if answers is None else msgspec.json.encode(answers), state if isinstance(state, str) else None
        )
        subject = subject_of(method, name, msgspec.json.encode(own, order="sorted"))
        answer = await Rounds(self._seals, caller, subject).run(send, retry, input_wanted)
        if isinstance(answer, Asked):
            return _with_meta(answer.result, {})
        try:
            result: dict[str, Any] = _members(answer)
        except (msgspec.DecodeError, RecursionError):
            raise UpstreamFailed(source.name, "call", "its answer was malformed: its result is no object") from None
        result.pop("resultType", None)
        return _with_meta(result, {})

    def _may(self, caller: Caller) -> None:
        if SCOPE not in caller.scopes:
            raise Refused("forbidden", "this key may not use the tools directly", scope=SCOPE)

    def _whole(self, caller: Caller) -> Sequence[Source]:
        return self._sources(self._view_of(caller.tenant).whole)

    def _subscribable(self, caller: Caller) -> bool:
        resources = [source.capabilities.get("resources") for source in self._whole(caller)]
        return any(isinstance(offer, Mapping) and offer.get("subscribe") is True for offer in resources)

    def _features(self, caller: Caller, ticket: Ticket) -> Features:
        async def ask(upstream: str, method: str, params: Mapping[str, Any]) -> bytes:
            return await self._broker.ask(ticket, upstream, method, params)

        return Features(self._whole(caller), ask)

    def _offers(self, caller: Caller, method: str) -> bool:
        """Whether the method belongs to a capability that is advertised to this caller."""
        family = method.partition("/")[0]
        if method in ("resources/subscribe", "resources/unsubscribe"):
            return self._subscribable(caller)
        return {"completion": "completions"}.get(family, family) in self.capabilities(caller)

    def _page(
        self, caller: Caller, method: str, entries: Sequence[Any], cursor: str | None
    ) -> tuple[Sequence[Any], Mapping[str, str]]:
        """One page of a list and its ``nextCursor``. Cursors are ours, and bound to the tenant and the list."""
        start = 0
        if cursor is not None:
            try:
                start = int(self._seals.open(f"cursor of {method}", caller.tenant.name, cursor))
            except (Broken, ValueError):
                raise Refused("invalid_params", "Invalid cursor; begin again without one") from None
        end = start + PAGE
        if end >= len(entries):
            return entries[start:], {}
        sealed = self._seals.seal(f"cursor of {method}", caller.tenant.name, str(end).encode(), CURSOR_S)
        return entries[start:end], {"nextCursor": sealed}


def _shown_as(result: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    """The contents of a resource under the URIs by which the client asked for it."""
    contents: Any = result.get("contents")
    try:
        blocks = msgspec.json.decode(contents, type=list[dict[str, msgspec.Raw]])
        named = [{**block, "uri": prefix + msgspec.json.decode(block["uri"], type=str)} for block in blocks]
    except (msgspec.DecodeError, TypeError, KeyError, RecursionError):
        return result  # odd, but the upstream's own business
    return {**result, "contents": named}


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise Refused("invalid_params", f"Invalid params: {name} must be a string")
    return value


def _with_meta(result: dict[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The result with the upstream's ``_meta``, less what is said anew on each hop, and ours."""
    raw = result.get("_meta")
    value = msgspec.json.decode(raw) if isinstance(raw, msgspec.Raw) else raw
    theirs = {key: value[key] for key in value if key != SERVER_INFO} if isinstance(value, dict) else {}
    merged = {**theirs, **ours}
    if merged:
        result["_meta"] = merged
    else:
        result.pop("_meta", None)
    return result
