"""The tool list of one upstream, as it came over the wire, made into :class:`~gateway.catalog.tool.Tool` records.

One bad entry never costs its neighbours: it is dropped, with a :class:`Problem` that names it and says why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.catalog.headermarks import without_header_marks
from gateway.catalog.names import assign
from gateway.catalog.text import one_line, unseen
from gateway.catalog.tool import Tool
from gateway.config.model import ToolOverride

MAX_SCHEMA_BYTES = 256 * 1024
MAX_DEFINITION_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_NAME_CHARS = 1024
"""Real names have at most 52 characters; the specification asks for 128."""


class ToolConfig(Protocol):
    """What the config says of an upstream's tools; every upstream of ``gateway.yaml`` is one."""

    @property
    def tools(self) -> Mapping[str, ToolOverride]: ...

    @property
    def prefix(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class AsPublished:
    """No overrides, the default prefix."""

    tools: Mapping[str, ToolOverride] = field(default_factory=dict)
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a tool that its operator should know.

    Attributes:
        upstream: its upstream.
        tool: its name, cleaned and cut; "" when it has none.
        reason: one clause.
        dropped: whether the tool is left out of the catalogue.
    """

    upstream: str
    tool: str
    reason: str
    dropped: bool

    def __str__(self) -> str:
        return f"{self.upstream}: tool {self.tool!r} {'is left out: ' if self.dropped else ''}{self.reason}"


@dataclass(frozen=True, slots=True)
class Listing:
    """The usable tools of one upstream, ordered by name, and what was wrong with the others."""

    tools: tuple[Tool, ...]
    problems: tuple[Problem, ...]


def make_tools(upstream: str, config: ToolConfig, raw: Sequence[Any]) -> Listing:
    """Build the records of one upstream's tools. Never raises, whatever ``raw`` holds.

    Args:
        upstream: its name in the config.
        config: overrides by the upstream's own tool names, and the prefix of direct names.
        raw: the entries of ``tools/list`` as parsed JSON.
    """
    problems: list[Problem] = []
    entries: dict[str, Mapping[str, Any]] = {}
    for position, entry in enumerate(raw):
        reason = _unusable(entry)
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if reason is None and name in entries:
            reason = "the upstream lists this name twice"
        if reason is not None:
            label = name if isinstance(name, str) and name else f"#{position + 1}"
            problems.append(Problem(upstream, one_line(label, 80), reason, dropped=True))
        elif isinstance(name, str) and not _override(config, name).disabled:
            entries[name] = _shown(entry)
    problems += [
        Problem(upstream, name, "the config changes this tool, but the upstream has none of that name", dropped=False)
        for name in config.tools
        if not any(isinstance(entry, Mapping) and entry.get("name") == name for entry in raw)
    ]

    shown = _shown_names(upstream, config, entries, problems)
    names = assign(upstream, shown.values(), config.prefix)
    tools: list[Tool] = []
    for raw_name, entry in entries.items():
        override = _override(config, raw_name)
        own = entry.get("description")
        own = own if isinstance(own, str) else ""
        if hidden := unseen(own) + unseen(raw_name):
            reason = f"its text holds {hidden} invisible or terminal control characters; they are never shown"
            problems.append(Problem(upstream, one_line(raw_name, 80), reason, dropped=False))
        annotations = entry.get("annotations")
        annotations = annotations if isinstance(annotations, Mapping) else {}
        output = entry.get("outputSchema")
        spelled = names[shown[raw_name]]
        tools.append(
            Tool(
                upstream=upstream,
                raw_name=raw_name,
                name=spelled.name,
                identifier=spelled.identifier,
                direct_name=spelled.direct_name,
                title=next((t for t in (entry.get("title"), annotations.get("title")) if isinstance(t, str)), ""),
                description=own if override.description is None else override.description,
                input_schema=_input_schema(entry.get("inputSchema")),
                output_schema=output if isinstance(output, Mapping) else None,
                annotations=annotations,
                definition=entry,
                digest=_digest(raw_name, own, entry.get("inputSchema"), output, annotations),
            )
        )
    return Listing(tuple(sorted(tools, key=lambda tool: tool.name)), tuple(problems))


def _shown(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The definition that clients may see."""
    schema = entry.get("inputSchema")
    shown = without_header_marks(schema)
    return entry if shown is schema else {**entry, "inputSchema": shown}


def _override(config: ToolConfig, raw_name: str) -> ToolOverride:
    return config.tools.get(raw_name) or ToolOverride()


def _unusable(entry: Any) -> str | None:
    if not isinstance(entry, Mapping):
        return "it is not an object"
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        return "it has no name"
    if len(name) > MAX_NAME_CHARS:
        return f"its name has {len(name)} characters, more than {MAX_NAME_CHARS}"
    schema = entry.get("inputSchema")
    if not (schema is None or isinstance(schema, (Mapping, bool))):
        return "its inputSchema is not an object"
    for key in ("inputSchema", "outputSchema"):
        if reason := _too_large(entry.get(key), MAX_SCHEMA_BYTES, MAX_DEPTH):
            return f"its {key} {reason}"
    if reason := _too_large(entry, MAX_DEFINITION_BYTES, MAX_DEPTH + 1):
        return f"its definition {reason}"
    return None


def _too_large(value: Any, limit: int, max_depth: int) -> str | None:
    """Why not, when ``value`` is deeper than ``max_depth`` or longer than ``limit`` bytes as compact JSON.

    Counts the containers level by level and stops early, so that a bomb costs no more than the largest legal value.
    """
    level, containers, depth = [value], 0, 0
    while level := [item for item in level if isinstance(item, (Mapping, list))]:
        depth += 1
        containers += len(level)
        if depth > max_depth:
            return f"is nested deeper than {max_depth} levels"
        if containers + sum(map(len, level)) > limit:
            break
        level = [inner for item in level for inner in (item.values() if isinstance(item, Mapping) else item)]
    else:
        try:
            size = len(_canonical(value))
        except ValueError:
            return "holds a number that cannot be written"
        if size <= limit:
            return None
    return f"is larger than {limit // 1024} KiB"


def _input_schema(schema: Any) -> Mapping[str, Any]:
    """The schema as sent, or that of any object where it is absent, not an object, or describes something else."""
    if isinstance(schema, Mapping):
        kind = schema.get("type", "object")
        if kind == "object" or (isinstance(kind, list) and "object" in kind) or not isinstance(kind, (str, list)):
            return schema
    return {"type": "object"}


def _shown_names(
    upstream: str, config: ToolConfig, raw_names: Iterable[str], problems: list[Problem]
) -> dict[str, str]:
    """Raw name → alias or itself, each only once: an alias that another tool already goes by is ignored."""
    raw_names = list(raw_names)
    shown = {name: name for name in raw_names if not _override(config, name).alias}
    taken = set(shown.values())
    aliased = sorted(name for name in raw_names if name not in shown)
    for raw_name in aliased:
        alias = _override(config, raw_name).alias or raw_name
        if alias in taken:
            fallback = raw_name if raw_name not in taken else f"{raw_name}_{_digest(raw_name)[:8]}"
            reason = f"its alias {alias!r} is another tool's name; it goes by {fallback!r}"
            problems.append(Problem(upstream, one_line(raw_name, 80), reason, dropped=False))
            alias = fallback
        shown[raw_name] = alias
        taken.add(alias)
    return shown


def _digest(*parts: Any) -> str:
    return hashlib.sha256(_canonical(parts).encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=dict)
