"""Arguments of a call, checked against the tool's schema before anything is sent.

A wrong call costs a model a turn, so it is told what is wrong, what was expected and the nearest name. This is help,
not a border: the upstream checks again, and what cannot be checked cheaply and safely here is let through.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import Any

import jsonschema_rs

from gateway.catalog.checkable import MAX_PATTERNS, MAX_SCHEMAS, MAX_WORK, measure, prepare, work
from gateway.catalog.lru import Lru
from gateway.catalog.pystub import python_stub
from gateway.catalog.schema import ABSENT, look_up
from gateway.catalog.text import one_line
from gateway.catalog.tool import Tool
from gateway.errors import ErrorClass, GatewayError

log = logging.getLogger("gateway.catalog")

MAX_PROBLEMS = 3
MAX_HINT_CHARS = 900
"""A signature longer than this is shortened: the whole error stays below 300 tokens or so."""

_MAX_STEPS = 5 * MAX_WORK
"""Of one validation; about half a second."""
_MAX_REPORT_CHARS = 20_000_000
"""Of values that error reports would copy: each alternative that failed keeps one."""
_MANY_VALUES = 1_000
"""All reports of a value are made at once, however few are read (300,000 take 4 s); a larger one gets its first."""

_REGEX = jsonschema_rs.RegexOptions(size_limit=1 << 18, dfa_size_limit=1 << 18)
"""The engine without backtracking: linear time for any pattern of an upstream."""


@dataclass(slots=True)
class _Compiled:
    """A validator with its schema, or without a validator when the schema cannot be used."""

    schema: Mapping[str, Any]
    validator: jsonschema_rs.Validator | None
    work_at: dict[int, float] = field(default_factory=dict)  # by depth of the value; filled by _steps() only

    def steps(self, depth: int) -> float:
        if depth not in self.work_at:
            self.work_at[depth] = work(self.schema, depth)
        return self.work_at[depth]


class ArgumentValidator:
    """Validates arguments. Compiles a schema when its tool is first called and keeps the ``size`` that were used last.

    Never fetches anything. A schema that cannot be used is logged once and its tool not checked.
    """

    def __init__(self, size: int = 1_024) -> None:
        self._compiled: Lru[str, _Compiled] = Lru(size)

    def check(self, tool: Tool, arguments: Any) -> None:
        """Returns when ``arguments`` are right for ``tool`` as far as can be told here.

        Args:
            arguments: a JSON value.

        Raises:
            GatewayError: INVALID_ARGUMENTS, with at most three problems and the signature as the hint.
        """
        if not isinstance(arguments, dict):
            raise _invalid(tool, [f"arguments must be an object, got {_shown(arguments)}"])
        compiled = self._compiled.get(tool.digest, lambda: _compile(tool))
        if compiled.validator is None:
            return
        values, chars, depth = _measure(arguments)
        steps = compiled.steps(min(depth, 64))
        if steps * values > _MAX_STEPS:
            log.debug("arguments of %s not checked: too much work", one_line(tool.name, 200))
            return
        try:
            if compiled.validator.is_valid(arguments):
                return
            if steps * chars > _MAX_REPORT_CHARS:
                raise _invalid(tool, ["arguments do not fit the schema; they are too large to say where"])
            problems = _problems(compiled, arguments, all_of_them=values <= _MANY_VALUES)
        except ValueError as error:
            raise _invalid(tool, [f"arguments are not JSON: {one_line(error, 120)}"]) from None
        raise _invalid(tool, problems)


def _compile(tool: Tool) -> _Compiled:
    reason = ""
    for patterns in (True, False):
        schema = prepare(tool.input_schema, patterns=patterns)
        size = measure(schema)
        if size.schemas > MAX_SCHEMAS:
            reason = f"it has more than {MAX_SCHEMAS} parts"
            break
        if patterns and size.patterns > MAX_PATTERNS:
            continue
        if not _known_dialect(schema):
            schema.pop("$schema", None)
        try:
            validator = jsonschema_rs.validator_for(
                schema, pattern_options=_REGEX, offline=True, validate_formats=False, ignore_unknown_formats=True
            )
        except (ValueError, TypeError) as error:
            reason = one_line(error, 200)
        else:
            return _Compiled(schema, validator)
    log.warning("arguments of %s are not checked, its schema cannot be used: %s", one_line(tool.name, 200), reason)
    return _Compiled({}, None)


def _known_dialect(schema: Mapping[str, Any]) -> bool:
    dialect = schema.get("$schema")
    return isinstance(dialect, str) and dialect.split("://")[-1].rstrip("#") in _DIALECTS


_DIALECTS = frozenset(
    f"json-schema.org/{name}/schema" for name in ("draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
)


def _measure(value: Any) -> tuple[int, int, int]:
    """(values, characters of text, levels) of a JSON value."""
    values, chars, depth = 0, 0, 0
    level = [value]
    while level:
        depth += 1
        values += len(level)
        chars += sum(len(item) for item in level if isinstance(item, str)) + 8 * len(level)
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                chars += sum(len(key) for key in item if isinstance(key, str))
                deeper.extend(item.values())
            elif isinstance(item, (list, tuple)):
                deeper.extend(item)
        level = deeper
    return values, chars, depth


def _invalid(tool: Tool, problems: Sequence[str]) -> GatewayError:
    stub = python_stub(tool, result_type=False)
    if len(stub) > MAX_HINT_CHARS:
        stub = python_stub(tool, result_type=False, shallow=True)
    if len(stub) > MAX_HINT_CHARS:
        stub = python_stub(tool, "line")
    text = f"{tool.identifier}: {'; '.join(problems)}"
    return GatewayError(ErrorClass.INVALID_ARGUMENTS, text, hint=stub)


def _problems(compiled: _Compiled, arguments: dict[str, Any], *, all_of_them: bool) -> list[str]:
    assert compiled.validator is not None
    if all_of_them:
        errors = list(islice(compiled.validator.iter_errors(arguments), 50))
    else:
        try:
            compiled.validator.validate(arguments)
            errors = []
        except jsonschema_rs.ValidationError as error:
            errors = [error]
    told = dict.fromkeys(text for error in errors for text in _sentences(error, compiled.schema))
    more = len(told) - MAX_PROBLEMS
    return [*list(told)[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]


def _sentences(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any], nested: int = 0) -> Iterator[str]:
    """What one error says, as ``path: must …``."""
    kind = error.kind
    at = _path(error.instance_path)
    where = f"{at}: " if at else ""
    match kind.name:
        case "required":
            yield f"{_path([*error.instance_path, kind.value])}: is required" + _misspelt(error, schema)
        case "additionalProperties" | "unevaluatedProperties":
            known = sorted(_properties_beside(error, schema))
            for name in list(kind.value)[:MAX_PROBLEMS]:
                near = get_close_matches(name[:200], known, 1, 0.6)
                hint = f", did you mean {_name(near[0])}?" if near else _choice_of(known)
                yield f"{_path([*error.instance_path, name])}: no such parameter{hint}"
        case "type":
            yield f"{where}must be {_articled(error.kind.value)}, got {_shown(error.instance)}"
        case "enum" | "const":
            options = error.kind.value if kind.name == "enum" else [error.kind.value]
            listed = ", ".join(_shown(option) for option in options[:12]) + (", …" if len(options) > 12 else "")
            near = get_close_matches(str(error.instance)[:200], [o for o in options if isinstance(o, str)], 1, 0.6)
            hint = f", did you mean {_shown(near[0])}?" if near and len(options) > 3 else ""
            yield f"{where}must be {'one of ' if len(options) > 1 else ''}{listed}, got {_shown(error.instance)}{hint}"
        case "anyOf" | "oneOf" if missing := _alternatives(kind):
            yield f"{where}needs one of {', '.join(map(_name, missing[:8]))}{', …' if len(missing) > 8 else ''}"
        case "anyOf" | "oneOf" if nested < 3 and (branch := _best_branch(kind)):
            types = {t for errors in kind.context for t in _root_types(errors, error)}  # type: ignore[attr-defined]
            if types and len(branch) == 1 and branch[0].kind.name == "type" and _is_at(branch[0], error):
                yield f"{where}must be {_articled(types)}, got {_shown(error.instance)}"
            else:
                for inner in branch:
                    yield from _sentences(inner, schema, nested + 1)
        case _:
            yield f"{where}{one_line(error.message, 160)}"


def _alternatives(kind: jsonschema_rs.ValidationErrorKind) -> list[str]:
    """The keys of which one is needed, when that is all that the alternatives ask."""
    branches: list[list[jsonschema_rs.ValidationError]] = getattr(kind, "context", [])
    if len(branches) < 2 or not all(len(b) == 1 and b[0].kind.name == "required" for b in branches):
        return []
    keys = [str(b[0].kind.value) for b in branches]
    return keys if len({tuple(b[0].instance_path) for b in branches}) == 1 else []


def _best_branch(kind: jsonschema_rs.ValidationErrorKind) -> list[jsonschema_rs.ValidationError]:
    """The errors of the alternative that came closest: the one that failed deepest, then with fewest errors."""
    branches: list[list[jsonschema_rs.ValidationError]] = [b for b in getattr(kind, "context", []) if b]
    return max(branches, key=lambda b: (min(_rank(error) for error in b), -len(b)), default=[])


def _rank(error: jsonschema_rs.ValidationError) -> int:
    return 2 * len(error.instance_path) + (error.kind.name not in ("type", "const", "enum"))


def _root_types(errors: Iterable[jsonschema_rs.ValidationError], outer: jsonschema_rs.ValidationError) -> set[str]:
    kinds = [e.kind.value for e in errors if e.kind.name == "type" and _is_at(e, outer)]
    return {name for kind in kinds for name in ([kind] if isinstance(kind, str) else kind)}


def _is_at(inner: jsonschema_rs.ValidationError, outer: jsonschema_rs.ValidationError) -> bool:
    return len(inner.instance_path) <= len(outer.instance_path)


def _properties_beside(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> set[str]:
    """The keys that the object schema of the error knows."""
    found: Any = schema
    for step in error.schema_path[:-1]:
        if isinstance(found, Mapping):
            found = found.get(str(step))
        elif isinstance(found, list) and isinstance(step, int) and step < len(found):
            found = found[step]
    if isinstance(found, Mapping) and isinstance(found.get("$ref"), str):
        target = look_up(schema, found["$ref"])
        found = found if target is ABSENT else target
    properties = found.get("properties") if isinstance(found, Mapping) else None
    return set(properties) if isinstance(properties, Mapping) else set()


def _misspelt(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> str:
    """A key that was given, is not known, and looks like the missing one."""
    if not isinstance(error.instance, dict) or len(error.instance) > 200:
        return ""
    unknown = [key for key in error.instance if key not in _properties_beside(error, schema)]
    near = get_close_matches(str(error.kind.value), unknown, 1, 0.6)
    return f" ({_name(near[0])} was given instead)" if near else ""


def _choice_of(known: Sequence[str]) -> str:
    if not known:
        return ""
    return f", only {', '.join(map(_name, known[:8]))}{', …' if len(known) > 8 else ''}"


def _articled(types: Any) -> str:
    """``["null", "integer"]`` → ``an integer or null``."""
    names = [types] if isinstance(types, str) else sorted(types, key=lambda name: (name == "null", name))
    words = [n if n == "null" else f"{'an' if n[0] in 'aio' else 'a'} {n}" for n in names]
    return " or ".join(words)


def _path(steps: Iterable[Any]) -> str:
    """``["filter", "tags", 2]`` → ``filter.tags[2]``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{_name(step)}" for step in steps)
    return text.removeprefix(".")


def _name(key: Any) -> str:
    return one_line(key, 80) or '""'


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return one_line(json.dumps(value, ensure_ascii=False, default=str), 60)
