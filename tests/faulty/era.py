"""The two protocol eras: which one a request belongs to, and what a correct server refuses.

The order of the checks and their codes are the specification's of 2026-07-28 (modern) and of the four versions with a
handshake (legacy). Not checked: ``Mcp-Param-*`` headers; a test reads them from the log.
"""

from __future__ import annotations

import base64
import binascii

from tests.faulty.recording import Request
from tests.faulty.rpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Incoming,
    Refusal,
    dumps,
)
from tests.faulty.switches import Switches

MODERN = "2026-07-28"
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
META = "io.modelcontextprotocol/"
VERSION_HEADER = "mcp-protocol-version"

_NAME_MIRRORS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def is_modern(switches: Switches, message: Incoming, version_header: str | None) -> bool:
    """The era of a request, among those this server knows. ``version_header`` is None on stdio, or when absent."""
    if switches.era != "both":
        return switches.era == "modern"
    if version_header is not None:
        return version_header not in LEGACY
    return message.method == "server/discover" or f"{META}protocolVersion" in message.meta


def claimed_legacy(switches: Switches, asked: object) -> str:
    """The version that ``initialize`` answers with."""
    if switches.protocol is not None and (switches.era == "legacy" or switches.protocol in LEGACY):
        return switches.protocol
    return asked if isinstance(asked, str) and asked in LEGACY else LEGACY[-1]


def claimed_modern(switches: Switches) -> list[str]:
    """The versions that ``server/discover`` lists."""
    if switches.protocol is not None and (switches.era == "modern" or switches.protocol not in LEGACY):
        return [switches.protocol]
    return [MODERN]


def check(request: Request, *, over_http: bool) -> None:
    """Refuse what a correct server refuses.

    Raises:
        Refusal
    """
    if request.message.problem is not None:
        raise request.message.problem
    if request.modern:
        _check_modern(request, over_http)
    elif not over_http and (request.session is None or request.session.version is None):
        if request.message.method in ("initialize", "ping", "server/discover"):
            return
        raise Refusal(INVALID_REQUEST, "Not initialized")


def http_status(code: int, *, modern: bool) -> int:
    """The HTTP status of a JSON-RPC error that the protocol itself raises."""
    if modern:
        return {METHOD_NOT_FOUND: 404}.get(code, 400)
    return 400 if code in (-32700, INVALID_REQUEST) else 200


def _check_modern(request: Request, over_http: bool) -> None:
    message, meta = request.message, request.message.meta
    supported = claimed_modern(request.plan.switches)
    if message.method in ("initialize", "ping") and f"{META}protocolVersion" not in meta:
        raise Refusal(
            METHOD_NOT_FOUND, f"This server speaks {', '.join(supported)} only", dumps({"supported": supported})
        )
    if over_http:
        for name in (VERSION_HEADER, "mcp-method", "mcp-name"):
            if sum(key.lower() == name for key, _ in request.headers) > 1:
                raise Refusal(HEADER_MISMATCH, f"{name} occurs twice")
    version, capabilities = meta.get(f"{META}protocolVersion"), meta.get(f"{META}clientCapabilities")
    if not isinstance(version, str) or not isinstance(capabilities, dict):
        raise Refusal(INVALID_PARAMS, "_meta lacks protocolVersion or clientCapabilities")
    if over_http:
        _check_headers(request, version)
    if version not in supported:
        raise Refusal(
            UNSUPPORTED_VERSION,
            "Unsupported protocol version",
            dumps({"supported": supported, "requested": version}),
        )


def _check_headers(request: Request, version: str) -> None:
    message = request.message
    if request.header(VERSION_HEADER) != version:
        raise Refusal(HEADER_MISMATCH, "MCP-Protocol-Version differs from _meta")
    if request.header("mcp-method") != message.method:
        raise Refusal(HEADER_MISMATCH, "Mcp-Method differs from method")
    mirrored = _NAME_MIRRORS.get(message.method or "")
    if mirrored is not None:
        header = request.header("mcp-name")
        if header is None or dumps(_decoded(header)).decode() != _canonical(message.params.get(mirrored)):
            raise Refusal(HEADER_MISMATCH, f"Mcp-Name differs from params.{mirrored}")


def _canonical(text: str | None) -> str | None:
    read = Incoming(params={"name": text}).name if text is not None else None
    return None if read is None else dumps(read).decode()


def _decoded(value: str) -> str | None:
    """A header value, or what it carries as ``=?base64?…?=``; None when that is damaged."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[len("=?base64?") : -2], validate=True).decode()
    except (binascii.Error, ValueError):
        return None
