"""What a connector is, and how a call to an upstream can fail.

A connector is one live connection to one MCP server: it frames bytes, matches answers to requests and knows the era.
It does not restart itself; the supervisor (:mod:`gateway.upstreams.supervisor`) does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from gateway.errors import ErrorClass, GatewayError

Era = Literal["modern", "legacy"]
MODERN_VERSION = "2026-07-28"
LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
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
    """The tool wants input from a user (``resultType: "input_required"``), and a script has no user to ask.

    Attributes:
        upstream: its name.
        requests: what was asked for: the key of each request → its method (``elicitation/create``, …).
    """

    def __init__(self, upstream: str, requests: Mapping[str, str]) -> None:
        wanted = ", ".join(f"{key} ({method})" for key, method in requests.items()) or "an unnamed one"
        super().__init__(
            ErrorClass.TOOL_ERROR,
            f"the tool asked for input that cannot be given here: {wanted}",
            hint="pass it as an argument if the tool has one for it",
        )
        self.upstream = upstream
        self.requests = dict(requests)


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


class Connector(Protocol):
    """One live connection. Any number of requests may be in flight; one that fails never touches the others."""

    async def open(self, timeout_s: float) -> ServerInfo:
        """Start or reach the server and find out its era.

        Raises:
            UpstreamFailed, UpstreamTimedOut
        """
        ...

    async def request(self, method: str, params: Mapping[str, Any] | bytes, timeout_s: float) -> bytes:
        """Send one request and wait for its answer.

        Args:
            params: the params object: a mapping, or its JSON bytes ready to be sent. ``_meta`` of the modern era is
                added by the connector.
            timeout_s: seconds; then the upstream is told to stop.

        Returns:
            the ``result`` object as JSON bytes.

        Raises:
            RpcFailed, UpstreamFailed, UpstreamTimedOut. When the caller is cancelled the upstream is told to stop.
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
