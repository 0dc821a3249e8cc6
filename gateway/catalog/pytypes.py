"""The types of a :class:`~gateway.catalog.schema.TypeTree` written in Python.

Every object becomes a TypedDict, declared before what uses it unless it refers to itself. Names of TypedDicts begin
with the tool's own prefix, so that the stubs of several tools can stand in one module.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Iterable
from typing import Any

from gateway.catalog.schema import ABSENT, Node, Property, TypeTree, camel
from gateway.catalog.text import one_line

PRELUDE = "from typing import Any, Literal, Never, NotRequired, TypedDict"
"""What a module of stubs must begin with."""

_PRIMITIVE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_TYPE_WORDS = frozenset(
    {"str", "int", "float", "bool", "list", "dict", "Any", "Literal", "Never", "NotRequired", "TypedDict"}
)
_DEFAULTS_OF = {
    "string": ("str",),
    "integer": ("int",),
    "number": ("int", "float"),
    "boolean": ("bool",),
    "null": ("NoneType",),
}
_DEFAULT_CHARS = 42
_SHALLOW_ENUM = 6
_SNAKE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z][a-z0-9]*)*__[a-z][a-z0-9]*(?:_[a-z][a-z0-9]*)*")


def type_prefix(identifier: str) -> str:
    """``git__get_log`` → ``Git_GetLog``; different for different identifiers, never the identifier of a tool."""
    upstream, _, tool = identifier.partition("__")
    prefix = f"{camel(upstream)}_{camel(tool)}"
    if _SNAKE.fullmatch(identifier) and len(identifier) <= 64:
        return prefix
    return f"{prefix}_{hashlib.sha256(identifier.encode()).hexdigest()[:6]}"


def is_parameter(name: str) -> bool:
    """Whether a key can be written as a keyword argument, and means the same inside a class body."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")


def default_text(found: Property) -> str | None:
    """The default of an optional parameter as Python, when it is a short scalar that fits its type."""
    value = found.default
    options = found.type.items if found.type.kind == "union" else (found.type,)
    fits = any(
        any(type(value) is type(choice) and value == choice for choice in option.values)
        if option.kind == "literals"
        else option.kind == "primitive" and type(value).__name__ in _DEFAULTS_OF[option.name]
        for option in options
    )
    text = _literal(value) if fits else None
    return text if text is not None and len(text) <= _DEFAULT_CHARS else None


def note(found: Property, limit: int, *, default: bool) -> str:
    """The comment of a key: description of at most ``limit`` characters, default, range, format. 0: nothing."""
    if not limit:
        return ""
    told = f"default {one_line(repr(found.default), 60)}" if default and found.default not in (ABSENT, None, "") else ""
    facts = ", ".join(part for part in (told, found.facts) if part)
    described = one_line(found.description, limit)
    return f"{described.rstrip('.')}; {facts}" if described and facts else described or facts


