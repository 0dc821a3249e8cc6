"""What the edge asks of the facade, and how the facade refuses.

Two facades implement :class:`Facade`: code mode (:mod:`gateway.facade.code`) with its two tools, and direct mode
(:mod:`gateway.facade.direct`), which lists and calls the tenant's tools themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gateway.facade.changes import Subscription
from gateway.tenancy.tenant import Tenant

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Rising (2025-11-25, logging)."""


class Client(Protocol):
    """The client's end of one exchange: what it declared, and the ways to reach it before the answer.

    Attributes:
        capabilities: what it can be asked for (``sampling``, ``elicitation``, ``roots``).
        retries: an answer may ask it for input, and it retries (2026-07-28, multi round-trip requests).
        can_be_asked: requests reach it while a call runs (the ``initialize`` era, on its event stream).
        wants_progress: it sent a progress token and takes an event stream.
        log_level: log messages of a call from this level on are sent; None: none are.
    """

    capabilities: Mapping[str, Any]
    retries: bool
    can_be_asked: bool
    wants_progress: bool
    log_level: str | None

    async def progress(self, done: float, message: str = "", total: float | None = None) -> None:
        """Report progress; ``done`` must grow. Does nothing when the client did not ask for it."""
        ...

    async def notify(self, method: str, params: bytes) -> None:
        """Send a notification of this call; dropped when the client takes no event stream."""
        ...

    async def ask(self, method: str, params: bytes) -> bytes:
        """Send a request and wait for the answer: JSON bytes of its result.

        Raises:
            ClientRefused: it answered with an error, cannot be asked, or did not answer in time.
        """
        ...


class ClientRefused(Exception):
    """The client did not give what it was asked for.

    Args:
        code: JSON-RPC code of its refusal.
        message: one sentence.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class QuietClient:
    """A client that declared nothing and hears nothing before its answer."""

    def __init__(self) -> None:
        self.capabilities: Mapping[str, Any] = {}
        self.retries = False
        self.can_be_asked = False
        self.wants_progress = False
        self.log_level: str | None = None

    async def progress(self, done: float, message: str = "", total: float | None = None) -> None:
        """Nobody asked."""

    async def notify(self, method: str, params: bytes) -> None:
        """Nobody listens."""

    async def ask(self, method: str, params: bytes) -> bytes:
        raise ClientRefused(-32601, "the client of this request cannot be asked for anything")


QUIET: Client = QuietClient()


def always() -> bool:
    """For callers without a key."""
    return True


@dataclass(frozen=True, slots=True)
class Retry:
    """What a client sends when it retries a request that asked it for input.

    Attributes:
        answers: JSON bytes of ``inputResponses``, or None.
        state: the ``requestState`` it was given, or None.
    """

    answers: bytes | None = None
    state: str | None = None


NO_RETRY = Retry()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: made by the edge once a request is authenticated, kept for that request only.

    Attributes:
        request_id: ours, unique; in logs, ledger and ``_meta``.
        tenant: the tenant snapshot that the request began with.
        key_id: public id of the API key.
        scopes: what the key may do.
        protocol: the MCP version the client speaks.
        session: its session id in the ``initialize`` era, else "".
        client: its end of the exchange.
        live: whether its key still holds; what runs longer than a moment asks again.
    """

    request_id: str
    tenant: Tenant
    key_id: str
    scopes: frozenset[str]
    protocol: str
    session: str = ""
    client: Client = QUIET
    live: Callable[[], bool] = always


class Refused(Exception):
    """A request that no model can mend, only the client: unknown tool or cursor, missing scope.

    Args:
        reason: ``invalid_params``; ``unknown_method``; ``forbidden`` when the key lacks a scope; ``rpc_error`` when an
            upstream refused.
        message: one sentence.
        scope: the missing scope.
        code, data: the upstream's JSON-RPC error, passed on in direct mode.
    """

    def __init__(
        self,
        reason: Literal["invalid_params", "unknown_method", "forbidden", "rpc_error"],
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
        self, caller: Caller, name: str, arguments: bytes, meta: Mapping[str, Any], retry: Retry = NO_RETRY
    ) -> Mapping[str, Any]:
        """The result of ``tools/call`` without the fields of one era; values may be raw JSON.

        ``arguments`` is the raw JSON of an object. When the caller is cancelled, everything it started ends with it.
        """
        ...

    async def request(self, caller: Caller, method: str, params: bytes) -> Mapping[str, Any]:
        """The result of any other method. Raises Refused(unknown_method) for what this facade does not serve."""
        ...

    def announces(self, caller: Caller) -> frozenset[str]:
        """Methods of the notifications that :meth:`subscribed` can bring; empty when nothing here ever changes."""
        ...

    def subscribed(
        self, caller: Caller, methods: frozenset[str], uris: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[Subscription]:
        """News for an open stream, for as long as the block lasts.

        Args:
            methods: of the notifications that it wants.
            uris: resources whose updates it wants. Those that nobody serves are left out of ``wanted.uris``; a stream
                of the ``initialize`` era names none, its session subscribes to them by requests.
        """
        ...
