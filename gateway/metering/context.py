"""What of an MCP message would enter a model's context: the texts that get counted.

The rules are those of the token sheet in ``docs/metering.md``: the text blocks of a result as the upstream sent them,
its structuredContent only when there is no text, embedded text resources as text, never images, audio or blobs. JSON
counts compact: the spaces of a client's or a server's serialiser are not what a model reads or writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.metering.tokens import compact_json


def result_text(content: Iterable[Mapping[str, Any]], structured: bytes) -> str:
    """The countable text of a ``tools/call`` result: its text blocks, one a line, else its structuredContent.

    Args:
        content: the content blocks.
        structured: JSON bytes of structuredContent; empty when absent.
    """
    texts: list[str] = []
    for block in content:
        match block:
            case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
                texts.append(text)
    if texts:
        return "\n".join(texts)
    return compact(structured) if structured else ""


def call_text(name: str, arguments: bytes) -> str:
    """A tool call as a model would have written it: compact JSON of ``{name, arguments}``."""
    return f'{{"name":{json.dumps(name, ensure_ascii=False)},"arguments":{compact(arguments)}}}'


def compact(value: bytes) -> str:
    """JSON bytes without the spaces and escapes that only a serialiser put there; what is no JSON stays as it is."""
    try:
        if b"\\u" in value:
            return compact_json(json.loads(value))
        value = msgspec.json.format(value, indent=-1)
    except (ValueError, RecursionError):
        pass
    return value.decode("utf-8", "replace")
