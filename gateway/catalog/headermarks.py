"""Takes ``x-mcp-header`` out of schemas: a promise between the gateway and an upstream, not one to our clients.

A client that saw the mark would have to send the argument as a header too, and the edge would have to check that
against the schema of each tool called. The connector sends those headers by itself
(:mod:`gateway.upstreams.paramheaders`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARK = "x-mcp-header"

_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"const", "enum", "default", "examples"})


def without_header_marks(schema: Any) -> Any:
    """The schema without marks; the very same object when it has none.

    Args:
        schema: decoded JSON of bounded depth.
    """
    if isinstance(schema, list):
        return _same_or_new(schema, [without_header_marks(item) for item in schema])
    if not isinstance(schema, Mapping):
        return schema
    return _same_or_new(
        schema, {keyword: _inside(keyword, value) for keyword, value in schema.items() if keyword != MARK}
    )


def _inside(keyword: str, value: Any) -> Any:
    if keyword in _DATA:
        return value
    if keyword in _NAMES and isinstance(value, Mapping):
        # here the keys are names, and a property may well be called like the mark
        return _same_or_new(value, {name: without_header_marks(inner) for name, inner in value.items()})
    return without_header_marks(value)


def _same_or_new(old: Any, new: Any) -> Any:
    """``old``, unless a part of it is another one now."""
    parts = zip(old.values(), new.values(), strict=False) if isinstance(old, Mapping) else zip(old, new, strict=True)
    return old if len(old) == len(new) and all(before is after for before, after in parts) else new
