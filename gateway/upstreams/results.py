"""Reading the result of ``tools/call``, leniently: odd results are kept as far as they make sense."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.upstreams.base import CallResult, InputRequired, UpstreamFailed
from gateway.upstreams.redact import Redactor


class _Result(msgspec.Struct):
    structured: msgspec.Raw | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="structuredContent")


_result = msgspec.json.Decoder(_Result)


def parse_call_result(raw: bytes, upstream: str = "") -> CallResult:
    """The result object of one call.

    Content that is missing or no list is empty; blocks that are no objects or have no ``type`` are dropped;
    ``structuredContent: null`` is what many servers send for none, and counts as none.

    Args:
        raw: JSON bytes of the ``result`` member.
        upstream: for the errors.

    Raises:
        InputRequired: the tool asked for input from a user.
        UpstreamFailed: the result is no JSON object, or of a type that we do not know.
    """
    try:
        result = msgspec.json.decode(raw, type=dict[str, Any])  # all of it: what goes on must be sound to its last byte
        structured = _result.decode(raw).structured
    except RecursionError:
        raise _malformed(upstream, "its result is nested too deeply") from None
    except msgspec.DecodeError:
        raise _malformed(upstream, "its result is no JSON object that can be read") from None
    kind = result.get("resultType", "complete")  # legacy servers send none
    if kind == "input_required":
        raise InputRequired(upstream, _wanted(result.get("inputRequests")), raw)
    if kind != "complete":
        raise _malformed(upstream, "its result is of an unknown type")
    content = result.get("content")
    blocks = content if isinstance(content, list) else []
    return CallResult(
        raw=raw,
        content=tuple(block for block in blocks if isinstance(block, dict) and isinstance(block.get("type"), str)),
        structured=b"" if structured is msgspec.UNSET or result["structuredContent"] is None else bytes(structured),
        is_error=result.get("isError") is True,
    )


def _wanted(requests: Any) -> dict[str, str]:
    """Key → what each input request asks for, bounded."""
    if not isinstance(requests, dict):
        return {}
    named = {}
    for key, request in list(requests.items())[:10]:
        method = request.get("method") if isinstance(request, dict) else None
        if isinstance(method, str):
            named[_line(key, 100)] = what_is_asked(method, request.get("params"))
        else:
            named[_line(key, 100)] = "unknown method"
    return named


def what_is_asked(method: str, params: Any) -> str:
    """One bounded line about a server's request for input: ``elicitation/create: What is your name?``.

    It is text of the upstream that a model will read.

    Args:
        params: decoded JSON: the ``message`` of an elicitation, or the last text of the messages to sample from.
    """
    text = None
    if isinstance(params, dict):
        text = params.get("message")
        messages = params.get("messages")
        if text is None and isinstance(messages, list) and messages and isinstance(messages[-1], dict):
            content = messages[-1].get("content")
            block = content[-1] if isinstance(content, list) and content else content
            text = block.get("text") if isinstance(block, dict) else None
    shown = _line(text, 200) if isinstance(text, str) else ""
    return f"{_line(method, 100)}: {shown}" if shown else _line(method, 100)


def input_required(upstream: str, method: str, params: bytes) -> InputRequired:
    """The failure of a call during which a legacy server has asked for input.

    Args:
        params: JSON bytes of its request's parameters.
    """
    try:
        decoded = msgspec.json.decode(params)
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    return InputRequired(upstream, {"": what_is_asked(method, decoded)})


_line = Redactor(()).one_line


def _malformed(upstream: str, reason: str) -> UpstreamFailed:
    return UpstreamFailed(upstream, "call", f"its answer was malformed: {reason}", delivered=True)
