"""A tools/list made into records: one bad entry never costs its neighbours."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.catalog.build import AsPublished, Listing, make_tools
from gateway.config.model import StdioUpstream, ToolOverride
from tests.catalog.samples import entry, named


def listed(*entries: Any, **overrides: ToolOverride) -> Listing:
    return make_tools("x", AsPublished(overrides), entries)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_a_record_keeps_what_the_upstream_sent() -> None:
    sent = entry(
        "a", "Does it.", {"type": "object", "x-own": 1}, title="A", annotations={"readOnlyHint": True}, odd=[1]
    )
    (tool,) = listed(sent).tools
    assert (tool.raw_name, tool.name, tool.title, tool.description) == ("a", "x__a", "A", "Does it.")
    assert tool.definition == sent
    assert tool.input_schema == {"type": "object", "x-own": 1}
    assert tool.annotations == {"readOnlyHint": True}


def test_tools_are_ordered_by_name() -> None:
    assert [tool.name for tool in listed(*named("b", "a", "C")).tools] == ["x__C", "x__a", "x__b"]


@pytest.mark.case("SCHEMAS-03")
@pytest.mark.parametrize(
    "schema", [{}, True, None, {"type": ["object", "null"]}, {"type": "object"}, {"type": "string"}, False]
)
def test_minimal_and_odd_schemas_mean_any_object(schema: Any) -> None:
    (tool,) = listed({"name": "a", "inputSchema": schema}).tools
    assert isinstance(tool.input_schema, dict)
    assert tool.input_schema.get("type", "object") in ("object", ["object", "null"])


@pytest.mark.case("SCHEMAS-03")
def test_an_absent_schema_means_any_object_and_a_list_drops_the_tool() -> None:
    listing = listed({"name": "a"}, {"name": "b", "inputSchema": [1]}, entry("c"))
    assert [tool.raw_name for tool in listing.tools] == ["a", "c"]
    (problem,) = listing.problems
    assert str(problem) == "x: tool 'b' is left out: its inputSchema is not an object"


@pytest.mark.case("SCHEMAS-04")
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (entry("bad", schema={"type": "object", "description": "d" * 300_000}), "inputSchema is larger than 256 KiB"),
        (entry("bad", schema={"enum": [0] * 300_000}), "inputSchema is larger than 256 KiB"),
        (entry("bad", schema={"properties": {"a": nested(500)}}), "inputSchema is nested deeper than 64 levels"),
        (entry("bad", outputSchema=nested(5_000)), "outputSchema is nested deeper than 64 levels"),
        (entry("bad", "d" * 2_000_000), "definition is larger than 1024 KiB"),
        (entry("n" * 1_025), "its name has 1025 characters"),
        (entry(""), "it has no name"),
        ({"inputSchema": {}}, "it has no name"),
        ({"name": 5}, "it has no name"),
        ("bad", "it is not an object"),
        (entry("good"), "the upstream lists this name twice"),
    ],
)
def test_a_bad_entry_is_left_out_with_its_reason(bad: Any, reason: str) -> None:
    listing = listed(entry("good"), bad, entry("other"))
    assert [tool.raw_name for tool in listing.tools] == ["good", "other"]
    (problem,) = listing.problems
    assert reason in problem.reason
    assert problem.dropped


def test_schemas_at_the_limit_stay() -> None:
    assert len(listed(entry("a", schema={"properties": {"a": nested(61)}})).tools) == 1
    assert len(listed(entry("a", schema={"description": "d" * 250_000})).tools) == 1


class TestOverrides:
    def test_an_alias_is_the_name_and_the_upstream_still_hears_its_own(self) -> None:
        (tool,) = listed(entry("search-all"), **{"search-all": ToolOverride(alias="find")}).tools
        assert (tool.name, tool.raw_name, tool.shown_name) == ("x__find", "search-all", "find")

    def test_a_description_is_replaced_and_a_disabled_tool_is_gone(self) -> None:
        listing = listed(
            entry("a", "old"), entry("b"), a=ToolOverride(description="new"), b=ToolOverride(disabled=True)
        )
        assert [(tool.raw_name, tool.description) for tool in listing.tools] == [("a", "new")]
        assert listing.problems == ()

    def test_two_tools_may_swap_names(self) -> None:
        listing = listed(*named("a", "b"), a=ToolOverride(alias="b"), b=ToolOverride(alias="a"))
        assert {tool.name: tool.raw_name for tool in listing.tools} == {"x__a": "b", "x__b": "a"}

    def test_an_alias_that_is_another_tools_name_is_ignored_and_said(self) -> None:
        listing = listed(*named("a", "b"), a=ToolOverride(alias="b"))
        assert {tool.name: tool.raw_name for tool in listing.tools} == {"x__a": "a", "x__b": "b"}
        assert "its alias 'b' is another tool's name" in listing.problems[0].reason

    def test_an_override_of_a_tool_that_is_not_there_is_said(self) -> None:
        assert "has none of that name" in listed(entry("a"), gone=ToolOverride(alias="b")).problems[0].reason

    def test_an_upstream_of_the_config_is_a_tool_config(self) -> None:
        config = StdioUpstream(command="run", prefix="w_", tools={"a": ToolOverride(alias="first")})
        (tool,) = make_tools("x", config, named("a")).tools
        assert (tool.name, tool.direct_name) == ("x__first", "w_first")


class TestDigest:
    def test_it_changes_with_what_a_tool_says_of_itself_and_with_nothing_else(self) -> None:
        base = entry("a", "Does it.", {"type": "object", "title": "t"})
        (tool,) = listed(base).tools
        reordered = {**dict(reversed(base.items())), "inputSchema": {"title": "t", "type": "object"}, "_meta": {"n": 1}}
        assert listed(reordered).tools[0].digest == tool.digest
        for change in (
            {"description": "Does that."},
            {"inputSchema": {"type": "object", "title": "u"}},
            {"outputSchema": {"type": "object"}},
            {"annotations": {"destructiveHint": True}},
        ):
            assert listed({**base, **change}).tools[0].digest != tool.digest

    def test_it_is_the_upstreams_own_text_that_counts(self) -> None:
        plain, changed = listed(entry("a", "old")), listed(entry("a", "old"), a=ToolOverride(description="new"))
        assert plain.tools[0].digest == changed.tools[0].digest


@pytest.mark.case("SCHEMAS-07")
def test_invisible_text_is_reported_to_the_operator() -> None:
    listing = listed(
        entry("a", "Adds\u202e two\u200b numbers\U000e0041"), entry("b", "Plain “text” – with dashes 👍🏽")
    )
    (problem,) = listing.problems
    assert (problem.tool, problem.dropped) == ("a", False)
    assert "3 invisible" in problem.reason
