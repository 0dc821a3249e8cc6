"""Which facade ``/mcp`` shows a tenant: the two tools, or, in direct mode and for a handful of tools, the tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from gateway.facade.base import NO_RETRY, Caller, Facade, Retry
from gateway.facade.changes import Subscription


class ModeFacade:
    """Chooses per request, by the tenant's mode.

    Args:
        code: code mode.
        direct: direct mode.
        shows_tools: whether this caller gets direct mode.
    """

    endpoint = "code"

    def __init__(self, code: Facade, direct: Facade, shows_tools: Callable[[Caller], bool]) -> None:
        self._code = code
        self._direct = direct
        self._shows_tools = shows_tools

    def _facade(self, caller: Caller) -> Facade:
        return self._direct if self._shows_tools(caller) else self._code

    def capabilities(self, caller: Caller) -> Mapping[str, Any]:
        return self._facade(caller).capabilities(caller)

    async def introduce(self, caller: Caller) -> str:
        return await self._facade(caller).introduce(caller)

    async def list_tools(self, caller: Caller, cursor: str | None) -> Mapping[str, Any]:
        return await self._facade(caller).list_tools(caller, cursor)

    async def call_tool(
        self, caller: Caller, name: str, arguments: bytes, meta: Mapping[str, Any], retry: Retry = NO_RETRY
    ) -> Mapping[str, Any]:
        return await self._facade(caller).call_tool(caller, name, arguments, meta, retry)

    async def request(self, caller: Caller, method: str, params: bytes) -> Mapping[str, Any]:
        return await self._facade(caller).request(caller, method, params)

    def announces(self, caller: Caller) -> frozenset[str]:
        return self._facade(caller).announces(caller)

    def subscribed(
        self, caller: Caller, methods: frozenset[str], uris: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[Subscription]:
        return self._facade(caller).subscribed(caller, methods, uris)
