"""Strict YAML: a text is read as it looks, or not at all."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.config.document import MAX_DEPTH, Document, parse
from gateway.config.problem import ConfigError


def read(text: str) -> Document:
    try:
        return parse(text, "f")
    except ConfigError as error:
        document = Document("f")
        document.problems.extend(error.problems)
        return document


def value(text: str) -> Any:
    document = parse(text, "f")
    assert document.problems == []
    return document.value


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("0", 0),
        ("-12", -12),
        ("2.50", 2.5),
        ("1e3", 1000.0),
        ("'on'", "on"),
        ('"0123"', "0123"),
        ("'12:30'", "12:30"),
        ("127.0.0.1", "127.0.0.1"),
        ("1.2.3", "1.2.3"),
        ("30s", "30s"),
        ("onward", "onward"),
        ("yes please", "yes please"),
        ("a${B}", "a${B}"),
        ("http://a.b/c", "http://a.b/c"),
    ],
)
@pytest.mark.case("CONFIG-01")
def test_what_all_readers_agree_about_is_read(text: str, meaning: Any) -> None:
    for shape in (f"a: {text}", f"a:\n  {text}\n", f"{{a: {text}}}"):
        assert value(shape) == {"a": meaning}


@pytest.mark.parametrize(
    "text",
    [
        "on",
        "On",
        "ON",
        "off",
        "yes",
        "Yes",
        "no",
        "No",
        "y",
        "n",
        "Y",
        "N",
        "True",
        "TRUE",
        "False",
        "Null",
        "NULL",
        "0123",
        "-07",
        "0x1F",
        "0o17",
        "0b11",
        "1_000",
        "1_0.5",
        "12:30",
        "12:30:45",
        "-1:30.5",
        ".inf",
        "-.INF",
        ".nan",
        "2026-11-01",
        "2026-11-01T10:00:00Z",
        "&a",
        "*a",
        "!!str",
        "!local",
        "1e999",
        "123456789012345678901",
    ],
)
@pytest.mark.case("CONFIG-01")
def test_what_readers_disagree_about_is_an_error_as_a_value_as_an_item_and_as_a_key(text: str) -> None:
    assert [(p.line, p.column, p.path) for p in read(f"x: 1\na:   {text}\n").problems] == [(2, 6, "a")]
    assert [(p.line, p.column, p.path) for p in read(f"a: [1, {text} ]").problems] == [(1, 8, "a[1]")]
    (as_key,) = read(f"a:\n  {text} : 1\n").problems
    assert (as_key.line, as_key.column) == (2, 3)


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "{a: 1, b: 2, a: 3}", "a: 1\nb: 2\n'a': 3", "a: 1\nb: 2\na: 1"])
@pytest.mark.case("CONFIG-01")
def test_a_key_that_is_given_twice_is_an_error_at_the_second(text: str) -> None:
    for prefix, path in (("", "a"), ("t:\n  - ", "t[0].a")):
        (problem,) = read(prefix + text.replace("\n", "\n    " if prefix else "\n")).problems
        assert (problem.path, problem.message.partition(",")[0]) == (path, "is given twice")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a: 1\n---\nb: 2", (2, 1), "a second document begins here: a config is one"),
        ("%YAML 1.1\n---\na: 1", (1, 1), "YAML directives are not supported: remove the line"),
        ("a: 1\n\tb: 2", (2, 1), "a tab: YAML wants spaces here"),
        ("a:\n  b:\tc", (2, 5), "a tab: YAML wants spaces here"),
        ("a: b: c", (1, 5), "a ':' is not allowed here"),
        ("a: 'b\nc", (1, 4), "the quote is never closed"),
        ("a: [b", (1, 6), "not valid YAML: expected ',' or ']'"),
        ("a: \ufeffb", (1, 4), "character U+FEFF is not allowed"),
        ("a: b\u2028c: d", (1, 5), "character U+2028 is not allowed"),
        ("a: \u202eb", (1, 4), "character U+202E is not allowed"),
        ("a: \ufdd0b", (1, 4), "character U+FDD0 is not allowed"),
        ('a: "\\UFFFFFFFF"', (1, 7), "not valid YAML: a number or an escape is out of range"),
        ('a: "\\0"', (1, 4), "holds a NUL character or half a surrogate pair"),
        ("a: {? b : c, [d]: e}", (1, 14), "a key must be text, not a list or a mapping"),
        ("a: 1\n?\n: 2", (2, 2), "a key is missing before the ':'"),
    ],
)
@pytest.mark.case("CONFIG-01")
def test_other_surprises_are_errors_at_their_place(text: str, place: tuple[int, int], message: str) -> None:
    (problem,) = read(text).problems
    assert (problem.line, problem.column) == place
    assert problem.message.startswith(message)


@pytest.mark.case("CONFIG-01")
def test_a_byte_order_mark_and_windows_line_ends_change_nothing() -> None:
    assert value("\ufeffa: 1\r\nb: |\r\n  c\r\n  d\r\n") == {"a": 1, "b": "c\nd\n"}
    (problem,) = read("\ufeffa: 1\r\nb:\r\n  c: on\r\n").problems
    assert (problem.line, problem.column) == (3, 6)
    (first_line,) = read("\ufeffa: on").problems
    assert (first_line.line, first_line.column) == (1, 4)


@pytest.mark.case("CONFIG-01")
def test_an_anchor_bomb_fails_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    begin = time.process_time()
    document = read("\n".join(lines))
    assert time.process_time() - begin < 0.1
    assert len(document.problems) == 12 + 11 * 10


def test_a_deep_file_fails_at_once_without_recursion() -> None:
    begin = time.process_time()
    (flow,) = read("a: " + "[" * 5_000 + "]" * 5_000).problems
    (block,) = read("".join(" " * depth + "a:\n" for depth in range(500))).problems
    assert time.process_time() - begin < 1
    assert flow.message == block.message == f"nested too deeply: {MAX_DEPTH} levels at most"


def test_a_variable_may_stand_unquoted_in_braces_and_brackets() -> None:
    text = "{a: ${A:-}, b: [x, ${B:-1,2}, '${C}', \"${D:-[]}\"], c: ${E:-{}}"
    assert read(text).problems != []  # braces inside of a default: only a nested variable may hold them
    text = "{a: ${A:-}, b: [x, ${B:-1,2}, '${C}', \"${D:-[]}\"], c: ${E:-?}}"
    assert value(text) == {"a": "${A:-}", "b": ["x", "${B:-1,2}", "${C}", "${D:-[]}"], "c": "${E:-?}"}
    (problem,) = read("{a: ${A:-b}, c: on}").problems
    assert problem.column == 17
