"""What of an MCP message would enter a model's context: the texts that get counted.

The rules are those of the token sheet in ``docs/metering.md``: the text blocks of a result as the upstream sent them,
its structuredContent only when there is no text, embedded text resources as text, never images, audio or blobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


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
    return structured.decode("utf-8", "replace")


def call_text(name: str, arguments: bytes) -> str:
    """A tool call as a model would have written it: compact JSON of ``{name, arguments}``."""
    return f'{{"name":{json.dumps(name, ensure_ascii=False)},"arguments":{arguments.decode("utf-8", "replace")}}}'
