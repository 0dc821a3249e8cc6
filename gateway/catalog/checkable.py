"""A stranger's schema made fit to be evaluated here: no reference leaves the document, nothing broken, bounded work.

:func:`prepare` copies a schema and leaves out what would make a validator refuse it, fetch something or not end;
what is left out is simply not checked here, the upstream still checks it. :func:`work` tells how much a value can
cost: references that are used several times multiply, so that 20 lines of schema can mean a million steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.catalog.schema import ABSENT, look_up

MAX_WORK = 1_000_000
"""Steps; an evaluation of this many takes about 0.1 s."""

MAX_SCHEMAS = 2_000
"""Parts of one schema; 1,000 that refer to each other compile in 30 ms, 8,000 in a second."""
MAX_PATTERNS = 50
"""Regular expressions of one schema; each may take up to half a megabyte."""

# Where schemas stand in a schema, and whether they look at the same value (in place) or at a part of it.
_SAME_ONE = frozenset({"not", "if", "then", "else"})
_SAME_LIST = frozenset({"allOf", "anyOf", "oneOf"})
_SAME_MAP = frozenset({"dependentSchemas", "dependencies"})
_PART_ONE = frozenset(
    {"items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains"}
    | {"propertyNames"}
)
_PART_LIST = frozenset({"prefixItems", "items"})
_PART_MAP = frozenset({"properties", "patternProperties"})
_DEFINITIONS = frozenset({"$defs", "definitions"})

_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_LEFT_OUT = frozenset(
    {"$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$dynamicRef", "$recursiveRef", "$vocabulary"}
    | {"contentSchema"}
)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value) and len(set(value)) == len(value)


_WELL_FORMED: Mapping[str, Callable[[Any], bool]] = {
    "type": lambda v: (isinstance(v, str) and v in _TYPES) or (_strings(v) and bool(v) and _TYPES.issuperset(v)),
    "required": _strings,
    "enum": lambda v: isinstance(v, list) and bool(v),
    "pattern": lambda v: isinstance(v, str),
    "format": lambda v: isinstance(v, str),
    "$ref": lambda v: isinstance(v, str),
    "$comment": lambda v: isinstance(v, str),
    "title": lambda v: isinstance(v, str),
    "description": lambda v: isinstance(v, str),
    "uniqueItems": lambda v: isinstance(v, bool),
    "multipleOf": lambda v: _number(v) and v > 0,
    "examples": lambda v: isinstance(v, list),
    "dependentRequired": lambda v: isinstance(v, Mapping) and all(map(_strings, v.values())),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    **dict.fromkeys(("minContains", "maxContains"), _count),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), lambda v: isinstance(v, bool)),
}


def prepare(schema: Mapping[str, Any], *, patterns: bool = True) -> dict[str, Any]:
    """A copy of ``schema`` that can be compiled.

    Left out: broken keywords, identifiers and anchors, and every reference but ``#`` and ``#/…`` to a schema in the
    document. ``nullable: true`` becomes the type it means.

    Args:
        patterns: False: without regular expressions, for those a linear-time engine does not know.
    """
    prepared: dict[str, Any] = _copied(schema, patterns)
    known = {id(node) for node in _all(prepared)}
    for node in _all(prepared):
        if "$ref" in node:
            target = look_up(prepared, node["$ref"])
            if target is ABSENT or (id(target) not in known and not isinstance(target, bool)):
                del node["$ref"]
    return prepared


@dataclass(frozen=True, slots=True)
class Size:
    """Parts and regular expressions of a schema."""

    schemas: int
    patterns: int


def measure(prepared: Mapping[str, Any]) -> Size:
    """How large a schema is to compile."""
    nodes = list(_all(prepared))
    return Size(len(nodes), sum(("pattern" in node) + len(node.get("patternProperties", ())) for node in nodes))


def work(prepared: Mapping[str, Any], depth: int) -> float:
    """An upper bound of the steps to evaluate one value of ``depth`` levels; infinite above :data:`MAX_WORK`.

    Also infinite when a schema applies itself to the same value, which has no meaning.
    """
    known: dict[tuple[int, int], float] = {}
    active: set[tuple[int, int]] = set()

    def steps(node: Any, level: int) -> float:
        if not isinstance(node, Mapping):
            return 1.0
        key = (id(node), level)
        if key in active:
            return float("inf")
        if key not in known:
            active.add(key)
            total = 1.0 + sum(steps(inner, level) for inner in _in_place(prepared, node))
            if level > 0 and total <= MAX_WORK:
                total += sum(steps(inner, level - 1) for inner in _parts(node))
            active.discard(key)
            known[key] = total if total <= MAX_WORK and len(known) <= MAX_WORK // 50 else float("inf")
        return known[key]

    try:
        return steps(prepared, depth)
    except RecursionError:
        return float("inf")


def _copied(schema: Any, patterns: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema if isinstance(schema, bool) else True
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _PART_LIST | _SAME_LIST and isinstance(value, list):
            if value:
                copy[key] = [_copied(item, patterns) for item in value]
        elif key in _SAME_ONE | _PART_ONE and isinstance(value, (Mapping, bool)):
            copy[key] = _copied(value, patterns)
        elif key in _SAME_MAP | _PART_MAP | _DEFINITIONS and isinstance(value, Mapping):
            copy[key] = {name: v if _strings(v) else _copied(v, patterns) for name, v in value.items()}
        elif key in _SAME_ONE | _PART_ONE | _SAME_LIST | _PART_LIST | _SAME_MAP | _PART_MAP | _DEFINITIONS | _LEFT_OUT:
            continue
        elif key not in _WELL_FORMED or _WELL_FORMED[key](value):
            copy[key] = value
    if not patterns:
        copy.pop("pattern", None)
        if copy.pop("patternProperties", None) is not None:  # then nobody knows which keys are "additional"
            copy.pop("additionalProperties", None)
            copy.pop("unevaluatedProperties", None)
    if schema.get("nullable") is True:
        if isinstance(copy.get("type"), str):
            copy["type"] = list(dict.fromkeys([copy["type"], "null"]))
        if "enum" in copy and None not in copy["enum"]:
            copy["enum"] = [*copy["enum"], None]
    return copy


def _all(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema in ``schema`` that is an object."""
    todo = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            yield node
            todo += [node[key] for key in _SAME_ONE | _PART_ONE if key in node]
            todo += [item for key in _SAME_LIST | _PART_LIST for item in _list(node, key)]
            todo += [item for key in _SAME_MAP | _PART_MAP | _DEFINITIONS for item in node.get(key, {}).values()]


def _list(node: Mapping[str, Any], key: str) -> list[Any]:
    value = node.get(key)
    return value if isinstance(value, list) else []


def _in_place(document: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[Any]:
    if "$ref" in node:
        yield look_up(document, node["$ref"])
    for key in _SAME_ONE & node.keys():
        yield node[key]
    for key in _SAME_LIST & node.keys():
        yield from node[key]
    for key in _SAME_MAP & node.keys():
        yield from node[key].values()


def _parts(node: Mapping[str, Any]) -> Iterator[Any]:
    for key in (_PART_ONE | _PART_LIST) & node.keys():
        yield from node[key] if isinstance(node[key], list) else (node[key],)
    for key in _PART_MAP & node.keys():
        yield from node[key].values()
