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
        delivered: whether the request may have reached the server; then its outcome is unknown and nobody resends it.
    """

    def __init__(self, upstream: str, stage: Stage, reason: str, *, delivered: bool = False) -> None:
        text = f"upstream {upstream} failed ({stage}): {reason}"
        if delivered:
            text += "; the call may have taken effect, its outcome is unknown"
        super().__init__(ErrorClass.UPSTREAM_UNAVAILABLE, text)
        self.upstream = upstream
        self.stage: Stage = stage
        self.reason = reason
        self.delivered = delivered


class UpstreamTimedOut(GatewayError):
    """No answer within the deadline. The upstream was told to stop; whether it did is unknown."""

    def __init__(self, upstream: str, what: str, timeout_s: float) -> None:
        super().__init__(
            ErrorClass.UPSTREAM_TIMEOUT,
            f"upstream {upstream} did not answer {what} within its deadline of {timeout_s:g} s; "
            "the call may have taken effect",
        )
        self.upstream = upstream


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

    async def wait_closed(self) -> UpstreamFailed:
        """Returns, with the reason, when the connection is no longer usable. Never raises."""
        ...

    async def close(self) -> None:
        """End the connection and everything it started. Idempotent; bounded in time."""
        ...
