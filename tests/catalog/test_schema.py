"""JSON Schema read into types: what can be said is said, what cannot is marked, nothing runs away."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.catalog.pytypes import PythonTypes
from gateway.catalog.schema import ABSENT, look_up, read


def python(schema: Any) -> tuple[str, bool]:
    """The type in Python, and whether something was lost."""
    tree = read(schema, "Args")
    types = PythonTypes("T", 0, shallow=False)
    return types.write(tree.root, "Args", tree), tree.lossy or types.lossy


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "str"),
        ({"type": "number"}, "float"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"type": "string", "nullable": True}, "str | None"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "int | None"),
        ({"anyOf": [{"type": "integer"}, {"type": "integer"}, {}]}, "Any"),
        ({"enum": ["a", 1, True, None]}, "Literal['a', 1, True, None]"),
        ({"enum": [1.5, "a"]}, "Literal['a'] | float"),
        ({"const": "x"}, "Literal['x']"),
        ({"anyOf": [{"const": "a"}, {"type": "integer"}, {"const": "b"}]}, "Literal['a', 'b'] | int"),
        ({"anyOf": [{"const": 1}, {"const": True}]}, "Literal[1, True]"),
        ({"type": "array", "items": {"type": "string"}}, "list[str]"),
        ({"type": "array"}, "list[Any]"),
        ({"items": {"type": "string"}}, "list[str]"),
        ({"prefixItems": [{"type": "string"}, {"type": "integer"}]}, "list[str | int]"),
        ({"items": [{"type": "string"}], "additionalItems": {"type": "integer"}, "type": "array"}, "list[str | int]"),
        ({"additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"patternProperties": {"^x": {"type": "integer"}}, "type": "object"}, "dict[str, int]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "properties": {}}, "dict[str, Any]"),
        ({"type": "string", "anyOf": [{"format": "date"}, {"format": "time"}]}, "str"),
        ({"allOf": [{"type": "string"}, {"minLength": 3}]}, "str"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, "int"),
        ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "integer"}}}, "int"),
        ({"$ref": "#/anyOf/1", "anyOf": [{"type": "string"}, {"type": "integer"}]}, "int"),
        (True, "Any"),
        (False, "Never"),
    ],
)
def test_what_python_can_say_is_said_without_loss(schema: Any, expected: str) -> None:
    assert python(schema) == (expected, False)


@pytest.mark.case("SCHEMAS-01")
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": []}, "Any"),
        ({"enum": "x", "type": "string"}, "str"),
        ({"type": 7}, "Any"),
        ({"type": "text"}, "Any"),
        ({"type": []}, "Any"),
        ({"type": "object", "properties": []}, "dict[str, Any]"),
        ({"type": "object", "required": "x"}, "dict[str, Any]"),
        ({"enum": [str(n) for n in range(500)]}, "str"),
        ({"enum": [{"a": 1}]}, "Any"),
        ({"const": "x" * 101}, "str"),
        ({"type": "string", "not": {"const": "x"}}, "str"),
        ({"type": "string", "if": {}, "then": {}}, "str"),
        (5, "Any"),
    ],
)
def test_what_is_broken_or_cannot_be_said_is_marked(schema: Any, expected: str) -> None:
    assert python(schema) == (expected, True)


@pytest.mark.case("SCHEMAS-02")
@pytest.mark.parametrize(
    "pointer", ["http://127.0.0.1/s.json", "file:///etc/hostname", "other.json#/a", "#anchor", "#/$defs/none", "#/a/-1"]
)
def test_references_out_of_the_document_or_to_nowhere_are_any_and_marked(pointer: str) -> None:
    assert python({"type": "array", "items": {"$ref": pointer}, "a": [1]}) == ("list[Any]", True)


@pytest.mark.case("SCHEMAS-04")
@pytest.mark.parametrize(
    "definitions",
    [
        {"A": {"$ref": "#/$defs/A"}},
        {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/C"}, "C": {"$ref": "#/$defs/A"}},
        {"A": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/A"}]}},
    ],
)
def test_a_type_equal_to_itself_is_any_and_marked(definitions: Any) -> None:
    assert python({"$ref": "#/$defs/A", "$defs": definitions}) == ("Any", True)


def test_recursion_through_an_object_is_one_named_type() -> None:
    node = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    tree = read(node, "Args")
    types = PythonTypes("T", 0, shallow=False)
    assert types.write(tree.root, "Args", tree) == "T_Args"
    assert types.declarations == {"T_Args": "class T_Args(TypedDict):\n    kids: NotRequired[list[T_Args]]"}


def test_recursion_without_an_object_is_cut_at_the_second_round() -> None:
    value = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/V"}}]}
    assert python({"$ref": "#/$defs/V", "$defs": {"V": value}})[0] == "str | list[Any]"


def test_objects_that_must_all_fit_become_one() -> None:
    tree = read(
        {
            "allOf": [
                {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"properties": {"b": {"type": "integer"}, "a": {"description": "An a."}}},
            ]
        },
        "Args",
    )
    assert [(p.name, p.type.name, p.required, p.description) for p in tree.root.properties] == [
        ("a", "string", True, "An a."),
        ("b", "integer", False, ""),
    ]


def test_required_parameters_come_first_and_unknown_ones_are_any() -> None:
    tree = read({"properties": {"b": {}, "a": {"type": "string"}}, "required": ["a", "z"]}, "Args")
    assert [(p.name, p.type.kind, p.required) for p in tree.root.properties] == [
        ("a", "primitive", True),
        ("z", "any", True),
        ("b", "any", False),
    ]


@pytest.mark.parametrize(
    ("schema", "facts"),
    [
        ({"minimum": 1, "maximum": 100}, "1..100"),
        ({"minimum": 0}, "0.."),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1.5}, "> 0, < 1.5"),
        ({"minimum": 1, "exclusiveMinimum": True}, "1.."),
        ({"format": "date-time"}, "date-time"),
        ({"enum": list(range(31))}, "31 choices, see schema"),
        ({"deprecated": True}, "deprecated"),
        ({"minimum": 10**5000, "maximum": "9"}, ""),
    ],
)
def test_what_a_type_does_not_say_is_told_beside_it(schema: Any, facts: str) -> None:
    assert read({"properties": {"a": schema}}, "Args").root.properties[0].facts == facts


def test_looking_up_never_leaves_the_document() -> None:
    document = {"a": [{"b": 1}], "": 2}
    assert look_up(document, "#/a/0/b") == 1
    assert look_up(document, "#/") == 2
    assert look_up(document, "#") is document
    for pointer in ("", "a", "#a", "#/a/1", "#/a/x", "#/a/0/b/c", "http://x#/a"):
        assert look_up(document, pointer) is ABSENT
