"""Questions find their tools, within what a tenant sees."""

from __future__ import annotations

import pytest

from gateway.catalog.build import AsPublished
from gateway.catalog.search import search
from gateway.catalog.snapshot import Catalog
from gateway.catalog.view import TenantView
from gateway.catalog.words import stem, terms
from gateway.config.model import ToolOverride
from tests.catalog.samples import WORKSHOP, catalog, entry, named, upstream, view_of_all

QUESTIONS = {
    "how do I open a new ticket please": "tracker__create_issue",
    "put a note under a bug": "tracker__add_comment",
    "who should work on this issue": "tracker__assign_person",
    "sprint figures": "tracker__get_sprint_report",
    "find a repo": "git__search_repositories",
    "what changed between two commits": "git__diff",
    "branches that can be deleted": "git__delete_branches",
    "commit history": "git__log",
    "give a client his money back": "shop__refund_payment",
    "bills of a customer": "shop__list_invoices",
    "discount code": "shop__create_coupon",
    "how many are left in stock": "shop__get_stock_level",
    "download orders as spreadsheet": "shop__export_orders",
    "shut down an ec2 machine": "cloud__ec2_stop_instance",
    "s3 buckets": "cloud__s3_list_buckets",
    "container output": "cloud__k8s_pod_logs",
    "stats of a metric": "cloud__get_metric_statistics",
    "email with the words rent and contract": "desk__search_mail",
    "plan a meeting with Ann": "desk__schedule_meeting",
    "DM somebody": "desk__send_message",
    "capture the page as an image": "browser__take_screenshot",
    "go to a website": "browser__navigate",
    "which address is at these coordinates": "maps__reverse_geocode",
    "will it rain tomorrow": "maps__weather_forecast",
    "shrink a photo": "media__resize_image",
    "movie to another format": "media__convert_video",
}
KEYWORDS = {
    "create issue": "tracker__create_issue",
    "delete branch": "git__delete_branches",
    "route": "maps__route",
    "upload object": "cloud__s3_upload_object",
    "fill form": "browser__fill_form",
    "reverse geocode": "maps__reverse_geocode",
    "invoice": "shop__list_invoices",
    "rotate secret": "cloud__rotate_secret",
}


@pytest.fixture(scope="module")
def everything() -> TenantView:
    return view_of_all(catalog(WORKSHOP))


def found(query: str, view: TenantView, k: int = 10) -> list[str]:
    return [tool.identifier for tool in search(query, view, k)]


def test_plain_questions_find_their_tool_among_the_first_five(everything: TenantView) -> None:
    missed = {q: found(q, everything, 5) for q, tool in QUESTIONS.items() if tool not in found(q, everything, 5)}
    assert len(missed) <= 0.08 * len(QUESTIONS), missed


def test_keywords_find_their_tool_first(everything: TenantView) -> None:
    assert {q: found(q, everything, 1) for q in KEYWORDS} == {q: [tool] for q, tool in KEYWORDS.items()}


@pytest.mark.case("DOCS-02")
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("table record", "tracker__bitmap_v1_boardTableRecord_search"),
        ("add person", "tracker__addPerson"),
        ("addperson", "tracker__addPerson"),
        ("xml", "cloud__XMLParser"),
        ("create edge", "browser__canvas_create_edge"),
        ("https url", "cloud__getHTTPSUrl2"),
        ("k8s", "cloud__k8s_list_pods"),
        ("ec2", "cloud__ec2_list_instances"),
    ],
)
def test_words_inside_compound_names_are_found(query: str, name: str, everything: TenantView) -> None:
    assert name in found(query, everything, 3)


@pytest.mark.case("DOCS-06")
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("invoice", "shop__list_invoices"),
        ("issues", "tracker__create_issue"),
        ("searching repository", "git__search_repositories"),
        ("branch", "git__delete_branches"),
        ("repo", "git__search_repositories"),
        ("creat issue", "tracker__create_issue"),
    ],
)
def test_forms_of_a_word_are_found(query: str, name: str, everything: TenantView) -> None:
    assert name in found(query, everything, 5)


