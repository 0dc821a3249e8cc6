"""Tools for these tests: a workshop of small upstreams, written for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from gateway.catalog.build import AsPublished, ToolConfig, make_tools
from gateway.catalog.snapshot import Catalog, UpstreamEntry
from gateway.catalog.tool import Tool
from gateway.catalog.view import TenantView


def entry(name: str, description: str = "", schema: Any = None, **more: Any) -> dict[str, Any]:
    """One entry of ``tools/list``."""
    return {"name": name, "description": description, "inputSchema": schema or {"type": "object"}, **more}


def takes(required: str = "", optional: str = "") -> dict[str, Any]:
    """An input schema of strings, by their names."""
    names = [*required.split(), *optional.split()]
    return {"type": "object", "properties": {n: {"type": "string"} for n in names}, "required": required.split()}


def tool(name: str = "log", description: str = "", schema: Any = None, upstream: str = "git", **more: Any) -> Tool:
    (made,) = make_tools(upstream, AsPublished(), [entry(name, description, schema, **more)]).tools
    return made


def upstream(name: str, entries: Sequence[Any], config: ToolConfig | None = None, **more: Any) -> UpstreamEntry:
    return UpstreamEntry(name, make_tools(name, config or AsPublished(), entries).tools, **more)


def catalog(upstreams: Mapping[str, Sequence[Any]]) -> Catalog:
    made = Catalog.empty()
    for name, entries in upstreams.items():
        made = made.with_upstream(upstream(name, entries))
    return made


def view_of_all(snapshot: Catalog) -> TenantView:
    return TenantView(snapshot, {name: ["*"] for name in snapshot.upstreams})


def named(*names: str) -> list[dict[str, Any]]:
    """Entries that have a name and nothing else of interest."""
    return [entry(name) for name in names]


WORKSHOP: dict[str, list[dict[str, Any]]] = {
    "git": [
        entry("log", "Lists the commits of a branch, newest first.", takes("repo", "branch")),
        entry("show_commit", "Shows one commit with its changes.", takes("repo sha")),
        entry("create_branch", "Makes a branch at a commit.", takes("repo name", "sha")),
        entry("delete_branches", "Removes branches that were merged.", takes("repo")),
        entry("diff", "Difference between two commits.", takes("repo before after")),
        entry("search_repositories", "Finds repositories by name or topic.", takes("text")),
        entry("merge", "Joins two branches.", takes("repo source target")),
        entry("tag-release", "Puts a version tag on a commit.", takes("repo version")),
    ],
    "tracker": [
        entry("create_issue", "Opens an issue in a project.", takes("project title", "body labels")),
        entry("close_issue", "Marks an issue as done.", takes("issue_id")),
        entry("list_issues", "All issues of a project, open ones first.", takes("project", "state")),
        entry("add_comment", "Writes a comment under an issue.", takes("issue_id text")),
        entry("assign_person", "Gives an issue to somebody.", takes("issue_id person")),
        entry("get_sprint_report", "What a sprint has reached, with figures.", takes("sprint_id")),
        entry("bitmap_v1_boardTableRecord_search", "Looks through records of a board.", takes("board")),
        entry("addPerson", "A new member for the team.", takes("name", "email")),
    ],
    "shop": [
        entry("list_invoices", "Invoices of a customer.", takes("customer_id", "year")),
        entry("refund_payment", "Gives money back for a payment.", takes("payment_id", "reason")),
        entry("create_coupon", "A code that makes an order cheaper.", takes("percent", "expires")),
        entry("find_customer", "Looks a customer up by mail address or phone.", takes("", "email phone")),
        entry("get_stock_level", "How many pieces of an article are in the warehouse.", takes("article")),
        entry("update_price", "Changes what an article costs.", takes("article price")),
        entry("export_orders", "Orders of a period as a spreadsheet.", takes("since until")),
        entry("shipping_quote", "What it costs to ship a parcel to a country.", takes("country weight")),
    ],
    "cloud": [
        entry("ec2_list_instances", "Virtual machines of the account with their state.", takes("", "region")),
        entry("ec2_stop_instance", "Halts a virtual machine.", takes("instance_id")),
        entry("s3_upload_object", "Puts a file into a bucket.", takes("bucket key path")),
        entry("s3_list_buckets", "Buckets of the account.", takes()),
        entry("k8s_list_pods", "Pods of a namespace with their node.", takes("namespace")),
        entry("k8s_pod_logs", "The last lines that a container wrote.", takes("pod", "lines")),
        entry("getHTTPSUrl2", "A signed address for an object.", takes("bucket key", "expires")),
        entry("rotate_secret", "Replaces the value of a secret by a new random one.", takes("name")),
        entry("get_metric_statistics", "Averages and sums of a metric over time.", takes("metric", "period")),
        entry("XMLParser", "Reads a markup document into a tree.", takes("text")),
    ],
    "desk": [
        entry("send_message", "Writes to a channel or a person.", takes("to text")),
        entry("schedule_meeting", "Puts a meeting into calendars.", takes("title start people")),
        entry("list_calendar_events", "What a calendar holds between two days.", takes("since until")),
        entry("search_mail", "Mails that have all of these words.", takes("words")),
        entry("draft_reply", "Prepares an answer to a mail without sending it.", takes("mail_id text")),
        entry("upload_attachment", "Adds a file to a mail.", takes("mail_id path")),
        entry("set_out_of_office", "An automatic answer while somebody is away.", takes("text until")),
    ],
    "browser": [
        entry("navigate", "Opens a web address.", takes("url")),
        entry("click", "Presses an element of the page.", takes("element")),
        entry("take_screenshot", "A picture of the page as it is.", takes("", "full_page")),
        entry("fill_form", "Writes values into the fields of a form.", takes("values")),
        entry("read_page_text", "The words of a page without its markup.", takes()),
        entry("canvas-create-edge", "Draws a line between two nodes of a drawing.", takes("source target")),
    ],
    "maps": [
        entry("geocode", "Coordinates of an address.", takes("address")),
        entry("reverse_geocode", "The address at coordinates.", takes("latitude longitude")),
        entry("route", "The way between two places, by car or on foot.", takes("start end", "profile")),
        entry("weather_forecast", "Temperature and rain of the next days at a place.", takes("place", "days")),
    ],
    "world": [
        entry("query_trains", "查询两个城市之间的火车时刻表", takes("from_city to_city")),
        entry("recipe_lookup", "料理のレシピを材料から検索します", takes("ingredient")),
        entry("parcel_state", "Показывает, где сейчас находится посылка", takes("number")),
        entry("room_size", "Berechnet die Größe eines Zimmers in Quadratmetern", takes("length width")),
    ],
    "media": [
        entry("convert_video", "Changes the format of a film.", takes("path format")),
        entry("transcribe_audio", "Speech of a recording as text.", takes("path", "language")),
        entry("resize_image", "Makes a picture larger or smaller.", takes("path width", "height")),
        entry("translate_text", "A text in another language.", takes("text language")),
        entry("summarize_document", "The main points of a long document.", takes("path")),
    ],
}
"""60 tools on nine upstreams."""


_keys = st.sampled_from(["a", "b-c", "class", "str", "$x", "", "é", "x\ny"]) | st.text(max_size=6)
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_words = st.sampled_from(["string", "integer", "object", "array", "null", "number", "any", "", "boolean"])
_pointers = st.sampled_from(["#", "#/$defs/A", "#/properties/a", "#/x", "http://x/y", "#/anyOf/0"])


def _schema_around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many = st.lists(inner, max_size=3)
    named = st.dictionaries(_keys, inner, max_size=4)
    broken = _scalars | st.lists(_scalars, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": _words | st.lists(_words, max_size=3) | broken,
            "properties": named | broken,
            "required": st.lists(_keys, max_size=4) | broken,
            "items": inner | many | broken,
            "prefixItems": many | broken,
            "additionalProperties": inner | broken,
            "patternProperties": named | broken,
            "anyOf": many | broken,
            "oneOf": many | broken,
            "allOf": many | broken,
            "enum": st.lists(_scalars, max_size=40) | broken,
            "const": _scalars | st.lists(_scalars, max_size=2),
            "$ref": _pointers | broken,
            "$defs": st.fixed_dictionaries({"A": inner}),
            "nullable": st.booleans() | broken,
            "default": _scalars,
            "minimum": _scalars,
            "description": st.text(max_size=20) | broken,
            "format": st.text(max_size=5) | broken,
        },
    )


def broken_schemas(max_leaves: int) -> st.SearchStrategy[Any]:
    """JSON Schemas with sound, odd and broken parts, and values that are none."""
    return st.recursive(_scalars | st.just({}), _schema_around, max_leaves=max_leaves)
