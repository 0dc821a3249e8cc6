"""Wrong arguments are refused before anything is sent, in words that a model can act on."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.catalog.arguments import ArgumentValidator
from gateway.catalog.checkable import prepare
from gateway.errors import ErrorClass, GatewayError
from tests.catalog.samples import broken_schemas, tool

SCHEMA = {
    "type": "object",
    "properties": {
        "repo_path": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1},
        "mode": {"enum": ["short", "full", "oneline", "raw"]},
        "when": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        "filter": {
            "type": "object",
            "properties": {"tags": {"type": "array", "items": {"type": "string"}}},
            "additionalProperties": False,
        },
        "target": {
            "anyOf": [
                {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["x"]},
                {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["y"]},
            ]
        },
    },
    "required": ["repo_path"],
    "additionalProperties": False,
}


def refused(arguments: Any, schema: Any = SCHEMA) -> GatewayError | None:
    try:
        ArgumentValidator().check(tool("get_log", schema=schema), arguments)
    except GatewayError as error:
        return error
    return None


def problem(arguments: Any, schema: Any = SCHEMA) -> str:
    error = refused(arguments, schema)
    assert error is not None
    return error.message.removeprefix("git__get_log: ")


@pytest.mark.parametrize(
    "arguments",
    [
        {"repo_path": "x"},
        {"repo_path": "x", "limit": 3, "mode": "raw", "when": None},
        {"repo_path": "x", "limit": 3.0, "filter": {"tags": ["a"]}, "target": {"kind": "b", "y": "z"}},
    ],
)
def test_right_arguments_pass(arguments: Any) -> None:
    assert refused(arguments) is None


@pytest.mark.case("SCHEMAS-06")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "repo_path: is required"),
        ({"repo_path": 5}, "repo_path: must be a string, got 5"),
        ({"repo_path": "x", "limit": "ten"}, 'limit: must be an integer, got "ten"'),
        ({"repo_path": "x", "limit": 0}, "limit: 0 is less than the minimum of 1"),
        (
            {"repo_path": "x", "mode": "ful"},
            'mode: must be one of "short", "full", "oneline", "raw", got "ful", did you mean "full"?',
        ),
        ({"repo_path": "x", "limt": 5}, "limt: no such parameter, did you mean limit?"),
        ({"repo_path": "x", "when": 5}, "when: must be a string or null, got 5"),
        ({"repo_path": "x", "filter": {"tags": ["a", 3]}}, "filter.tags[1]: must be a string, got 3"),
        ({"repo_path": "x", "filter": {"tgs": []}}, "filter.tgs: no such parameter, did you mean tags?"),
        ({"repo_path": "x", "filter": {"zzz": []}}, "filter.zzz: no such parameter, only tags"),
        ({"repo_path": "x", "target": {"kind": "a", "x": "1"}}, 'target.x: must be an integer, got "1"'),
        ({"repo_path": "x", "target": 5}, "target: must be an object, got 5"),
        ([1], "arguments must be an object, got an array"),
        ("x", 'arguments must be an object, got "x"'),
    ],
)
def test_a_problem_names_the_place_and_what_is_expected(arguments: Any, expected: str) -> None:
    assert problem(arguments) == expected


def test_a_misspelt_required_parameter_is_told_as_such() -> None:
    assert "repo_path: is required (repopath was given instead)" in problem({"repopath": "x"})


def test_a_choice_of_required_parameters_is_told_as_one() -> None:
    schema = {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert problem({}, schema) == "needs one of a, b"


def test_at_most_three_problems_are_told_and_the_rest_counted() -> None:
    schema = {"properties": {name: {"type": "integer"} for name in "abcde"}}
    assert problem(dict.fromkeys("abcde", "x"), schema).endswith("; and 2 more")


@pytest.mark.case("SCHEMAS-06")
def test_the_hint_is_the_signature_and_the_whole_stays_short() -> None:
    error = refused({})
    assert error is not None
    assert error.error_class is ErrorClass.INVALID_ARGUMENTS
    assert error.hint is not None
    assert "async def git__get_log(*, repo_path: str, limit: int = ..." in error.hint
    huge = {"properties": {f"p{n}": {"properties": {"q": {"type": "string"}}} for n in range(150)}, "required": ["p7"]}
    error = refused({"p9": "x" * 10_000, "y" * 10_000: 1}, {**huge, "additionalProperties": False})
    assert error is not None
    assert len(str(error)) < 1_200
    assert error.hint == "git__get_log(p7=..., **...)"


class TestOddSchemas:
    @pytest.mark.case("SCHEMAS-02")
    @pytest.mark.parametrize("pointer", ["http://127.0.0.1:9/s.json", "file:///etc/hostname", "other.json#/a", "#gone"])
    def test_foreign_references_are_not_followed_and_the_rest_is_checked(self, pointer: str) -> None:
        schema = {"properties": {"a": {"$ref": pointer}, "b": {"type": "integer"}}, "$id": "http://127.0.0.1:9/"}
        assert refused({"a": 1, "b": 2}, schema) is None
        assert problem({"b": "x"}, schema) == 'b: must be an integer, got "x"'

    @pytest.mark.case("SCHEMAS-09")
    def test_patterns_are_matched_in_linear_time(self) -> None:
        schema = {"properties": {"a": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {"type": "integer"}}}
        assert "a: " in problem({"a": "a" * 50_000 + "b"}, schema)
        assert refused({"b" * 50_000 + "c": "x"}, schema) is None

    def test_a_pattern_that_the_engine_does_not_know_is_not_checked_but_the_types_are(self) -> None:
        schema = {"properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}
        assert refused({"a": "z"}, schema) is None
        assert problem({"a": 5}, schema) == "a: must be a string, got 5"

    @pytest.mark.parametrize(
        "schema",
        [
            {"properties": {"a": {"type": "integer"}}, "required": "a"},
            {"properties": {"a": {"type": "integer", "exclusiveMinimum": True, "minimum": 1}}},
            {"properties": {"a": {"type": "integer"}}, "type": 7, "enum": []},
            {"properties": {"a": {"type": "integer"}, "b": 7}, "anyOf": "x", "$schema": "http://example.com/own"},
            {"properties": {"a": {"type": "integer", "format": "unheard-of"}}, "$schema": 5},
        ],
    )
    def test_broken_keywords_are_passed_over(self, schema: Any) -> None:
        assert refused({"a": 1}, schema) is None
        assert problem({"a": "x"}, schema) == 'a: must be an integer, got "x"'

    def test_nullable_means_null_too(self) -> None:
        schema = {"properties": {"a": {"type": "string", "nullable": True}}}
        assert refused({"a": None}, schema) is None
        assert problem({"a": 5}, schema) == "a: must be a string or null, got 5"

    def test_keys_of_an_object_that_are_called_like_keywords_stay(self) -> None:
        schema = {"properties": {"pattern": {"type": "string"}, "$ref": {"type": "integer"}, "$id": {"type": "string"}}}
        assert prepare(schema, patterns=False) == schema

    def test_a_schema_that_cannot_be_used_is_said_once_and_its_tool_not_checked(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        unusable = tool(schema={"properties": {"a": {"items": [{"type": "string"}]}}})  # means nothing in 2020-12
        validator = ArgumentValidator()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                validator.check(unusable, {"a": 1})
        (record,) = caplog.records
        assert "git__log" in record.getMessage()

    def test_a_schema_of_too_many_parts_is_said_once_and_not_compiled(self, caplog: pytest.LogCaptureFixture) -> None:
        huge = tool(schema={"properties": {f"p{n}": {"type": "integer"} for n in range(3_000)}})
        validator = ArgumentValidator()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                validator.check(huge, {"p1": "x"})
        (record,) = caplog.records
        assert "git__log" in record.getMessage()
        assert "more than 2000 parts" in record.getMessage()


class TestBombs:
    """Each of these would take minutes, or not end; that the test comes back is the assertion."""

    def test_references_that_multiply(self) -> None:
        doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
        schema = {"$ref": "#/$defs/d0", "$defs": {**doubled, "d60": {"required": ["x"]}}}
        assert refused({}, schema) is None

    def test_recursion_that_multiplies_with_the_depth_of_the_value(self) -> None:
        node = {"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "object"}]}}}
        value: Any = 5
        for _ in range(50):
            value = {"a": value}
        assert refused(value, node) is None
        assert problem({"a": {"a": 5}}, node) == "a.a: must be an object, got 5"

    @pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
    def test_a_schema_that_applies_itself(self, word: str) -> None:
        assert refused({}, {word: [{"$ref": "#"}, {"$ref": "#"}]}) is None

    def test_errors_of_a_large_value_are_not_all_made(self) -> None:
        schema = {"properties": {"a": {"items": {"type": "integer"}}}}
        assert problem({"a": ["x"] * 100_000}, schema) == 'a[0]: must be an integer, got "x"'

    def test_many_alternatives_and_a_large_value(self) -> None:
        schema = {"anyOf": [{"required": [f"k{n}"]} for n in range(1_900)]}
        assert "too large to say where" in problem({"x": "y" * 100_000}, schema)


@pytest.mark.parametrize("value", [{"a": {1, 2}}, {"a": "\ud800"}, {1: 2}, {"a": object()}])
def test_what_is_no_json_is_refused_or_passes_but_never_breaks(value: Any) -> None:
    error = refused(value, {"properties": {"a": {"type": "integer"}}})
    assert error is None or error.message.startswith("git__get_log: ")


@settings(max_examples=80, deadline=None)
@given(
    parameter=broken_schemas(10),
    value=st.integers() | st.text(max_size=5) | st.lists(st.none(), max_size=2) | st.just({"a": {"class": 1}}),
)
def test_any_schema_and_any_arguments_end_in_a_pass_or_in_words(parameter: Any, value: Any) -> None:
    error = refused({"a": value}, {"properties": {"a": parameter}})
    assert error is None or len(error.message) < 2_000