class PythonTypes:
    """Writes the types of one tool and collects the TypedDicts that they need.

    Args:
        prefix: begins the name of every TypedDict.
        notes: characters of a key's description, 0 for no comments.
        shallow: objects inside objects are ``dict[str, Any]``, long choices are ``str``.

    Attributes:
        declarations: source of the TypedDicts, by name, in order.
        lossy: something could not be said in Python.
        shortened: something was left out because of ``shallow``.
    """

    def __init__(self, prefix: str, notes: int, shallow: bool) -> None:
        self.declarations: dict[str, str] = {}
        self.lossy = False
        self.shortened = False
        self._prefix = prefix
        self._notes = notes
        self._shallow = shallow
        self._declared: list[tuple[Node, str]] = []
        self._named: dict[tuple[int, str], str] = {}
        self._open: set[str] = set()

    def write(self, node: Node, hint: str, tree: TypeTree, *, top: bool = False) -> str:
        """The type as an expression. ``hint`` names the TypedDict it may need; ``top``: it is no nested object."""
        match node.kind:
            case "any":
                return "Any"
            case "never":
                return "Never"
            case "primitive":
                return _PRIMITIVE[node.name]
            case "literals":
                return self._choices(node.values)
            case "array":
                return f"list[{self.write(node.items[0], hint, tree)}]"
            case "tuple":  # scripts write JSON arrays as lists, and a checker refuses a list for a tuple
                return f"list[{self._union((*node.items, *filter(None, [node.rest])), hint, tree)}]"
            case "map":
                return f"dict[str, {self.write(node.items[0], hint, tree)}]"
            case "union":
                return self._union(node.items, hint, tree, top=top)
            case "object":
                return self._object(node, hint, tree, top=top)
            case "both":
                self.lossy = True
                return "dict[str, Any]"
            case "reference":
                return self._reference(node.name, tree, top=top)

    def _union(self, members: Iterable[Node], hint: str, tree: TypeTree, *, top: bool = False) -> str:
        parts = dict.fromkeys(self.write(member, hint, tree, top=top) for member in members)
        return "Any" if "Any" in parts else " | ".join(parts)

    def _choices(self, values: tuple[Any, ...]) -> str:
        if self._shallow and len(values) > _SHALLOW_ENUM:
            self.shortened = True
            return " | ".join(dict.fromkeys("None" if v is None else type(v).__name__ for v in values))
        written = dict.fromkeys(_literal(v) for v in values if not isinstance(v, float))
        parts = [f"Literal[{', '.join(filter(None, written))}]"] if any(written) and None not in written else []
        parts += ["int"] * (None in written) + ["float"] * any(isinstance(v, float) for v in values)
        return " | ".join(parts)

    def _reference(self, name: str, tree: TypeTree, *, top: bool) -> str:
        node = tree.types[name]
        if node.kind == "object" and node.properties and (top or not self._shallow):
            known = self._named.get((id(tree), name))
            return known or self._typed_dict(node, name, tree, reference=name)
        if name in self._open:  # recursion that passes no object: cut at the second round
            self.lossy = True
            return "Any"
        self._open.add(name)
        text = self.write(node, name, tree, top=top)
        self._open.discard(name)
        return text

    def _object(self, node: Node, hint: str, tree: TypeTree, *, top: bool) -> str:
        if not node.properties:
            return "dict[str, Any]"
        if self._shallow and not top:
            self.shortened = True
            return "dict[str, Any]"
        for other, name in self._declared:
            if other == node:
                return name
        return self._typed_dict(node, hint, tree)

    def _typed_dict(self, node: Node, hint: str, tree: TypeTree, reference: str | None = None) -> str:
        name = base = f"{self._prefix}_{hint}"
        number = 2
        while name in self.declarations:
            name, number = f"{base}{number}", number + 1
        self.declarations[name] = ""  # taken
        if reference is not None:
            self._named[id(tree), reference] = name
        optional = not any(found.required for found in node.properties) and len(node.properties) > 1
        rows = []
        for found in node.properties:
            text = self.write(found.type, camel(found.name), tree)
            text = text if found.required or optional else f"NotRequired[{text}]"
            rows.append((found.name, text, note(found, self._notes, default=True)))
        if node.rest is not None:
            rows.append(("", "", f"other keys: {self.write(node.rest, hint + 'Other', tree)}"))
        del self.declarations[name]  # to stand after what it uses
        self.declarations[name] = _declaration(name, rows, optional)
        if reference is None:
            self._declared.append((node, name))
        return name


def _declaration(name: str, rows: list[tuple[str, str, str]], optional: bool) -> str:
    total = ", total=False" if optional else ""
    if all(is_parameter(key) and key not in _TYPE_WORDS for key, _, _ in rows if key):
        head, lines, foot = f"class {name}(TypedDict{total}):", "    {}: {}", ""
        keys = [key for key, _, _ in rows]
    else:
        head, lines, foot = f'{name} = TypedDict("{name}", {{', "    {}: {},", f"\n}}{total})"
        keys = [repr(key) if key else "" for key, _, _ in rows]
    body = [
        (lines.format(key, text) if key else "   ") + (f"  # {comment}" if comment else "")
        for key, (_, text, comment) in zip(keys, rows, strict=True)
    ]
    return "\n".join([head, *body]) + foot


def _literal(value: Any) -> str | None:
    """``value`` as Python source, None when it is too long for a signature."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**64:
        return None
    return repr(value)
