"""Arguments that a tool wants in HTTP headers too: ``x-mcp-header`` (2026-07-28, streamable HTTP, custom headers).

A property of an input schema may say ``"x-mcp-header": "Region"``; whoever calls the tool over HTTP then sends the
argument as ``Mcp-Param-Region`` beside the body, and the server refuses calls where the two differ. No IO.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

MARK = "x-mcp-header"

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_TYPES = ("string", "integer", "boolean")  # a number is written differently by every language
# Keywords of JSON Schema 2020-12 with schemas in them, by the form of their value. Not here are `properties`, the one
# way to a mark that counts, and keywords that hold data, in which a mark would be somebody's value.
_ONE = frozenset(
    {"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties",
     "not", "if", "then", "else", "contentSchema"}
)  # fmt: skip
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})


class ParamHeaders:
    """The mirrored arguments of all tools of one server.

    Mutable state: ``_mirrors``, by tool, where there are any; replaced as a whole by :meth:`plan`.
    """

    def __init__(self) -> None:
        self._mirrors: Mapping[str, tuple[Mirror, ...]] = {}

    def plan(self, tools: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """Take these definitions in place of all earlier ones.

        Returns:
            tool → why it must not be offered (one clause), for those with a bad mark.
        """
        mirrors: dict[str, tuple[Mirror, ...]] = {}
        refused: dict[str, str] = {}
        for tool in tools:
            try:
                if found := mirrors_of(tool.get("inputSchema")):
                    mirrors[tool["name"]] = found
            except BadMark as error:
                refused[tool["name"]] = str(error)
        self._mirrors = mirrors
        return refused

    def of_call(self, tool: str, arguments: Any) -> dict[str, str]:
        """The headers of one call; values are not yet encoded.

        Args:
            arguments: decoded JSON, or raw. What cannot be read has no headers: the server is to judge it.
        """
        mirrors = self._mirrors.get(tool)
        if mirrors is None:
            return {}
        try:
            value = msgspec.json.decode(arguments) if isinstance(arguments, msgspec.Raw) else arguments
        except msgspec.DecodeError:
            return {}
        return headers_for(mirrors, value)


class BadMark(Exception):
    """A mark is not what the specification allows, so the tool must not be offered. The text is one clause."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """One argument that is sent in a header as well.

    Attributes:
        header: the header's whole name.
        path: keys from the arguments down to the value.
    """

    header: str
    path: tuple[str, ...]


def mirrors_of(schema: Any) -> tuple[Mirror, ...]:
    """What an input schema wants mirrored.

    Raises:
        BadMark: the mark is no header name, comes twice, or stands on something that is no string, integer or boolean
            or that is not reached through ``properties`` alone.
    """
    found: dict[str, Mirror] = {}
    for path, position in _positions(schema):
        if MARK not in position:
            continue
        name = position[MARK]
        if not path:
            raise BadMark(f"{MARK} stands on something that is not a property")
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise BadMark(f"{MARK} is not the name of a header")
        if position.get("type") not in _TYPES:
            raise BadMark(f"{MARK} {name[:60]} stands on a property that is no string, integer or boolean")
        if name.lower() in found:
            raise BadMark(f"{MARK} {name[:60]} is there twice")
        found[name.lower()] = Mirror(f"mcp-param-{name}", path)
    return tuple(found.values())


def headers_for(mirrors: tuple[Mirror, ...], arguments: Any) -> dict[str, str]:
    """The headers of one call; arguments that are absent or null have none.

    Args:
        arguments: decoded JSON.
    """
    headers = {}
    for mirror in mirrors:
        value = arguments
        for key in mirror.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        text = _written(value)
        if text is not None:
            headers[mirror.header] = text
    return headers


def _written(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON's 5.0 is an integer, and headers want it decimal
    return str(value) if isinstance(value, (str, int, float)) else None


def _positions(schema: Any) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Every schema in a schema, with the keys that lead to it; None where they are not ``properties`` alone.

    References are not followed, so this ends.
    """
    open_: list[tuple[tuple[str, ...] | None, Any]] = [((), schema)]
    while open_:
        path, position = open_.pop()
        if not isinstance(position, Mapping):
            continue
        yield path, position
        for keyword, value in position.items():
            if keyword == "properties" and isinstance(value, Mapping):
                open_ += [(None if path is None else (*path, name), inner) for name, inner in value.items()]
            elif keyword in _ONE:
                open_.append((None, value))
            elif keyword in _LIST and isinstance(value, list):
                open_ += [(None, inner) for inner in value]
            elif keyword in _NAMED and isinstance(value, Mapping):
                open_ += [(None, inner) for inner in value.values()]
