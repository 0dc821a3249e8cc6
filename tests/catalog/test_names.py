"""The three spellings of a tool: unique, legal, and the same whatever arrives first."""

from __future__ import annotations

import random
import re

import pytest

from gateway.catalog.build import AsPublished
from gateway.catalog.names import assign, mangle
from gateway.catalog.snapshot import Catalog, UpstreamEntry
from gateway.config.model import StdioUpstream
from tests.catalog.samples import catalog, named, upstream, view_of_all

DIRECT = re.compile(r"[A-Za-z0-9_-]{1,64}")


def test_a_plain_tool_has_one_spelling() -> None:
    names = assign("git", ["log"])["log"]
    assert {names.name, names.identifier, names.direct_name} == {"git__log"}


@pytest.mark.case("NAMING-03")
def test_names_that_become_one_identifier_are_numbered_and_exact_ones_keep_theirs() -> None:
    names = assign("my-api", ["get.x", "get-x", "get_x", "getX", "1x", "class", "搜索"])
    assert {tool: found.identifier for tool, found in names.items()} == {
        "get_x": "my_api__get_x",
        "get-x": "my_api__get_x_2",
        "get.x": "my_api__get_x_3",
        "getX": "my_api__getX",
        "1x": "my_api__1x",
        "class": "my_api__class",
        "搜索": "my_api____",
    }


def test_a_number_that_is_taken_is_skipped() -> None:
    names = assign("a", ["x-y", "x_y", "x_y_2"])
    assert names["x-y"].identifier == "a__x_y_3"


def test_an_identifier_never_begins_with_a_digit() -> None:
    assert assign("7zip", ["list"])["list"].identifier == "_7zip__list"


@pytest.mark.case("NAMING-08")
def test_names_that_differ_in_case_or_unicode_form_stay_apart() -> None:
    tools = ["getItem", "getitem", "caf\u00e9", "cafe\u0301", "p\u0430y", "pay"]
    names = assign("a", tools)
    for spelling in ("name", "identifier", "direct_name"):
        assert len({getattr(found, spelling) for found in names.values()}) == len(tools)


def test_the_order_of_the_list_does_not_matter() -> None:
    tools = ["a b", "a-b", "a.b", "a_b", "a_b_2", "A_b", "a" * 90, "a" * 91]
    expected = assign("x", tools)
    for seed in range(5):
        random.Random(seed).shuffle(tools)
        assert assign("x", tools) == expected


@pytest.mark.case("NAMING-01")
def test_long_names_are_cut_to_64_characters_and_told_apart_by_a_hash() -> None:
    tools = ["t" * 100 + "_first", "t" * 100 + "_second"]
    names = assign("u" * 60, tools)
    direct = [names[tool].direct_name for tool in tools]
    assert len(set(direct)) == 2
    assert all(DIRECT.fullmatch(name) for name in direct)
    assert assign("u" * 60, tools[1:])[tools[1]].direct_name == direct[1], "stable when its neighbour is gone"
    assert [names[tool].name for tool in tools] == [f"{'u' * 60}__{tool}" for tool in tools]


@pytest.mark.case("NAMING-07")
def test_characters_that_providers_refuse_become_underscores_and_every_name_routes_back() -> None:
    tools = ["a.b", "a/b", "a b", "a:b", "a(b)", "n" * 1000, "plain"]
    snapshot = catalog({"x": named("", *tools)})
    view = view_of_all(snapshot)
    assert {found.raw_name for found in view.visible} == set(tools)
    for found in view.visible:
        assert DIRECT.fullmatch(found.direct_name)
        assert view.resolve(found.direct_name) is found


def test_an_illegal_name_never_takes_over_the_direct_name_of_another() -> None:
    alone = assign("x", ["a.b"])["a.b"].direct_name
    together = assign("x", ["a.b", "a/b"])
    assert alone == "x__a_b"
    assert alone not in {found.direct_name for found in together.values()}


