"""The catalogue is a value: every change is a new one, and old ones stay as they were."""

from __future__ import annotations

from dataclasses import replace

from gateway.catalog.search import search
from gateway.catalog.snapshot import Catalog
from tests.catalog.samples import catalog, entry, named, upstream, view_of_all


def test_the_empty_catalogue_has_nothing() -> None:
    empty = Catalog.empty()
    assert (empty.version, dict(empty.upstreams), dict(empty.tools)) == (0, {}, {})


def test_every_change_raises_the_version_and_leaves_the_old_one_alone() -> None:
    first = Catalog.empty().with_upstream(upstream("a", named("x")))
    second = first.with_upstream(upstream("b", named("y")))
    third = second.without("a")
    assert (first.version, second.version, third.version) == (1, 2, 3)
    assert (list(first.upstreams), list(second.upstreams), list(third.upstreams)) == (["a"], ["a", "b"], ["b"])
    assert "b__y" not in first.tools
    assert "a__x" in second.tools
    assert "a__x" not in third.tools


def test_removing_what_is_not_there_changes_nothing() -> None:
    snapshot = catalog({"a": named("x")})
    assert snapshot.without("b") is snapshot


def test_replacing_an_upstream_replaces_its_tools_and_its_part_of_the_index() -> None:
    before = catalog({"a": [entry("x", "Paints walls.")], "b": [entry("z", "Paints doors.")]})
    after = before.with_upstream(upstream("a", [entry("y", "Sweeps floors.")]))
    assert set(after.tools) == {"a__y", "b__z"}
    assert [tool.name for tool in search("walls", view_of_all(after))] == []
    assert [tool.name for tool in search("floors", view_of_all(after))] == ["a__y"]
    assert [tool.name for tool in search("walls", view_of_all(before))] == ["a__x"]
    assert [tool.name for tool in search("paints", view_of_all(after))] == ["b__z"]


def test_an_index_that_was_changed_ranks_like_one_that_was_built_anew() -> None:
    texts = {"a": "red paint", "b": "blue paint for red walls", "c": "paint"}
    changed = catalog({name: [entry("old", "glue")] for name in texts})
    for name, text in texts.items():
        changed = changed.with_upstream(upstream(name, [entry("t", text)]))
    fresh = catalog({name: [entry("t", text)] for name, text in texts.items()})
    questions = ("red paint", "walls", "glue", "paint")
    assert [search(q, view_of_all(changed)) for q in questions] == [search(q, view_of_all(fresh)) for q in questions]


def test_an_upstream_that_goes_down_keeps_its_tools_marked() -> None:
    up = upstream("a", named("x"))
    down = replace(up, available=False, state="down", reason="refused the connection", since=17.0)
    snapshot = Catalog.empty().with_upstream(up).with_upstream(down)
    assert snapshot.tools["a__x"].raw_name == "x"
    assert snapshot.upstreams["a"].available is False
    assert snapshot.upstreams["a"].reason == "refused the connection"


def test_the_entry_of_an_upstream_carries_the_names_that_are_valid_now() -> None:
    snapshot = catalog({"my-git": named("log"), "my_git": named("log")})
    (tool,) = snapshot.upstreams["my-git"].tools
    assert tool.identifier == "my_git__log_2"
    assert tool is snapshot.tools["my_git__log_2"]
