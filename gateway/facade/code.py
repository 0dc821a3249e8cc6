"""Code mode: two constant tools in front of everything the tenant may use."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import msgspec

from gateway.broker import Broker
from gateway.catalog.view import TenantView
from gateway.errors import ErrorClass, GatewayError
from gateway.facade.accounts import Account, Accounts
from gateway.facade.answer import error_text, script_answer
from gateway.facade.base import NO_RETRY, Caller, Refused, Retry
from gateway.facade.changes import Subscription, Wanted
from gateway.facade.definitions import DOCS_SEARCH, EXECUTE_CODE, INSTRUCTIONS, TOOLS
from gateway.facade.docs import DocsQuery, DocsSearch
from gateway.facade.script import Script
from gateway.kernels.base import MAX_CODE_BYTES, ExecError, ExecRequest, ExecUsage, Kernel
from gateway.metering.context import compact
from gateway.metering.meter import Part
from gateway.metering.metrics import OK
from gateway.tenancy.limits import Quotas
from gateway.tenancy.tenant import Tenant

SCOPES = {DOCS_SEARCH: "docs:read", EXECUTE_CODE: "code:execute"}
PARTS = {
    DOCS_SEARCH: (Part.CODE_DOCS_QUERY, Part.CODE_DOCS),
    EXECUTE_CODE: (Part.CODE_CALL, Part.CODE_RESULT),
}
"""What the model writes and reads of each tool."""
_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode
_LIST = {"tools": TOOLS, "ttlMs": 3_600_000, "cacheScope": "public"}


class CodeFacade:
    """The facade of ``/mcp``.

    Args:
        broker: the one door for calls inside scripts.
        kernels: running kernels by the name tenants choose them by.
        view_of: the current view of a tenant.
        accounts: opens the books of each request.
        quotas: limits over time.
        docs: answers docs_search.
    """

    endpoint = "code"

    def __init__(
        self,
        broker: Broker,
        kernels: Mapping[str, Kernel],
        view_of: Callable[[Tenant], TenantView],
        accounts: Accounts,
        quotas: Quotas,
        docs: DocsSearch,
    ) -> None:
        self._broker = broker
        self._kernels = kernels
        self._view_of = view_of
        self._accounts = accounts
        self._quotas = quotas
        self._docs = docs

    def capabilities(self, caller: Caller) -> Mapping[str, Any]:
        return {"tools": {"listChanged": False}}

    async def introduce(self, caller: Caller) -> str:
        self._quotas.take_request(caller.tenant)
        view = self._view_of(caller.tenant)
        account = self._accounts.open(caller, view, endpoint="code", method="initialize", tool="other")
        account.sent(Part.CODE_LIST, INSTRUCTIONS)
        for entry in view.upstreams():
            account.sent(Part.DIRECT_LIST, entry.instructions)
        await account.close(OK)
        return INSTRUCTIONS

    async def list_tools(self, caller: Caller, cursor: str | None) -> Mapping[str, Any]:
        if cursor is not None:
            raise Refused("invalid_params", "Invalid cursor: this list has one page")
        self._quotas.take_request(caller.tenant)
        view = self._view_of(caller.tenant)
        account = self._accounts.open(caller, view, endpoint="code", method="tools/list", tool="other")
        account.listed(Part.CODE_LIST, self._accounts.facade_definitions(TOOLS))
        account.listed(Part.DIRECT_LIST, await self._accounts.definitions(view))
        await account.close(OK)
        return _LIST

    async def request(self, caller: Caller, method: str, params: bytes) -> Mapping[str, Any]:
        raise Refused("unknown_method", f"Method not found: {method[:64]}")

    def announces(self, caller: Caller) -> frozenset[str]:
        # two constant tools: nothing ever changes, and clients that ignore announcements miss nothing
        return frozenset()

    def subscribed(
        self, caller: Caller, methods: frozenset[str], uris: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[Subscription]:
        return nullcontext(Subscription(Wanted(frozenset())))

    async def call_tool(
        self, caller: Caller, name: str, arguments: bytes, meta: Mapping[str, Any], retry: Retry = NO_RETRY
    ) -> Mapping[str, Any]:
        if name not in SCOPES:
            raise Refused(
                "invalid_params",
                f"Unknown tool: {name[:128]}. This server has docs_search and execute_code; "
                "all other tools are called inside execute_code: await server__tool(arg=1)",
            )
        if SCOPES[name] not in caller.scopes:
            raise Refused("forbidden", f"this key may not use {name}", scope=SCOPES[name])
        account = self._accounts.open(
            caller, self._view_of(caller.tenant), endpoint="code", method="tools/call", tool=name
        )
        asked, answered = PARTS[name]
        account.sent(asked, _written(name, arguments))
        handle = self._docs_search if name == DOCS_SEARCH else self._execute_code
        try:
            self._quotas.take_request(caller.tenant)
            self._quotas.check_tokens(caller.tenant)
            return await handle(caller, account, _arguments(arguments))
        except GatewayError as failed:
            self._accounts.rejected(caller.tenant, failed.error_class)
            text = error_text(ExecError(failed.error_class, failed.message, hint=_hint(failed)), account.ticket.calls)
            account.sent(answered, text)
            return _result(text, True, await account.close(failed.error_class))
        except asyncio.CancelledError:
            account.abandon(ErrorClass.CANCELLED)
            raise

    # ---- the two tools ---------------------------------------------------------------------------------------------

    async def _docs_search(self, caller: Caller, account: Account, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        text = await asyncio.to_thread(self._docs.answer, account.ticket.view, DocsQuery.parse(arguments))
        account.sent(Part.CODE_DOCS, text)
        return _result(text, False, await account.close(OK))

    async def _execute_code(self, caller: Caller, account: Account, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        code = _code(arguments)
        tenant, view = caller.tenant, account.ticket.view
        kernel = self._kernels.get(tenant.kernel)
        if kernel is None:
            raise GatewayError(
                ErrorClass.KERNEL_UNAVAILABLE,
                f"the kernel {tenant.kernel!r} of this tenant is not running",
                hint="the operator sees the reason with: gateway doctor",
            )

        async def search_docs(arguments: Mapping[str, Any]) -> str:
            # the same answer; the text stays in the sandbox, so it is not part of this one
            return await asyncio.to_thread(self._docs.answer, view, DocsQuery.parse(arguments))

        def cancelled(usage: ExecUsage) -> None:
            account.ran(tenant.kernel, usage.cpu_ms)
            self._accounts.metrics.kernel(tenant.kernel).executed(ErrorClass.CANCELLED, usage.wall_ms / 1000)

        script = Script(self._broker, account.ticket, tenant, search_docs, caller.client.progress)
        with self._quotas.execution_slot(tenant):
            deadline = asyncio.get_running_loop().time() + tenant.manifest.wall_ms / 1000
            result = await kernel.run(
                ExecRequest(
                    caller.request_id,
                    tenant.name,
                    code,
                    tenant.manifest,
                    deadline,
                    script.functions,
                    on_cancelled=cancelled,
                )
            )
        account.ran(tenant.kernel, result.usage.cpu_ms)
        outcome = OK if result.error is None else result.error.error_class
        self._accounts.metrics.kernel(tenant.kernel).executed(outcome, result.usage.wall_ms / 1000)
        answer = await script_answer(result, account.ticket.calls, tenant.manifest.max_output_tokens, self._count)
        account.sent(Part.CODE_RESULT, answer.text)
        return _result(answer.text, answer.is_error, await account.close(outcome))

    async def _count(self, text: str) -> int:
        return (await self._accounts.meter.count(text)).tokens


def _arguments(raw: bytes) -> dict[str, Any]:
    try:
        return _decode_arguments(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise GatewayError(ErrorClass.INVALID_ARGUMENTS, "the arguments are no valid JSON object") from None


class _Script(msgspec.Struct):
    code: str


_decode_script = msgspec.json.Decoder(_Script).decode


def _written(name: str, arguments: bytes) -> str:
    """What the model wrote: the script as its plain text, everything else as compact JSON. Also of what is refused."""
    if name == EXECUTE_CODE:
        try:
            return _decode_script(arguments).code
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return compact(arguments)


_KINDS = {
    str: "empty",
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "an array",
    dict: "an object",
}


def _code(arguments: Mapping[str, Any]) -> str:
    code = arguments.get("code")
    if not isinstance(code, str) or not code.strip():
        kind = _KINDS[type(code)] if "code" in arguments else "missing"
        raise GatewayError(
            ErrorClass.INVALID_ARGUMENTS, f"code must be a non-empty string; it is {kind}", hint='{"code": "1 + 1"}'
        )
    if extra := sorted(set(arguments) - {"code"}):
        raise GatewayError(
            ErrorClass.INVALID_ARGUMENTS, f"unknown argument {extra[0][:64]!r}; execute_code takes only code"
        )
    size = len(code.encode("utf-8", "surrogatepass"))
    if size > MAX_CODE_BYTES:
        raise GatewayError(ErrorClass.INVALID_ARGUMENTS, f"the script has {size} bytes; the limit is {MAX_CODE_BYTES}")
    return code


def _hint(failed: GatewayError) -> str | None:
    if failed.hint is None and failed.retry_after_s is not None:
        return f"try again in {math.ceil(failed.retry_after_s)} s"
    return failed.hint


def _result(text: str, is_error: bool, meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """One text block and no structuredContent: it would be counted twice in a context."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error, "_meta": meta}
