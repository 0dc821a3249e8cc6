"""pydantic's errors as plain sentences, with the nearest known key.

A sentence has no subject ("must be greater than 0"): the path before it is the subject. None holds a value.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from gateway.config.model import PATTERN_SENTENCES, GatewayConfig, HttpUpstream, StdioUpstream, upstream_model
from gateway.config.problem import Finding, Loc

_KEY_ERROR = "[key]"  # pydantic's last loc element when a key of a mapping is wrong

_SENTENCES = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "string_unicode": "must be valid text",
    "string_too_short": "must not be empty",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "tuple_type": "must be a list",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}


def findings(error: ValidationError, data: Any) -> Iterator[Finding]:
    """One finding for each error.

    Args:
        error: of ``GatewayConfig.model_validate(data)``.
        data: what was validated.
    """
    for details in error.errors(include_url=False, include_input=False):
        loc: Loc = details["loc"]
        if loc and loc[-1] == _KEY_ERROR:
            yield Finding(loc[:-1], _sentence(details, loc, data), on_key=True)
        elif details["type"] == "extra_forbidden":
            yield Finding(loc, _unknown_key(loc, data), on_key=True)
        else:
            yield Finding(loc, _sentence(details, loc, data))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean callTimeout?"`` or, when nothing is near, ``"; known: a, b"``; "" when nothing is known."""
    names = list(known)
    if to_camel(word) in names:
        return f"; did you mean {to_camel(word)}?"
    by_lower = {name.lower(): name for name in names}
    if near := difflib.get_close_matches(word.lower(), by_lower, 1, 0.6):
        return f"; did you mean {by_lower[near[0]]}?"
    return f"; known: {', '.join(names[:20])}" + (", …" if len(names) > 20 else "") if names else ""


def _sentence(details: ErrorDetails, loc: Loc, data: Any) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_type":
        value = value_at(data, loc)
        return "must be text" + (": quote it" if isinstance(value, (bool, int, float)) else "")
    if kind == "string_pattern_mismatch":
        return PATTERN_SENTENCES.get(context["pattern"], f"must match {context['pattern']}")
    if kind == "missing" and len(loc) == 3 and loc[0] == "upstreams" and loc[2] == "command":
        return "is required, or url for a server that is reached over HTTP"
    return _SENTENCES[kind].format(**context) if kind in _SENTENCES else details["msg"]


def _unknown_key(loc: Loc, data: Any) -> str:
    key, known = str(loc[-1]), _known_keys(loc[:-1], data)
    if loc[0] == "upstreams" and len(loc) == 3:
        if key == "url":
            return "both command and url are given: a server is either started or reached, not both"
        other, needs = (HttpUpstream, "url") if "command" in known else (StdioUpstream, "command")
        if key in _keys_of(other):
            return f"is only for servers with {needs}"
    return "unknown key" + did_you_mean(key, known)


def value_at(data: Any, loc: Loc) -> Any:
    """The value at ``loc``, or None when there is none."""
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _known_keys(loc: Loc, data: Any) -> list[str]:
    """The keys that the mapping at ``loc`` may have, as far as its model names them."""
    kind: Any = GatewayConfig
    for depth, part in enumerate(loc, 1):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = next((info.annotation for name, info in kind.model_fields.items() if info.alias == part), None)
        else:
            kind = (get_args(kind) or (None,))[-1]  # dict[str, X] → X
        kind = _unwrap(kind, value_at(data, loc[:depth]))
    return _keys_of(kind) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _unwrap(kind: Any, value: Any) -> Any:
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not NoneType]
        return upstream_model(value) if StdioUpstream in members else members[0]
    return kind
