"""Direct mode: the tenant's tools as plain federated MCP, under names that every model provider accepts.

It exists beside code mode for clients that want no scripts, and it is the counterfactual made real: what it lists is
what ``mode="direct"`` of the context metrics counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.broker import Broker, failure_text
from gateway.catalog.view import TenantView
from gateway.errors import ErrorClass, GatewayError
from gateway.facade.accounts import Accounts, listed
from gateway.facade.base import Caller, Refused
from gateway.metering.context import call_text
from gateway.metering.meter import Part
from gateway.metering.metrics import OK
from gateway.tenancy.limits import Quotas
from gateway.tenancy.tenant import Tenant
from gateway.upstreams.base import RpcFailed

SCOPE = "direct:call"
PASSED_ON = ("traceparent", "tracestate", "baggage")
"""Members of the client's ``_meta`` that travel upstream (W3C trace context, 2026-07-28 base section)."""
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
"""Member of a result's ``_meta`` that names the server which answers: to our client that is the gateway."""
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class DirectFacade:
    """The facade of ``/mcp/direct``, and of ``/mcp`` for tenants in direct mode.

    Args:
        broker: the one door.
        view_of: the current view of a tenant.
        accounts: opens the books of each request.
        quotas: limits over time.
    """

    endpoint = "direct"

    def __init__(
        self, broker: Broker, view_of: Callable[[Tenant], TenantView], accounts: Accounts, quotas: Quotas
    ) -> None:
        self._broker = broker
        self._view_of = view_of
        self._accounts = accounts
        self._quotas = quotas

    def capabilities(self, caller: Caller) -> Mapping[str, Any]:
        return {"tools": {"listChanged": False}}

    async def introduce(self, caller: Caller) -> str:
        view = self._view_of(caller.tenant)
        text = "\n\n".join(f"{entry.name}: {entry.instructions}" for entry in view.upstreams() if entry.instructions)
        account = self._accounts.open(caller, view, endpoint="direct", method="initialize", tool="other")
        account.sent(Part.CODE_LIST, text, also=Part.DIRECT_LIST)
        await account.close(OK)
        return text

    async def list_tools(self, caller: Caller, cursor: str | None) -> Mapping[str, Any]:
        if cursor is not None:
            raise Refused("invalid_params", "Invalid cursor: this list has one page")
        self._quotas.take_request(caller.tenant)
        view = self._view_of(caller.tenant)
        account = self._accounts.open(caller, view, endpoint="direct", method="tools/list", tool="direct")
        account.listed(Part.CODE_LIST, await self._accounts.definitions(view), also=Part.DIRECT_LIST)
        await account.close(OK)
        return {"tools": [listed(tool) for tool in view.visible], "ttlMs": 0, "cacheScope": "private"}

    async def call_tool(
        self, caller: Caller, name: str, arguments: bytes, meta: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        if SCOPE not in caller.scopes:
            raise Refused("forbidden", "this key may not call tools directly", scope=SCOPE)
        view = self._view_of(caller.tenant)
        account = self._accounts.open(caller, view, endpoint="direct", method="tools/call", tool="direct")
        passed = {key: meta[key] for key in PASSED_ON if key in meta}
        try:
            self._quotas.take_request(caller.tenant)
            self._quotas.check_tokens(caller.tenant)
            _, result = await self._broker.call(account.ticket, name, arguments, meta=passed or None)
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
        except asyncio.CancelledError:
            account.abandon(ErrorClass.CANCELLED)
            raise
        usage = await account.close(ErrorClass.TOOL_ERROR if result.is_error else OK)
        answer: dict[str, Any] = _members(result.raw)
        answer["_meta"] = {**_end_to_end(answer.get("_meta")), **usage}
        answer.pop("resultType", None)
        return answer


def _end_to_end(meta: msgspec.Raw | None) -> dict[str, Any]:
    """The upstream's ``_meta`` without what is said anew on each hop; empty when it is no object."""
    value = None if meta is None else msgspec.json.decode(meta)
    return {key: value[key] for key in value if key != SERVER_INFO} if isinstance(value, dict) else {}