@pytest.mark.case("DOCS-09")
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("火车时刻", "world__query_trains"),
        ("レシピ 検索", "world__recipe_lookup"),
        ("где посылка", "world__parcel_state"),
        ("Größe des Zimmers", "world__room_size"),
        ("grosse zimmer", "world__room_size"),
        ("recipe", "world__recipe_lookup"),
    ],
)
def test_questions_in_other_scripts_and_without_accents(query: str, name: str, everything: TenantView) -> None:
    assert name in found(query, everything, 5)


@pytest.mark.case("DOCS-10")
def test_a_rare_word_beats_a_common_one() -> None:
    common = [entry(f"tool_{n}", "Works on the workspace of the workspace owner.") for n in range(80)]
    view = view_of_all(catalog({"a": [*common, entry("other", "Sets the dryer.")]}))
    assert found("workspace dryer", view, 1) == ["a__other"]


@pytest.mark.case("DOCS-10")
@pytest.mark.parametrize("query", ["", "the of and", "qqqq zzzz", "?!", "\x00", "\ud800"])
def test_no_hit_is_an_empty_answer(query: str, everything: TenantView) -> None:
    assert found(query, everything) == []


def test_weak_hits_do_not_fill_the_answer() -> None:
    noise = [entry(f"t{n}", "word " * 20 + "invoice") for n in range(5)]
    view = view_of_all(catalog({"a": [entry("list_invoices", "Invoice list of invoices"), *noise]}))
    assert found("list invoices", view)[0] == "a__list_invoices"
    assert len(found("create invoices list", view)) < 6


class TestWithinAView:
    def test_only_visible_tools_are_found(self) -> None:
        view = TenantView(catalog(WORKSHOP), {"tracker": ["*", "!create_issue"]})
        names = found("create issue or merge branch", view, 60)
        assert names
        assert all(name.startswith("tracker__") for name in names)
        assert "tracker__create_issue" not in names

    def test_ranks_are_those_of_a_catalogue_that_has_nothing_else(self) -> None:
        whole = catalog(WORKSHOP)
        patterns = {"tracker": ["*"], "desk": ["s*"]}
        kept = {"tracker": WORKSHOP["tracker"], "desk": [e for e in WORKSHOP["desk"] if e["name"].startswith("s")]}
        alone = view_of_all(catalog(kept))
        for query in [*QUESTIONS, *KEYWORDS]:
            assert found(query, TenantView(whole, patterns), 60) == found(query, alone, 60)

    def test_tools_of_an_upstream_that_is_down_are_still_found(self) -> None:
        snapshot = Catalog.empty().with_upstream(upstream("a", named("paint_wall"), available=False, state="down"))
        assert found("paint", view_of_all(snapshot)) == ["a__paint_wall"]


def test_equal_hits_are_ordered_by_upstream_and_name() -> None:
    entries = {"two": named("x_paint", "c_paint"), "one": named("z_paint")}
    assert found("paint", view_of_all(catalog(entries))) == ["one__z_paint", "two__c_paint", "two__x_paint"]


def test_an_alias_is_found_by_both_names() -> None:
    config = AsPublished({"sap_rfc_0815": ToolOverride(alias="book_goods")})
    snapshot = Catalog.empty().with_upstream(upstream("a", named("sap_rfc_0815"), config))
    assert found("book goods", view_of_all(snapshot)) == found("rfc", view_of_all(snapshot)) == ["a__book_goods"]


def test_parameters_are_found_also_behind_a_reference() -> None:
    schema = {
        "properties": {"f": {"$ref": "#/$defs/F"}},
        "$defs": {"F": {"properties": {"barcode": {"enum": ["ean"]}, "g": {"$ref": "#/$defs/F"}}}},
    }
    view = view_of_all(catalog({"a": [entry("x", "Something.", schema)]}))
    assert found("barcode", view) == found("ean", view) == ["a__x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("getJSONUrl2", "get json url 2"),
        ("list_issues", "list issu"),
        ("Größe", "gross"),
        ("the s3 bucket", "3 bucket s3"),
        ("文件系统", "文件 件系 系统"),
        ("running runs", "run run"),
    ],
)
def test_text_becomes_terms(text: str, expected: str) -> None:
    assert terms(text) == expected.split()


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [("queries", "query"), ("branches", "branch"), ("status", "status"), ("stopped", "stop"), ("creating", "creat")],
)
def test_words_are_stemmed(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed
