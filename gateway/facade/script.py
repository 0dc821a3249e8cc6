"""What a script may call and what it gets back: the bridge between a sandbox and the broker.

A script sees plain async functions. Behind each stands the broker's one door; this module only turns the guest's
arguments into the JSON object of a tool call, and the tool's result into the plain value a script wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from gateway.broker import Broker, Ticket
from gateway.catalog.tool import Tool
from gateway.errors import ErrorClass, GatewayError
from gateway.kernels.base import MAX_ARGUMENT_BYTES, MAX_RESULT_BYTES, Functions, HostFunction
from gateway.metering.context import result_text
from gateway.metering.metrics import OK
from gateway.tenancy.tenant import Tenant
from gateway.upstreams.base import CallResult

CALL_TOOL = ("call_tool", "callTool")
SEARCH_DOCS = ("search_docs", "docs_search")
NOT_INSIDE = {"execute_code": "you are already inside execute_code: call the tools directly"}

Progress = Callable[[float, str], Awaitable[None]]
"""``await progress(done, message)``; ``done`` grows."""
SearchDocs = Callable[[Mapping[str, Any]], Awaitable[str]]
"""The arguments of docs_search → its answer."""


class Script:
    """The functions of one execution, with its call budget.

    Args:
        broker: the one door.
        ticket: the request this script runs for.
        tenant: its limits.
        search_docs: answers ``await search_docs("…")``, which takes what docs_search takes.
        progress: told about every finished call.

    Mutable state: how many calls were made and how many are in flight; the limits of the manifest are exact because
    only the event loop touches them.
    """

    def __init__(
        self, broker: Broker, ticket: Ticket, tenant: Tenant, search_docs: SearchDocs, progress: Progress
    ) -> None:
        self._broker = broker
        self._ticket = ticket
        self._max_calls = tenant.manifest.max_tool_calls
        self._parallel = asyncio.Semaphore(tenant.manifest.max_parallel_calls)
        self._search_docs = search_docs
        self._progress = progress
        self._made = 0
        self._done = 0

    @property
    def functions(self) -> Functions:
        return Functions(self._resolve)

    def _resolve(self, name: str) -> HostFunction | None:
        """Asked for every free name of the script, so it only looks up; unknown tools stay a NameError of the guest."""
        if name in CALL_TOOL:
            return self._call_tool
        if name in SEARCH_DOCS:
            return self._search
        if name in NOT_INSIDE:
            return _refuse(NOT_INSIDE[name])
        if "__" not in name or name.startswith("__"):
            return None

        async def tool_function(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            return await self._call(name, _arguments(name, args, kwargs))

        # an unknown name gets a function too: awaiting it says UNKNOWN_TOOL with the nearest names, which repairs
        # more scripts than a bare NameError
        return tool_function

    async def _call_tool(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not args or not isinstance(args[0], str) or len(args) > 2:
            raise GatewayError(
                ErrorClass.INVALID_ARGUMENTS,
                "call_tool takes the tool's name and its arguments",
                hint='await call_tool("server__tool", {"arg": 1})',
            )
        own = args[0].strip()
        if own in SEARCH_DOCS:
            return await self._search(args[1:], kwargs)
        if own in NOT_INSIDE:
            return await _refuse(NOT_INSIDE[own])(args, kwargs)
        return await self._call(args[0], _arguments(args[0], args[1:], kwargs))

    async def _search(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if len(args) == 1 and isinstance(args[0], str):
            args = ({"query": args[0]},)
        self._count_call()
        async with self._parallel:
            return await self._search_docs(_arguments("search_docs", args, kwargs))

    def _count_call(self) -> None:
        """Searches count too: they cost the gateway as much as a call. Raises GatewayError(CALL_LIMIT)."""
        if self._made >= self._max_calls:
            raise GatewayError(
                ErrorClass.CALL_LIMIT,
                f"this script has used all of its {self._max_calls} tool calls",
                hint="narrow the task, or ask the operator for a higher maxToolCalls",
            )
        self._made += 1

    async def _call(self, spelling: str, arguments: Mapping[str, Any]) -> Any:
        self._count_call()
        try:
            body = orjson.dumps(arguments)
        except (TypeError, ValueError) as error:
            raise GatewayError(ErrorClass.INVALID_ARGUMENTS, f"the arguments are no JSON values: {error}") from None
        if len(body) > MAX_ARGUMENT_BYTES:
            raise GatewayError(
                ErrorClass.INVALID_ARGUMENTS, f"the arguments are {len(body)} bytes; the limit is {MAX_ARGUMENT_BYTES}"
            )
        async with self._parallel:
            tool, result = await self._broker.call(self._ticket, spelling, body, value=arguments)
        self._done += 1
        await self._progress(float(self._done), f"{tool.identifier}: {self._ticket.calls[-1].outcome or OK}")
        return plain_value(tool, result)


def plain_value(tool: Tool, result: CallResult) -> Any:
    """What ``await tool()`` gives a script.

    In this order: a failed tool raises; structuredContent, unwrapped where FastMCP wrapped it; text that parses as
    JSON; text; else the list of content blocks.

    Raises:
        GatewayError: TOOL_ERROR with the tool's own text; OUTPUT_LIMIT when the result is too large to hand over.
    """
    if result.is_error:
        text = result_text(result.content, result.structured).strip() or "the tool failed without a message"
        raise GatewayError(ErrorClass.TOOL_ERROR, f"{tool.identifier}: {text[:4000]}")
    if len(result.raw) > MAX_RESULT_BYTES:
        raise GatewayError(
            ErrorClass.OUTPUT_LIMIT,
            f"{tool.identifier} returned {len(result.raw)} bytes; the limit for a script is {MAX_RESULT_BYTES}",
            hint="ask the tool for less, for example with a filter or a page size",
        )
    if result.structured and result.structured != b"null":
        try:
            value = orjson.loads(result.structured)
        except orjson.JSONDecodeError as error:
            # too deep, or numbers that are no JSON
            raise GatewayError(
                ErrorClass.TOOL_ERROR, f"{tool.identifier} answered with unusable structuredContent: {error}"
            ) from None
        return value["result"] if tool.wraps_result and isinstance(value, dict) and set(value) == {"result"} else value
    if all(block.get("type") == "text" for block in result.content):
        text = "\n".join(str(block.get("text", "")) for block in result.content)
        return _json_or_text(text)
    return list(result.content)


def _json_or_text(text: str) -> Any:
    """Text that is JSON as its value, else as it is. A whole number that JSON readers would round stays text."""
    head = text.lstrip()[:1]
    if not head or head not in '{["-0123456789tfn':
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text if isinstance(value, float) and text.strip().lstrip("-").isdigit() else value


def _arguments(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keywords, or one mapping (for argument names that are no identifiers), or both together."""
    if not args:
        return kwargs
    if len(args) == 1 and (args[0] is None or isinstance(args[0], Mapping)):
        return {**(args[0] or {}), **kwargs}
    raise GatewayError(
        ErrorClass.INVALID_ARGUMENTS,
        f"{name} takes keyword arguments, or one dict of arguments",
        hint=f"await {name}(arg=1)",
    )


def _refuse(message: str) -> HostFunction:
    async def refused(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise GatewayError(ErrorClass.UNKNOWN_TOOL, message)

    return refused
