"""The rules of the two protocol eras, as pure functions over values.

*Legacy* means the four versions that open with ``initialize``; *modern* means 2026-07-28, where every POST stands
alone. Both are served on one path; the ``MCP-Protocol-Version`` header decides (transport section of each revision).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Literal

from gateway.edge.http import Headers
from gateway.edge.wire import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    Request,
    WireError,
    parse_mirrored,
)

Era = Literal["modern", "legacy"]

MODERN = ("2026-07-28",)
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
ASSUMED_LEGACY = "2025-03-26"
"""The version of a request without the header (2025-06-18, transports, "protocol version header")."""

META_PREFIX = "io.modelcontextprotocol/"
META_VERSION = META_PREFIX + "protocolVersion"
META_CAPABILITIES = META_PREFIX + "clientCapabilities"
META_SERVER_INFO = META_PREFIX + "serverInfo"
META_SUBSCRIPTION = META_PREFIX + "subscriptionId"
META_LOG_LEVEL = META_PREFIX + "logLevel"

ROUTING_HEADERS = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")
MIRRORED_FIELD = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Which member of ``params`` the ``Mcp-Name`` header repeats."""

CACHEABLE = frozenset(
    {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}
)
"""Methods whose complete modern result carries ``ttlMs`` and ``cacheScope``."""

_MODERN_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}


def era_of(version_header: str | None) -> Era:
    """Which era a request belongs to. An unknown version is modern, and fails there by name."""
    return "legacy" if version_header is None or version_header in LEGACY else "modern"


def error_status(era: Era, code: int) -> int:
    """HTTP status of a JSON-RPC error. Legacy clients get 200 for everything that was a well-formed request.

    A header mismatch is told to a modern client that was taken for a legacy one by its header.
    """
    if era == "modern":
        return _MODERN_STATUS.get(code, 200)
    return 400 if code in (INVALID_REQUEST, PARSE_ERROR, HEADER_MISMATCH) else 200


def check_modern(request: Request, headers: Headers) -> None:
    """The ladder of 2026-07-28: the first rung that fails is the answer.

    Raises:
        WireError: -32020, -32022 or -32602, as the transport section of the revision orders them.
    """
    for name in ROUTING_HEADERS:
        if headers.count(name) > 1:
            raise WireError(HEADER_MISMATCH, f"Header mismatch: {name.decode()} appears more than once")
    body_version = request.meta.get(META_VERSION)
    if not isinstance(body_version, str) or not isinstance(request.meta.get(META_CAPABILITIES), Mapping):
        raise WireError(INVALID_PARAMS, f"params._meta must carry {META_VERSION} and {META_CAPABILITIES}")
    version = headers.get(b"mcp-protocol-version")
    if version != body_version:
        raise WireError(HEADER_MISMATCH, "Header mismatch: MCP-Protocol-Version differs from params._meta")
    if headers.get(b"mcp-method") != request.method:
        raise WireError(HEADER_MISMATCH, "Header mismatch: Mcp-Method differs from the method in the body")
    if (field := MIRRORED_FIELD.get(request.method)) is not None:
        _check_name(field, request.params, headers.get(b"mcp-name"))
    if version not in MODERN:
        raise unsupported_version(version)


def _check_name(field: str, params: bytes, header: str | None) -> None:
    value = parse_mirrored(params, field)
    if not isinstance(value, str):
        raise WireError(INVALID_PARAMS, f"params.{field} must be a string")
    if header is None or decode_header_value(header) != value:
        raise WireError(HEADER_MISMATCH, f"Header mismatch: Mcp-Name differs from params.{field}")


def unsupported_version(version: str | None) -> WireError:
    """-32022, naming what is served."""
    return WireError(
        UNSUPPORTED_VERSION,
        "Unsupported protocol version",
        {"supported": list(MODERN), "requested": version or ""},
    )


def decode_header_value(value: str) -> str | None:
    """Undo ``=?base64?…?=`` (2026-07-28, "header encoding"). A damaged value is None, which matches nothing."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    payload = value[9:-2]
    try:
        raw = base64.b64decode(payload, validate=True)
        return raw.decode() if base64.b64encode(raw).decode() == payload else None
    except (binascii.Error, UnicodeDecodeError):
        return None
