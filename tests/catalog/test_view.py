"""What a tenant sees: by patterns, under any spelling, with hints that name nothing it may not use."""

from __future__ import annotations

import pytest

from gateway.catalog.build import AsPublished
from gateway.catalog.snapshot import Catalog
from gateway.catalog.view import TenantView
from gateway.config.model import ToolOverride
from tests.catalog.samples import WORKSHOP, catalog, entry, named, upstream, view_of_all


def seen(names: str, *patterns: str) -> list[str]:
    view = TenantView(catalog({"a": named(*names.split())}), {"a": patterns})
    return [tool.raw_name for tool in view.visible]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*"], "list search_all search_delete search_x"),
        (["search_*", "!search_delete"], "search_all search_x"),
        (["!search_delete", "search_*"], "search_all search_x"),
        (["*", "!*", "list"], ""),
        (["search_?"], "search_x"),
        (["LIST"], ""),
        (["lis[t]"], ""),
        (["!list"], ""),
        ([], ""),
        (["*", "!search_*", "search_x"], "list"),
    ],
)
def test_an_exclusion_always_wins(patterns: list[str], expected: str) -> None:
    assert seen("list search_all search_delete search_x", *patterns) == expected.split()


def test_only_star_and_question_mark_are_special() -> None:
    assert seen("a[b] ab", "a[b]") == ["a[b]"]
    assert seen("a.b axb", "a.b") == ["a.b"]


def test_a_pattern_with_many_stars_does_not_backtrack() -> None:
    assert seen("a" * 1000, "*a" * 40 + "b") == []


def test_a_pattern_may_name_the_alias_or_the_upstreams_own_name() -> None:
    config = AsPublished({"delete_repo": ToolOverride(alias="remove")})
    snapshot = Catalog.empty().with_upstream(upstream("a", named("delete_repo"), config))
    for pattern in ("remove", "delete_*"):
        assert len(TenantView(snapshot, {"a": [pattern]}).visible) == 1
        assert len(TenantView(snapshot, {"a": ["*", "!" + pattern]}).visible) == 0, "an alias hides nothing from a rule"


def test_tools_are_sorted_by_upstream_and_name_and_grouped() -> None:
    view = view_of_all(catalog({"b": named("z", "a"), "a": named("m")}))
    assert [tool.name for tool in view.visible] == ["a__m", "b__a", "b__z"]
    assert [tool.name for tool in view.tools_of("b")] == ["b__a", "b__z"]
    assert view.tools_of("c") == ()


def test_upstreams_that_are_not_named_do_not_exist() -> None:
    view = TenantView(catalog({"a": named("x"), "b": named("y")}), {"a": ["*"], "gone": ["*"]})
    assert [entry.name for entry in view.upstreams()] == ["a"]
    assert view.resolve("b__y") is None
    assert view.candidates("b__y") == []


class TestResolve:
    @pytest.mark.parametrize("spelling", ["git__tag-release", "git__tag_release", "  git__tag-release\n"])
    def test_all_spellings_mean_the_tool(self, spelling: str) -> None:
        tool = view_of_all(catalog(WORKSHOP)).resolve(spelling)
        assert tool is not None
        assert tool.raw_name == "tag-release"

    @pytest.mark.parametrize("spelling", ["tag-release", "Git__tag_release", "git.tag_release", "", "git__"])
    def test_anything_else_means_none(self, spelling: str) -> None:
        assert view_of_all(catalog(WORKSHOP)).resolve(spelling) is None

    def test_a_hidden_tool_is_none_under_every_spelling(self) -> None:
        view = TenantView(catalog(WORKSHOP), {"git": ["*", "!tag-*"]})
        assert view.resolve("git__tag-release") is None
        assert view.resolve("git__tag_release") is None
        assert view.catalog.tools["git__tag-release"] not in view


class TestCandidates:
    @pytest.mark.case("NAMING-02")
    def test_a_bare_name_gives_every_upstream_that_has_it(self) -> None:
        view = view_of_all(catalog({"a": named("search", "open"), "b": named("search")}))
        assert view.resolve("search") is None
        assert view.candidates("search") == ["a__search", "b__search"]

    @pytest.mark.case("NAMING-04")
    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("Git__search_repositories", "git__search_repositories"),
            ("git.search_repositories", "git__search_repositories"),
            ("git_search_repositories", "git__search_repositories"),
            ("git/search-repositories", "git__search_repositories"),
            ("git__searchRepositories", "git__search_repositories"),
            ("git__serch_repositories", "git__search_repositories"),
            ("git__search_repository", "git__search_repositories"),
            ("git__repositories_search", "git__search_repositories"),
            ("create_issues", "tracker__create_issue"),
            ("tracker__make_issue", "tracker__create_issue"),
            ("desk__sendmessage", "desk__send_message"),
            ("shop__list_invoice", "shop__list_invoices"),
            ("gti__diff", "git__diff"),
            ("tag-release", "git__tag_release"),
        ],
    )
    def test_a_slightly_wrong_name_finds_the_right_one(self, wrong: str, right: str) -> None:
        candidates = view_of_all(catalog(WORKSHOP)).candidates(wrong)
        assert right in candidates
        assert len(candidates) <= 3

    @pytest.mark.case("NAMING-04")
    def test_hints_are_callable_and_from_this_view_only(self) -> None:
        view = TenantView(catalog(WORKSHOP), {"tracker": ["*", "!create_issue"], "git": ["log"]})
        for wrong in ("create_issue", "tracker__creat_issue", "git__logs", "git__search_repositories", "shop__x"):
            for candidate in view.candidates(wrong):
                assert view.resolve(candidate) is not None

    def test_what_resembles_nothing_gives_nothing(self) -> None:
        view = view_of_all(catalog(WORKSHOP))
        assert view.candidates("zzzzqqqq") == []
        assert view.candidates("") == []
        assert view.candidates("x" * 100_000) == []

    def test_names_without_latin_letters_are_compared_too(self) -> None:
        view = view_of_all(catalog({"a": named("搜索文件", "删除文件")}))
        assert view.candidates("a__搜索 文件") == [view.visible[1].identifier]


class TestListDigest:
    def test_it_changes_exactly_with_what_is_visible(self) -> None:
        both = catalog({"a": named("x", "y")})
        base = TenantView(both, {"a": ["x"]}).tools_list_digest
        assert TenantView(both, {"a": ["*"]}).tools_list_digest != base
        assert TenantView(catalog({"a": named("x"), "b": named("z")}), {"a": ["*"]}).tools_list_digest == base
        changed = catalog({"a": [entry("x", "says something else")]})
        assert TenantView(changed, {"a": ["*"]}).tools_list_digest != base
