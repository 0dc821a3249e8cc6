"""What a connector is, and how a call to an upstream can fail.

A connector is one live connection to one MCP server: it frames bytes, matches answers to requests and knows the era.
It does not restart itself; the supervisor (:mod:`gateway.upstreams.supervisor`) does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from gateway.errors import ErrorClass, GatewayError

Era = Literal["modern", "legacy"]
MODERN_VERSION = "2026-07-28"
LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
CALLER: ContextVar[str] = ContextVar("caller", default="")
"""For whom the current task sends its requests: an opaque key, set by whoever calls. On a connection that all callers
share, what a server says outside of an answer goes to nobody unless it can only be meant for one of them."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

Stage = Literal["spawn", "exit", "connect", "http", "handshake", "list", "call", "closed"]
"""Where an upstream failed: starting the command, its exit, the connection, an HTTP status, the handshake, …"""


class UpstreamFailed(GatewayError):
    """The upstream could not be reached, broke off, or answered something that is no MCP.

    Attributes:
        upstream: its name.
        stage: where it failed.
        reason: one line that everybody may read.
        detail: more, for the operator alone: the end of ``stderr``, an address, an excerpt of a body. Cleaned of
            declared secrets, but it is text of a foreign process, so it never becomes part of ``str(error)``.
        delivered: whether the request may have reached the server; then its outcome is unknown and nobody resends it.
        status: the HTTP status that said so, or None. A 429 makes the error class RATE_LIMITED.
    """

    def __init__(
        self,
        upstream: str,
        stage: Stage,
        reason: str,
        *,
        detail: str = "",
        delivered: bool = False,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        text = f"upstream {upstream} failed ({stage}): {reason}"
        if delivered:
            text += "; the call may have taken effect, its outcome is unknown"
        error_class = ErrorClass.RATE_LIMITED if status == 429 else ErrorClass.UPSTREAM_UNAVAILABLE
        super().__init__(error_class, text, retry_after_s=retry_after_s)
        self.upstream = upstream
        self.stage: Stage = stage
        self.reason = reason
        self.detail = detail
        self.delivered = delivered
        self.status = status


class UpstreamTimedOut(GatewayError):
    """No answer within the deadline. The upstream was told to stop; whether it did is unknown.

    Attributes:
        upstream: its name.
        what: the method that was not answered.
        timeout_s: the deadline, seconds.
    """

    def __init__(self, upstream: str, what: str, timeout_s: float) -> None:
        text = f"upstream {upstream} did not answer {what} within its deadline of {timeout_s:g} s"
        if what == "tools/call":
            text += "; the call may have taken effect"
        super().__init__(ErrorClass.UPSTREAM_TIMEOUT, text)
        self.upstream = upstream
        self.what = what
        self.timeout_s = timeout_s


class RpcFailed(GatewayError):
    """The upstream answered with a JSON-RPC error.

    Attributes:
        code: the JSON-RPC error code.
        data: its ``data``, or None.
    """

    def __init__(self, upstream: str, code: int, message: str, data: Any = None) -> None:
        super().__init__(ErrorClass.TOOL_ERROR, message)
        self.upstream = upstream
        self.code = code
        self.data = data


class InputRequired(GatewayError):
    """The server wants input from a user or a model, and whoever called has none to give.

    Modern servers answer so (``resultType: "input_required"``), legacy ones ask in the middle of a call.

    Attributes:
        upstream: its name.
        requests: what was asked for: the key of each request → its method and text in one line; the key is "" for a
            legacy server, which gives none.
        raw: the whole result object as JSON bytes; empty when a legacy server has asked.
    """

    def __init__(self, upstream: str, requests: Mapping[str, str], raw: bytes = b"") -> None:
        named = [f"{key} ({text})" if key else text for key, text in requests.items()]
        super().__init__(
            ErrorClass.TOOL_ERROR,
            f"the tool asked for input that cannot be given here: {', '.join(named) or 'an unnamed one'}",
            hint="pass it as an argument if the tool has one for it",
        )
        self.upstream = upstream
        self.requests = dict(requests)
        self.raw = raw


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the handshake or ``server/discover`` told.

    Attributes:
        era: which protocol the connection speaks.
        version: the negotiated protocol version.
        name: the server's own name (display only).
        capabilities: as sent.
        instructions: as sent, "" when absent.
    """

    era: Era
    version: str
    name: str = ""
    server_version: str = ""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    instructions: str = ""


class CallResult(msgspec.Struct, frozen=True):
    """The result of ``tools/call``, parsed once; ``raw`` is the result object as the upstream sent it.

    Attributes:
        raw: the whole result object as JSON bytes.
        content: content blocks, each a mapping with ``type``.
        structured: JSON bytes of ``structuredContent``; empty when absent.
        is_error: the upstream's ``isError``.
    """

    raw: bytes
    content: tuple[dict[str, Any], ...]
    structured: bytes
    is_error: bool


class Beside(Protocol):
    """What may pass between a server and whoever called it, beside the answer of one request.

    Attributes:
        capabilities: client capabilities to declare with this request (modern era; a legacy server knows those of the
            handshake).
        log_level: the least level of log messages that are wanted (modern era); None: none are asked for.
        wants_progress: send a ``progressToken`` with the request. The token is the connector's own.
    """

    @property
    def capabilities(self) -> Mapping[str, Any]: ...

    @property
    def log_level(self) -> str | None: ...

    @property
    def wants_progress(self) -> bool: ...

    async def notified(self, method: str, params: bytes) -> None:
        """The server said something: progress of this request, a log message, or another notification.

        Called once at a time, in the order of arrival, never after the answer. ``params`` is JSON as received, so its
        ``progressToken`` is the connector's.
        """
        ...

    async def asked(self, method: str, params: bytes) -> bytes:
        """The server asks for something during the request: ``elicitation/create``, ``sampling/createMessage``, …

        Cancelled when the request ends, or when the server takes the question back. May run several times at once.

        Returns:
            JSON bytes of the result.

        Raises:
            RpcFailed: refused; its code and message are what the server is told.
        """
        ...


class Connector(Protocol):
    """One live connection. Any number of requests may be in flight; one that fails never touches the others."""

    async def open(self, timeout_s: float) -> ServerInfo:
        """Start or reach the server and find out its era.

        Raises:
            UpstreamFailed, UpstreamTimedOut
        """
        ...

    async def request(
        self, method: str, params: Mapping[str, Any] | bytes, timeout_s: float, beside: Beside | None = None
    ) -> bytes:
        """Send one request and wait for its answer.

        Args:
            params: the params object: a mapping, or its JSON bytes ready to be sent. ``_meta`` of the modern era is
                added by the connector.
            timeout_s: seconds; then the upstream is told to stop. See :mod:`gateway.upstreams.beside` for what
                extends it.
            beside: who hears what the server says meanwhile. Without one the server is not asked to say anything, and
                its wish for input fails the call.

        Returns:
            the ``result`` object as JSON bytes, as it is.

        Raises:
            RpcFailed, UpstreamFailed, UpstreamTimedOut; InputRequired: a legacy server has asked for input, and there
            was nobody beside. When the caller is cancelled the upstream is told to stop.
        """
        ...

    async def follow(self, uris: Collection[str], timeout_s: float) -> Mapping[str, RpcFailed]:
        """Be told when these resources change; they take the place of those that were followed before.

        Must not run twice at once. Returns when the server has taken note, as far as that can be known.

        Returns:
            why it refused, for those that it refused; only servers of the legacy era do.

        Raises:
            UpstreamFailed, UpstreamTimedOut
        """
        ...

    def plan_calls(self, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
        """Get ready to call these tools, which take the place of all that were listed before.

        Args:
            tools: their definitions, each with a name.

        Returns:
            name → why it cannot be called over this connection (one clause), for those that cannot.
        """
        ...

    @property
    def closed(self) -> bool:
        """Whether the connection is no longer usable; true from the moment in which :meth:`wait_closed` is due."""
        ...

    async def wait_closed(self) -> UpstreamFailed:
        """Returns, with the reason, when the connection is no longer usable. Never raises."""
        ...

    async def close(self) -> None:
        """End the connection and everything it started. Idempotent; bounded in time."""
        ...
