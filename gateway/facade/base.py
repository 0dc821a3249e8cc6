"""What the edge asks of the facade, and how the facade refuses.

Two facades implement :class:`Facade`: code mode (:mod:`gateway.facade.code`) with its two tools, and direct mode
(:mod:`gateway.facade.direct`), which lists and calls the tenant's tools themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gateway.tenancy.tenant import Tenant

Progress = Callable[[float, str], Awaitable[None]]
"""``await progress(done, message)``; ``done`` must grow. Does nothing when the client did not ask for progress."""


async def no_progress(done: float, message: str) -> None:
    """For clients that did not ask."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: made by the edge once a request is authenticated, kept for that request only.

    Attributes:
        request_id: ours, unique; in logs, ledger and ``_meta``.
        tenant: the tenant snapshot that the request began with.
        key_id: public id of the API key.
        scopes: what the key may do.
        protocol: the MCP version the client speaks.
        progress: how to report progress.
    """

    request_id: str
    tenant: Tenant
    key_id: str
    scopes: frozenset[str]
    protocol: str
    progress: Progress = no_progress


class Refused(Exception):
    """A request that no model can mend, only the client: unknown tool or cursor, missing scope.

    Args:
        reason: ``invalid_params``; ``forbidden`` when the key lacks a scope; ``rpc_error`` when an upstream refused.
        message: one sentence.
        scope: the missing scope.
        code, data: the upstream's JSON-RPC error, passed on in direct mode.
    """

    def __init__(
        self,
        reason: Literal["invalid_params", "forbidden", "rpc_error"],
        message: str,
        *,
        scope: str = "",
        code: int | None = None,
        data: Any = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.scope = scope
        self.code = code
        self.data = data


class Facade(Protocol):
    """One way of showing a tenant its tools. All methods may raise Refused, or GatewayError for a limit."""

    endpoint: str

    def capabilities(self, caller: Caller) -> Mapping[str, Any]:
        """Server capabilities to advertise; exactly what the other methods can answer."""
        ...

    async def introduce(self, caller: Caller) -> str:
        """The instructions sent with ``initialize`` or ``server/discover``; they are metered here."""
        ...

    async def list_tools(self, caller: Caller, cursor: str | None) -> Mapping[str, Any]:
        """The result of ``tools/list`` without the fields of one era."""
        ...

    async def call_tool(
        self, caller: Caller, name: str, arguments: bytes, meta: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The result of ``tools/call`` without the fields of one era; values may be raw JSON.

        ``arguments`` is the raw JSON of an object. When the caller is cancelled, everything it started ends with it.
        """
        ...