@pytest.mark.case("NAMING-06")
def test_names_of_object_internals_are_plain_names() -> None:
    internals = ["toString", "constructor", "__proto__", "hasOwnProperty", "__class__", "__init__", "then"]
    view = view_of_all(catalog({"x": named(*internals)}))
    for name in internals:
        found = view.resolve(f"x__{name}")
        assert found is not None
        assert found.raw_name == name
        assert found.identifier.isidentifier()
    assert view.resolve("x____dict__") is None


class TestAWholeCatalogue:
    def test_upstreams_whose_names_become_one_do_not_share_an_identifier(self) -> None:
        one, other = upstream("my-git", named("log")), upstream("my_git", named("log"))
        for entries in ((one, other), (other, one)):
            snapshot = _joined(*entries)
            assert snapshot.tools["my_git__log"].upstream == "my_git"
            assert snapshot.tools["my-git__log"].identifier == "my_git__log_2"
            assert snapshot.tools["my_git__log_2"].upstream == "my-git"

    def test_bare_names_of_two_upstreams_are_reported_and_the_later_one_is_qualified(self) -> None:
        bare = AsPublished(prefix="")
        a, b = upstream("a", named("search", "x"), bare), upstream("b", named("search", "y"), bare)
        for entries in ((a, b), (b, a)):
            snapshot = _joined(*entries)
            assert snapshot.tools["search"].upstream == "a"
            assert snapshot.tools["b__search"].direct_name == "b__search"
            assert snapshot.tools["y"].direct_name == "y"
            (collision,) = snapshot.collisions
            assert (collision.spelling, collision.moved) == ("search", "b__search")
            assert "'b__search' and 'a__search' both want the name 'search'" in str(collision)

    def test_a_name_comes_back_when_what_stood_in_its_way_leaves(self) -> None:
        bare = AsPublished(prefix="")
        snapshot = _joined(upstream("a", named("search"), bare), upstream("b", named("search"), bare))
        later = snapshot.without("a")
        assert later.tools["search"].upstream == "b"
        assert later.collisions == ()

    def test_a_prefix_cannot_capture_the_tool_of_another_upstream(self) -> None:
        thief = StdioUpstream(command="x", prefix="bank__")
        snapshot = _joined(upstream("bank", named("pay")), upstream("aa", named("pay"), thief))
        assert snapshot.tools["bank__pay"].upstream == "bank"
        assert snapshot.tools["aa__pay"].direct_name == "aa__pay"

    def test_every_spelling_means_one_tool(self) -> None:
        odd = ["a_b", "a-b", "a.b", "b__a", "x", "_x", "a" * 70, "2", "_2", "x_2"]
        snapshot = _joined(
            *(upstream(name, named(*odd), AsPublished(prefix="")) for name in ("a", "a--b", "a-b", "a_b", "b", "2"))
        )
        tools = {found.name: found for found in snapshot.tools.values()}
        assert len(tools) == 6 * len(odd)
        for found in tools.values():
            assert snapshot.tools[found.identifier] is snapshot.tools[found.direct_name] is snapshot.tools[found.name]
            assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", found.identifier)
            assert DIRECT.fullmatch(found.direct_name)
        assert len({found.identifier for found in tools.values()}) == len(tools)
        assert len({found.direct_name for found in tools.values()}) == len(tools)


def test_thousands_of_names_that_become_one_do_not_take_quadratic_time() -> None:
    tools = [chr(0x4E00 + n) for n in range(20_000)]
    assert len({found.identifier for found in assign("x", tools).values()}) == len(tools)


def test_mangling_follows_nfkc() -> None:
    assert mangle("caf\u00e9-\uff21") == mangle("cafe\u0301-A") == "caf__A"


def _joined(*entries: UpstreamEntry) -> Catalog:
    snapshot = Catalog.empty()
    for one in entries:
        snapshot = snapshot.with_upstream(one)
    return snapshot
