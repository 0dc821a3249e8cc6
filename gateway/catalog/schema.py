"""JSON Schema → a small tree of types, which the writers of stubs print (:mod:`gateway.catalog.pystub`).

Schemas come from strangers, and most of JSON Schema cannot be said in a signature anyway. So a schema is read once,
under a budget; whatever is beyond the budget, broken, or not sayable becomes ``any`` and sets ``lossy``, which shows as
a mark. Reading never raises, never follows a reference out of the document and ends in bounded time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import unquote

from gateway.catalog.text import one_line

MAX_NODES = 400
"""Types in one schema. Of 3,223 real tools none has more; 40 are marked as lossy for any reason."""
MAX_DEPTH = 12
MAX_ENUM = 30
MAX_KEYS = 150
MAX_KEY_CHARS = 200
MAX_LITERAL_CHARS = 100

PRIMITIVES = frozenset({"string", "integer", "number", "boolean", "null"})

Kind = Literal["any", "never", "primitive", "literals", "array", "tuple", "map", "object", "union", "both", "reference"]


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()


@dataclass(frozen=True, slots=True)
class Node:
    """One type.

    Attributes:
        kind: which of the fields below mean something.
        name: of a ``primitive`` (as in JSON Schema), or of the type a ``reference`` means.
        values: of ``literals``: strings, numbers, booleans, None.
        items: members of a ``union`` or of ``both`` (all of them at once), elements of a ``tuple``, the one element
            type of an ``array`` or value type of a ``map``.
        properties: of an ``object``, required ones first.
        rest: type of an object's other keys or of a tuple's further elements; None when nothing is said of them.
    """

    kind: Kind
    name: str = ""
    values: tuple[Any, ...] = ()
    items: tuple[Node, ...] = ()
    properties: tuple[Property, ...] = ()
    rest: Node | None = None


@dataclass(frozen=True, slots=True)
class Property:
    """One key of an object.

    Attributes:
        description: as sent; whoever prints it cleans it.
        default: as sent, or :data:`ABSENT`.
        facts: what the type does not say: range, format, number of choices; printable.
    """

    name: str
    type: Node
    required: bool
    description: str = ""
    default: Any = ABSENT
    facts: str = ""


@dataclass(frozen=True, slots=True)
class TypeTree:
    """A schema as types.

    Attributes:
        root: the type of the whole.
        types: types with a name of their own, because they are shared or recursive.
        lossy: the schema says more than this tree.
    """

    root: Node
    types: Mapping[str, Node] = field(default_factory=dict)
    lossy: bool = False

    def resolved(self, node: Node) -> Node:
        """The type that ``node`` is, or that it refers to."""
        return self.types[node.name] if node.kind == "reference" else node


ANY = Node("any")
NEVER = Node("never")
NULL = Node("primitive", "null")

_UNSAYABLE = frozenset(
    {"if", "then", "else", "not", "contains", "minContains", "propertyNames", "$dynamicRef", "$recursiveRef"}
    | {"dependentSchemas", "dependentRequired", "dependencies", "unevaluatedProperties", "unevaluatedItems"}
)
_OWN = ("type", "properties", "required", "additionalProperties", "patternProperties", "items")


def read(schema: Any, root_name: str, at: Sequence[str] = ()) -> TypeTree:
    """Read a schema.

    Args:
        schema: the whole document; references are looked up in it.
        root_name: a name for the root, should it refer to itself.
        at: the keys of the place in it to read; the whole by default.
    """
    reader = _Reader(schema, root_name)
    start = schema
    for key in at:
        start = start.get(key, True) if isinstance(start, Mapping) else True
    if start is schema and reader.refers_to("#"):
        start = {"$ref": "#"}  # then the root has a name
    root = reader.node(start, 0, ())
    return TypeTree(root, reader.types, reader.lossy)


class _Reader:
    def __init__(self, document: Any, root_name: str) -> None:
        self.types: dict[str, Node] = {}
        self.lossy = False
        self._document = document
        self._root_name = root_name
        self._nodes = 0
        self._uses = _reference_counts(document)
        self._names: dict[str, str] = {}
        self._inlined: set[str] = set()

    def refers_to(self, pointer: str) -> bool:
        """Whether the document has a reference to ``pointer``."""
        return pointer in self._uses

    def node(self, schema: Any, depth: int, within: tuple[str, ...]) -> Node:
        """``within``: references since the last object or array; one of them again would be a type equal to itself."""
        self._nodes += 1
        if schema is True or schema == {}:
            return ANY
        if schema is False:
            return NEVER
        if not isinstance(schema, Mapping) or self._nodes > MAX_NODES or depth > MAX_DEPTH:
            return self._lost()
        if not _UNSAYABLE.isdisjoint(schema):
            self.lossy = True
        if isinstance(schema.get("$ref"), str):
            node = self._reference(schema["$ref"], depth, within)
        elif "const" in schema:
            node = self._literals([schema["const"]])
        elif isinstance(schema.get("enum"), list) and schema["enum"]:
            node = self._literals(schema["enum"])
        else:
            if "enum" in schema:
                self.lossy = True
            node = self._combined(schema, depth, within) or self._typed(schema, depth, within)
        return self._union([node, NULL]) if schema.get("nullable") is True else node

    def _lost(self) -> Node:
        self.lossy = True
        return ANY

    # ---- references

    def _reference(self, pointer: str, depth: int, within: tuple[str, ...]) -> Node:
        if pointer in self._names:
            name = self._names[pointer]
            # an alias that is still being read and was reached without an object in between would equal itself
            return self._lost() if pointer in within else Node("reference", name)
        target = look_up(self._document, pointer)
        if target is ABSENT or pointer in within:
            return self._lost()
        inside = (*within, pointer)
        literal = not isinstance(target, Mapping) or "const" in target or "enum" in target
        alone = self._uses.get(pointer, 0) < 2 and pointer not in self._inlined and pointer != "#"
        if literal or (alone and "$ref" not in target):
            self._inlined.add(pointer)
            return self.node(target, depth, inside)
        name = self._type_name(pointer)
        self._names[pointer], self.types[name] = name, ANY
        self.types[name] = self.node(target, depth, inside)
        return Node("reference", name)

    def _type_name(self, pointer: str) -> str:
        base = self._root_name if pointer == "#" else camel(pointer.rsplit("/", 1)[-1])
        name, number = base, 2
        while name in self.types:
            name, number = f"{base}{number}", number + 1
        return name

    # ---- several types at once

    def _literals(self, values: list[Any]) -> Node:
        scalars = [v for v in values if v is None or isinstance(v, (str, bool, int, float))]
        long = any(isinstance(v, str) and len(v) > MAX_LITERAL_CHARS for v in scalars[: MAX_ENUM + 1])
        if len(scalars) == len(values) <= MAX_ENUM and not long:
            return Node("literals", values=tuple(scalars))
        self.lossy = True
        if len(scalars) < len(values):
            return ANY
        return self._union([Node("primitive", name) for name in dict.fromkeys(map(_primitive_of, scalars))])

    def _union(self, members: Iterable[Node]) -> Node:
        flat = [part for member in members for part in (member.items if member.kind == "union" else (member,))]
        literals = [value for part in flat if part.kind == "literals" for value in part.values]
        distinct: list[Node] = []
        for part in flat:
            if part.kind == "literals":
                part = self._literals(literals)  # all of them at the place of the first
            for one in part.items if part.kind == "union" else (part,):
                if one.kind != "never" and one not in distinct:
                    distinct.append(one)
        if ANY in distinct:
            return ANY
        if len(distinct) < 2:
            return distinct[0] if distinct else NEVER
        return Node("union", items=tuple(distinct))

    def _combined(self, schema: Mapping[str, Any], depth: int, within: tuple[str, ...]) -> Node | None:
        for word in ("anyOf", "oneOf"):
            parts = schema.get(word)
            if isinstance(parts, list) and parts:
                if all(
                    isinstance(part, Mapping) and not set(part) - {"required", "title", "description"} for part in parts
                ):
                    self.lossy = True  # "give one of these keys": only the schema says that
                    return None
                return self._one_of(schema, parts, depth, within)
        parts = schema.get("allOf")
        return self._all_of(schema, parts, depth, within) if isinstance(parts, list) and parts else None

    def _one_of(self, schema: Mapping[str, Any], parts: list[Any], depth: int, within: tuple[str, ...]) -> Node:
        outer = {"type": schema["type"]} if "type" in schema else {}
        parts = [
            {**outer, **part} if outer and isinstance(part, Mapping) and not {"type", "$ref"} & set(part) else part
            for part in parts[: MAX_NODES + 1]
        ]
        union = self._union([self.node(part, depth + 1, within) for part in parts])
        own = {key: schema[key] for key in _OWN if key in schema}
        if not own.get("properties"):
            return union
        self.lossy = True
        return Node("both", items=(self._typed(own, depth, within), union))

    def _all_of(self, schema: Mapping[str, Any], parts: list[Any], depth: int, within: tuple[str, ...]) -> Node:
        own = {key: schema[key] for key in _OWN if key in schema}
        nodes = [self.node(part, depth + 1, within) for part in parts[: MAX_NODES + 1]]
        if own.get("properties"):
            nodes.insert(0, self._typed(own, depth, within))
        nodes = [node for node in nodes if node.kind != "any"] or nodes[:1]
        members = [self.types[node.name] if node.kind == "reference" else node for node in nodes]
        if len(nodes) > 1 and all(node.kind == "object" and node.rest is None for node in members):
            return self._merged(members)
        return nodes[0] if len(nodes) == 1 else Node("both", items=tuple(nodes))

    def _merged(self, objects: Iterable[Node]) -> Node:
        merged: dict[str, Property] = {}
        for new in (found for node in objects for found in node.properties):
            old = merged.get(new.name, new)
            merged[new.name] = Property(
                new.name,
                old.type if new.type.kind == "any" else new.type,
                old.required or new.required,
                new.description or old.description,
                old.default if new.default is ABSENT else new.default,
                new.facts or old.facts,
            )
        kept = sorted(merged.values(), key=lambda found: not found.required)
        return Node("object", properties=tuple(kept))

    # ---- one type

    def _typed(self, schema: Mapping[str, Any], depth: int, within: tuple[str, ...]) -> Node:
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = [
                k for k in dict.fromkeys(k for k in kind if isinstance(k, str)) if k in PRIMITIVES | {"array", "object"}
            ]
            return (
                self._union([self._typed({**schema, "type": k}, depth, within) for k in kinds])
                if kinds
                else self._lost()
            )
        if kind is None:
            if not {"properties", "additionalProperties", "patternProperties", "required"}.isdisjoint(schema):
                kind = "object"
            elif not {"items", "prefixItems"}.isdisjoint(schema):
                kind = "array"
            else:
                return ANY
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        return Node("primitive", kind) if isinstance(kind, str) and kind in PRIMITIVES else self._lost()

    def _array(self, schema: Mapping[str, Any], depth: int) -> Node:
        items = schema.get("items", True)
        prefix = schema.get("prefixItems")
        further = items
        if not isinstance(prefix, list):
            prefix, further = (items, schema.get("additionalItems")) if isinstance(items, list) else (None, None)
        if not prefix:
            return Node("array", items=(ANY if isinstance(items, list) else self.node(items, depth + 1, ()),))
        rest = self.node(further, depth + 1, ()) if isinstance(further, Mapping) else None
        return Node("tuple", items=tuple(self.node(item, depth + 1, ()) for item in prefix[:MAX_ENUM]), rest=rest)

    def _object(self, schema: Mapping[str, Any], depth: int) -> Node:
        given = schema.get("properties")
        properties: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
        asked = schema.get("required")
        required = {key for key in asked if isinstance(key, str)} if isinstance(asked, list) else set()
        self.lossy |= not isinstance(given, (Mapping, type(None))) or not isinstance(asked, (list, type(None)))
        for key in sorted(required - set(properties)):
            properties[key] = True
        rest = self._other_keys(schema, depth)
        if not properties:
            if isinstance(given, Mapping) and rest is None:
                return Node("object")
            return Node("map", items=(rest or ANY,))
        keys = sorted((key for key in properties if len(key) <= MAX_KEY_CHARS), key=lambda key: key not in required)
        if len(keys) > MAX_KEYS or len(keys) < len(properties):
            keys, rest, self.lossy = keys[:MAX_KEYS], ANY, True
        found = [self._property(key, properties[key], key in required, depth) for key in keys]
        return Node("object", properties=tuple(found), rest=rest)

    def _other_keys(self, schema: Mapping[str, Any], depth: int) -> Node | None:
        patterns = schema.get("patternProperties")
        further = list(patterns.values())[:MAX_KEYS] if isinstance(patterns, Mapping) else []
        if isinstance(schema.get("additionalProperties"), Mapping):
            further.append(schema["additionalProperties"])
        return self._union([self.node(other, depth + 1, ()) for other in further]) if further else None

    def _property(self, key: str, schema: Any, required: bool, depth: int) -> Property:
        node = self.node(schema, depth + 1, ())
        if not isinstance(schema, Mapping):
            return Property(key, node, required)
        if isinstance(schema.get("$ref"), str):
            target = look_up(self._document, schema["$ref"])
            schema = {**(target if isinstance(target, Mapping) else {}), **schema}
        description = schema.get("description")
        description = description if isinstance(description, str) else ""
        return Property(key, node, required, description, schema.get("default", ABSENT), _facts(schema))


def look_up(document: Any, pointer: str) -> Any:
    """What a local reference (``#``, ``#/$defs/Item``) means in ``document``; :data:`ABSENT` for anything else."""
    if pointer == "#":
        return document
    if not pointer.startswith("#/"):
        return ABSENT
    found = document
    for step in pointer[2:].split("/"):
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and re.fullmatch(r"\d{1,6}", key, re.ASCII) and int(key) < len(found):
            found = found[int(key)]
        else:
            return ABSENT
    return found


def camel(text: str) -> str:
    """``text`` as the name of a type: ``page_size`` → ``PageSize``; ASCII, never empty, never a digit first."""
    name = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", text))[:40]
    return name if name[:1].isalpha() else "T" + name


def _reference_counts(document: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    todo = [document]
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            pointer = item.get("$ref")
            if isinstance(pointer, str):
                counts[pointer] = counts.get(pointer, 0) + 1
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
    return counts


def _primitive_of(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    return "null" if value is None else "integer" if isinstance(value, int) else "number"


def _facts(schema: Mapping[str, Any]) -> str:
    facts = []
    low, above = _number(schema, "minimum"), _number(schema, "exclusiveMinimum")
    high, below = _number(schema, "maximum"), _number(schema, "exclusiveMaximum")
    if low or high:
        facts.append(f"{low}..{high}")
    facts += [f"> {above}"] * bool(above) + [f"< {below}"] * bool(below)
    if isinstance(schema.get("format"), str):
        facts.append(one_line(schema["format"], 20))
    if isinstance(schema.get("enum"), list) and len(schema["enum"]) > MAX_ENUM:
        facts.append(f"{len(schema['enum'])} choices, see schema")
    if schema.get("deprecated") is True:
        facts.append("deprecated")
    return ", ".join(facts)


def _number(schema: Mapping[str, Any], key: str) -> str:
    value = schema.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18:
        return json.dumps(value)
    return ""
