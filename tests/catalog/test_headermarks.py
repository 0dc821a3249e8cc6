"""What a tool wants in HTTP headers is between the gateway and its upstream."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gateway.catalog.build import AsPublished, make_tools
from gateway.catalog.headermarks import without_header_marks
from tests.catalog.samples import entry

MARKED = {"type": "string", "x-mcp-header": "Region"}
PLAIN = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"properties": {"a": MARKED, "b": PLAIN}}, {"properties": {"a": PLAIN, "b": PLAIN}}),
        ({"properties": {"a": {"properties": {"b": MARKED}}}}, {"properties": {"a": {"properties": {"b": PLAIN}}}}),
        ({"anyOf": [PLAIN, MARKED]}, {"anyOf": [PLAIN, PLAIN]}),
        ({"$defs": {"r": MARKED}, "items": MARKED}, {"$defs": {"r": PLAIN}, "items": PLAIN}),
        (MARKED, PLAIN),
    ],
)
def test_marks_are_taken_out_wherever_they_stand(schema: Any, shown: Any) -> None:
    before = copy.deepcopy(schema)
    assert without_header_marks(schema) == shown
    assert schema == before, "what the upstream sent is left as it is"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x-mcp-header": PLAIN}},
        {"properties": {"a": {"const": MARKED, "default": [MARKED], "enum": [MARKED]}}},
        {"properties": {"a": {"anyOf": [PLAIN, {"type": "null"}]}}, "required": ["a"]},
        None,
        True,
    ],
)
def test_everything_else_is_the_very_same_object(schema: Any) -> None:
    assert without_header_marks(schema) is schema


def test_no_record_shows_a_mark() -> None:
    sent = entry("t", schema={"type": "object", "properties": {"region": MARKED}})
    (tool,) = make_tools("x", AsPublished(), [sent]).tools
    shown = {"type": "object", "properties": {"region": PLAIN}}
    assert tool.input_schema == shown
    assert tool.definition == {**sent, "inputSchema": shown}
