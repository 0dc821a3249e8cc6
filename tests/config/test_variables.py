"""Variables: inserted in every string, once, as they are; never silently empty, never a placeholder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.loader import ConfigError, loads
from gateway.config.schema import json_schema
from gateway.config.variables import MAX_FILE_BYTES, expand

ENV = {"SET": "value", "EMPTY": "", "OTHER": "${SET}"}


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("${SET}", "value"),
        ("a ${SET} b ${SET}", "a value b value"),
        ("${SET:-default}", "value"),
        ("${UNSET:-default}", "default"),
        ("${UNSET:-}", ""),
        ("${UNSET:-a:-b c}", "a:-b c"),
        ("${EMPTY}", ""),
        ("${EMPTY:-default}", ""),  # set to nothing is set
        ("${OTHER}", "${SET}"),  # what comes in is not expanded again
        ("$SET", "$SET"),
        ("$$", "$$"),
        ("$", "$"),
        ("cost: 5$ {x}", "cost: 5$ {x}"),
        ("$${SET}", "${SET}"),
        ("$${UNSET", "${UNSET"),
        ("$${SET} ${SET}", "${SET} value"),
    ],
)
@pytest.mark.case("CONFIG-02")
def test_references_are_replaced_and_every_other_dollar_is_itself(text: str, meaning: str) -> None:
    assert expand(text, ENV) == (meaning, ())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("${UNSET}", "variable UNSET is not set"),
        ("${}", "malformed"),
        ("${ SET }", "malformed"),
        ("${1}", "malformed"),
        ("${SET-x}", "malformed"),
        ("${SET:?x}", "malformed"),
        ("${env:SET}", "malformed"),
        ("${A${B}}", "a variable inside of a variable"),
        ("${A:-${B}}", "a variable inside of a variable"),
        ("${SET", "not closed"),
        ("${file:relative}", "needs an absolute path"),
        ("${file:}", "needs an absolute path"),
        ("${file:/nowhere/x}", "file /nowhere/x cannot be read: No such file or directory"),
        ("${file:/}", "file / cannot be read: it is a folder"),
        ("${file:/dev/zero}", "file /dev/zero cannot be read: it is no regular file"),
    ],
)
@pytest.mark.case("CONFIG-02")
def test_what_cannot_be_resolved_is_an_error_that_names_it(text: str, complaint: str) -> None:
    _, (found,) = expand(text, ENV)
    assert complaint in found


def test_a_file_is_inserted_without_its_last_line_break(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    for content, meaning in (
        (b"a\n", "a"),
        (b"a\r\n", "a"),
        (b"a\n\n", "a\n"),
        (b"a", "a"),
        (b"", ""),
        (b"a\r", "a\r"),
    ):
        secret.write_bytes(content)
        assert expand(f"x${{file:{secret}}}y", {}) == (f"x{meaning}y", ())
    for content, complaint in ((b"\xff", "not UTF-8"), (b"\0", "NUL"), (b"x" * (MAX_FILE_BYTES + 1), "larger than")):
        secret.write_bytes(content)
        assert complaint in expand(f"${{file:{secret}}}", {})[1][0]


def test_a_variable_of_bytes_that_are_no_text_is_an_error() -> None:
    assert expand("${X}", {"X": b"\xff".decode("utf-8", "surrogateescape")})[1] == ("variable X is not UTF-8 text",)


# ---------------------------------------------------------------- in a file


def config(section: str, **env: str) -> Any:
    text = f"version: 1\nupstreams: {{}}\ntenants: {{}}\n{section}\n"
    return loads(text, "f.yaml", env)


@pytest.mark.parametrize(
    ("written", "port"), [("${PORT}", 7001), ("${PORT:-1}", 7001), ("${UNSET:-7002}", 7002), ("  ${PORT}  ", 7001)]
)
def test_an_unquoted_variable_may_be_a_number(written: str, port: int) -> None:
    assert config(f"server: {{port: {written}}}", PORT="7001").server.port == port


def test_an_unquoted_variable_may_be_a_boolean_and_the_version() -> None:
    text = "version: ${V}\nupstreams: {a: {command: x, disabled: ${OFF}}}\ntenants: {}"
    assert loads(text, "f", {"V": "1", "OFF": "true"}).upstreams["a"].disabled is True


@pytest.mark.parametrize("written", ['"${PORT}"', "'${PORT}'", "7${PORT}", "${PORT}${PORT}", "${WORD}", "${OCTAL}"])
def test_everything_else_stays_text_and_no_number_is_guessed(written: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.port: must be a whole number"):
        config(f"server: {{port: {written}}}", PORT="70", WORD="many", OCTAL="070")


def test_a_number_from_a_variable_is_checked_as_any_other() -> None:
    with pytest.raises(ConfigError, match=r"^f\.yaml:4:16: server\.port: must be at most 65535$"):
        config("server: {port: ${PORT}}", PORT="70000")


def test_where_text_is_wanted_a_variable_is_text_whatever_it_looks_like() -> None:
    for word in ("123", "true", "null", "on", "0123", ""):
        assert config("admin: {token: ${T}}", T=word).admin.token == word


HOSTILE = [
    ": x",
    "\nadmin: {token: x}",
    "${OTHER}",
    "'\"",
    "# no comment",
    "*anchor",
    "&a",
    "{a: b}",
    "$${",
    "x" * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:12]))
@pytest.mark.case("CONFIG-04")
def test_the_value_of_a_variable_changes_nothing_but_its_field(text: str) -> None:
    for written in ("${V}", '"${V}"', "'${V}'", ">-\n    ${V}"):
        loaded = config(f"state:\n  pepper: {written}\n", V=text, OTHER="expanded twice")
        assert loaded == config("").model_copy(update={"state": loaded.state})
        assert loaded.state.pepper == text


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
@pytest.mark.case("CONFIG-04")
def test_any_text_arrives_unchanged(text: str) -> None:
    assert config('state: {pepper: "<${V}>"}', V=text).state.pepper == f"<{text}>"


# ---------------------------------------------------------------- every string of the schema

Place = tuple[str, ...]
"""Keys from the root; "*" is an entry of a mapping, "#" an item of a list."""


def string_places(schema: dict[str, Any], root: dict[str, Any], place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every place of the schema where a text may stand, and the schema of that text."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for alternative in schema.get("anyOf", []):
        yield from string_places(alternative, root, place)
    for key, item in schema.get("properties", {}).items():
        yield from string_places(item, root, (*place, key))
    for keyword, part in (("additionalProperties", "*"), ("items", "#")):
        if isinstance(schema.get(keyword), dict):
            yield from string_places(schema[keyword], root, (*place, part))
    if schema.get("type") == "string":
        yield place, schema


SAMPLES = {
    "publicUrl": "http://a.example",
    "url": "http://a.example/mcp",
    "ledger": "sqlite:///a.db",
    "keys": "sqlite:///a.db",
    "maxBody": "7KiB",
    "maxHeaderBytes": "7KiB",
    "headerTimeout": "7s",
    "bodyTimeout": "7s",
    "memoryLimitBytes": "7KiB",
    "startTimeout": "7s",
    "listTimeout": "7s",
    "callTimeout": "7s",
    "queueTimeout": "7s",
    "mode": "auto",
    "encoding": "cl100k_base",
    "quotas": "memory://",
    "isolation": "shared",
    "kernel": "python",
}
PLACES = sorted({place for place, schema in string_places(json_schema(), json_schema()) if place != ("version",)})


def build(place: Place) -> tuple[dict[str, Any], str]:
    """A valid config with ``${V}`` at the place, and the value that V must have."""
    data: dict[str, Any] = {"version": 1, "upstreams": {}, "tenants": {}}
    at: Any = data
    for index, part in enumerate(place):
        last = index == len(place) - 1
        key: Any = {"*": "entry", "#": 0}.get(part, part)
        following: Any = "${V}" if last else [] if place[index + 1] == "#" else {}
        if isinstance(at, list):
            at.append(following)
        else:
            at.setdefault(key, following)
            at[key] = following if last else at[key]
        at = at[key]
        if place[: index + 1] == ("upstreams", "*"):
            kind = "url" if {"url", "headers"} & set(place) else "command"
            at.setdefault(kind, SAMPLES["url"])
        if place[: index + 1] == ("tenants", "*"):
            at.setdefault("upstreams", {})
        if place[: index + 1] == ("kernels", "*"):
            at.setdefault("engine", "monty")
    if place[:3] == ("tenants", "*", "upstreams"):
        data["upstreams"]["entry"] = {"command": "x"}
    sample = SAMPLES.get(place[-1], "text")
    if place == ("admin", "host"):
        sample = "localhost"
    elif place[-1] == "#" and place[-2].endswith("Paths"):
        sample = "/srv/docs"
    elif place[-2:] == ("clientCapabilities", "#"):
        sample = "sampling"
    elif place[-1] == "type":
        sample = "stdio"
    elif "port" in place or place[-1].startswith(("cpu", "wall", "max", "auto", "requests", "tool", "tokens", "conc")):
        sample = SAMPLES.get(place[-1], "70")
    elif place[-1] in ("disabled", "workers"):
        sample = {"disabled": "true", "workers": "7"}[place[-1]]
    return data, sample


def dig(data: Any, place: Place) -> Any:
    for part in place:
        data = data[{"*": "entry", "#": 0}.get(part, part)]
    return data


@pytest.mark.case("CONFIG-03")
@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_a_variable_is_expanded_in_every_field(place: Place) -> None:
    data, sample = build(place)
    text = json.dumps(data).replace('"${V}"', "${V}")
    loaded = loads(text, "f.yaml", {"V": sample})
    data_literal = json.dumps(data).replace('"${V}"', sample if sample in ("true", "7", "70") else json.dumps(sample))
    assert loaded == loads(data_literal, "f.yaml", {})
    assert dig(loaded.model_dump(by_alias=True, warnings=False), place) not in ("${V}", None, "")


@pytest.mark.case("CONFIG-03")
def test_the_places_are_all_there() -> None:
    assert len(PLACES) > 45
    assert ("upstreams", "*", "args", "#") in PLACES
    assert ("tenants", "*", "upstreams", "*", "#") in PLACES
