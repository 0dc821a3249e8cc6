"""The tools of real servers, and questions with known answers, kept beside the repository."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.catalog.build import AsPublished, make_tools
from gateway.catalog.pystub import python_stub
from gateway.catalog.search import search
from gateway.catalog.snapshot import Catalog, UpstreamEntry
from gateway.catalog.view import TenantView
from tests.catalog.samples import view_of_all

SHARED = Path(__file__).parents[3] / "shared"
CATALOGS = sorted((SHARED / "catalogs").glob("*.json"))


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.case("DOCS-05")
@pytest.mark.parametrize("path", CATALOGS, ids=lambda path: path.stem)
def test_all_tools_of_a_server_are_usable_and_their_stubs_parse(path: Path) -> None:
    raw = load(path)["tools"]
    listing = make_tools(path.stem, AsPublished(), raw)
    assert len(listing.tools) == len(raw)
    assert len({tool.identifier for tool in listing.tools}) == len(raw)
    assert len({tool.direct_name for tool in listing.tools}) == len(raw)
    for tool in listing.tools:
        for text in (python_stub(tool, "line"), python_stub(tool), python_stub(tool, "full")):
            ast.parse(text)
            assert tool.identifier in text


def indexed(tools_of: Mapping[str, list[Any]]) -> TenantView:
    snapshot = Catalog.empty()
    for name, raw in tools_of.items():
        snapshot = snapshot.with_upstream(UpstreamEntry(name, make_tools(name, AsPublished(), raw).tools))
    return view_of_all(snapshot)


def recall(view: TenantView, queries: list[Any], k: int) -> float:
    """Percent of the needs that one of the first ``k`` tools meets."""
    total = 0.0
    for query in queries:
        ids = {f"{tool.upstream}/{tool.raw_name}" for tool in search(query["q"], view, k)}
        total += sum(bool(ids & set(need)) for need in query["gold"]) / len(query["gold"])
    return 100 * total / len(queries)


@pytest.mark.parametrize(
    ("name", "style", "at_5", "at_10"),
    [
        ("livemcpbench", "step", 70, 75),
        ("graph_tool_call_mcp", None, 94, 94),
        ("k8s_core_v1", None, 88, 88),
        ("github_rest", None, 80, 80),
        ("toollinkos", None, 91, 91),
    ],
)
def test_questions_find_their_tools(name: str, style: str | None, at_5: float, at_10: float) -> None:
    data = load(SHARED / "retrieval" / f"{name}.json")
    tools_of: dict[str, list[Any]] = {}
    for tool in data["tools"]:
        tools_of.setdefault(tool["server"], []).append(tool)
    view = indexed(tools_of)
    queries = [query for query in data["queries"] if style in (None, query["style"])]
    assert recall(view, queries, 5) >= at_5
    assert recall(view, queries, 10) >= at_10


def test_own_questions_find_their_tools() -> None:
    view = indexed({path.stem: load(path)["tools"] for path in CATALOGS})
    queries = load(SHARED / "retrieval" / "own_queries.json")["queries"]
    sentences = [query for query in queries if query["style"] == "sentence"]
    assert recall(view, sentences, 5) >= 88
    assert recall(view, sentences, 10) >= 93
    assert recall(view, [query for query in queries if query["style"] == "keywords"], 5) >= 97
