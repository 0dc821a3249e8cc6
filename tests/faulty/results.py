"""How the outcome of a call is written: as it is, or as ``--result`` says."""

from __future__ import annotations

from typing import Any

from tests.faulty.catalogue import listing
from tests.faulty.faults import size
from tests.faulty.recording import Plan
from tests.faulty.rpc import Body, dumps
from tests.faulty.tools import Outcome

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # 1 × 1 pixel
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="  # no sample at all
EMOJI = "👩‍🔧🧰"  # 15 bytes of UTF-8; the first is three code points that make one sign

_FILL = "@fill@"
_IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
_AUDIO = {"type": "audio", "data": WAV, "mimeType": "audio/wav"}
_LINK = {"type": "resource_link", "uri": "test://linked", "name": "linked", "mimeType": "text/plain"}
_EMBEDDED_TEXT = {"type": "resource", "resource": {"uri": "test://text", "mimeType": "text/plain", "text": "inside"}}
_EMBEDDED_BLOB = {"type": "resource", "resource": {"uri": "test://blob", "mimeType": "image/png", "blob": PNG}}


def write(outcome: Outcome, plan: Plan, modern: dict[str, bytes]) -> Body:
    """The result object of one call.

    Args:
        modern: members that the modern era adds; empty in the legacy era.
    """
    fault = plan.first("result")
    text = {"type": "text", "text": outcome.text}
    match fault and fault.kind, fault.argument if fault else "":
        case "raw", path:
            return Body(file_bytes(path).rstrip(b"\r\n"))
        case "text", _:
            return _result([text], modern)
        case "structured", _:
            return _result([], modern, outcome.structured or dumps({"text": outcome.text}))
        case "iserror", "empty":
            return _result([], modern, is_error=True)
        case "iserror", "multi":
            parts = ("first: it failed", "second: because", "third: of this")
            return _result([{"type": "text", "text": part} for part in parts], modern, is_error=True)
        case "iserror", amount:
            broken = {"type": "text", "text": _FILL if amount else "it failed"}
            return _result([broken], modern, is_error=True, fill=size(amount or "0"))
        case "image", _:
            return _result([_IMAGE], modern)
        case "audio", _:
            return _result([_AUDIO], modern)
        case "multi", _:
            return _result([text, {**text, "text": "more"}, _IMAGE, _LINK, _EMBEDDED_TEXT, _EMBEDDED_BLOB], modern)
        case "huge", amount:
            return _result([{"type": "text", "text": _FILL}], modern, fill=size(amount))
        case "emoji", amount:
            signs = EMOJI * (size(amount or "15") // len(EMOJI.encode()) or 1)
            return _result([{"type": "text", "text": signs}], modern)
        case "schema-mismatch", how:
            return _result([text], modern, b"{}" if how == "missing" else b'{"sum":"not a number"}')
    return _result([text], modern, outcome.structured, is_error=outcome.is_error)


def deep(levels: int, modern: dict[str, bytes]) -> Body:
    """A result whose structuredContent is nested so many levels."""
    nested = b'{"a":' * levels + b"1" + b"}" * levels
    return listing({"content": b"[]", "structuredContent": nested, **modern})


def file_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _result(
    content: list[dict[str, Any]],
    modern: dict[str, bytes],
    structured: bytes | None = None,
    *,
    is_error: bool = False,
    fill: int = 0,
) -> Body:
    members = {"content": dumps(content)}
    if structured is not None:
        members["structuredContent"] = structured
    if is_error:
        members["isError"] = b"true"
    body = listing({**members, **modern})
    before, found, after = body.head.partition(_FILL.encode())
    return Body(before, fill, after) if fill and found else body
