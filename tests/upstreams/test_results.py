"""Results of calls and lists of tools, as odd as they come."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from gateway.errors import ErrorClass
from gateway.upstreams.base import Beside, InputRequired, RpcFailed, ServerInfo, UpstreamFailed, UpstreamTimedOut
from gateway.upstreams.listing import MAX_PAGES, Listing, list_tools
from gateway.upstreams.results import input_required, parse_call_result

TEXT = {"type": "text", "text": "hi"}


def test_a_plain_result() -> None:
    raw = b'{"content":[{"type":"text","text":"hi"}],"structuredContent":{"n": 1.0},"isError":true}'

    result = parse_call_result(raw)

    assert (result.raw, result.content, result.structured, result.is_error) == (raw, (TEXT,), b'{"n": 1.0}', True)


@pytest.mark.parametrize(
    ("raw", "content"),
    [
        (b"{}", ()),
        (b'{"content":null}', ()),
        (b'{"content":"hi"}', ()),
        (b'{"content":[1,null,"x",{"text":"no type"},{"type":5},{"type":"text","text":"hi"}]}', (TEXT,)),
        (b'{"content":[],"isError":"true","structuredContent":null,"resultType":"complete"}', ()),
    ],
)
def test_odd_results_are_kept_as_far_as_they_make_sense(raw: bytes, content: tuple[Any, ...]) -> None:
    result = parse_call_result(raw)

    assert (result.content, result.structured, result.is_error) == (content, b"", False)


@pytest.mark.parametrize("value", [b"0", b"false", b'""', b"[]", b"123456789012345678901234567890"])
def test_structured_content_may_be_any_value_but_null(value: bytes) -> None:
    assert parse_call_result(b'{"structuredContent":' + value + b"}").structured == value


@pytest.mark.parametrize(
    "raw",
    [
        b"null", b"[]", b"5", b"", b'{"content":[NaN]}', b'{"x":1e999}', b'{"structuredContent":"\xff"}',
        b'{"content":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"resultType":"else"}', b'{"resultType":[]}',
    ],
)  # fmt: skip
def test_what_is_no_result_is_a_typed_error(raw: bytes) -> None:
    with pytest.raises(UpstreamFailed, match="malformed") as caught:
        parse_call_result(raw, "u")
    assert caught.value.delivered


def test_a_wish_for_input_says_what_was_wanted() -> None:
    raw = b'{"resultType":"input_required","inputRequests":{"name":{"method":"elicitation/create"},"odd":5}}'

    with pytest.raises(InputRequired, match=r"name \(elicitation/create\), odd \(unknown method\)") as caught:
        parse_call_result(raw, "u")
    assert caught.value.error_class is ErrorClass.TOOL_ERROR
    assert caught.value.raw == raw


@pytest.mark.parametrize(
    ("method", "params", "text"),
    [
        ("elicitation/create", {"message": "What is\n your \x1b[31mname?"}, "elicitation/create: What is your name?"),
        ("elicitation/create", {"message": 5}, "elicitation/create"),
        ("elicitation/create", {"message": "x" * 1000}, "elicitation/create: " + "x" * 199 + "…"),
        (
            "sampling/createMessage",
            {"messages": [{"content": {"type": "text", "text": "no"}}, {"content": [{"type": "text", "text": "hi"}]}]},
            "sampling/createMessage: hi",
        ),
        ("sampling/createMessage", {"messages": [{"content": {"type": "image"}}]}, "sampling/createMessage"),
        ("sampling/createMessage", {"messages": []}, "sampling/createMessage"),
        ("odd\nmethod", [], "odd method"),
    ],
)
def test_what_was_asked_is_one_bounded_line(method: str, params: Any, text: str) -> None:
    error = input_required("u", method, json.dumps(params).encode())

    assert error.requests == {"": text}
    assert error.message == f"the tool asked for input that cannot be given here: {text}"


def test_parameters_of_a_question_that_cannot_be_read_do_no_harm() -> None:
    assert input_required("u", "elicitation/create", b"[" * 5000).requests == {"": "elicitation/create"}


class Pages:
    """A connector that answers ``tools/list`` from a table: cursor → page, or an error."""

    def __init__(self, pages: Mapping[str | None, Any]) -> None:
        self.pages = pages
        self.asked: list[str | None] = []

    async def request(
        self, method: str, params: Mapping[str, Any] | bytes, timeout_s: float, beside: Beside | None = None
    ) -> bytes:
        assert method == "tools/list"
        assert isinstance(params, Mapping)
        self.asked.append(params.get("cursor"))
        page = self.pages[params.get("cursor")]
        if isinstance(page, Exception):
            raise page
        return page if isinstance(page, bytes) else json.dumps(page).encode()

    async def open(self, timeout_s: float) -> ServerInfo:
        raise NotImplementedError

    def plan_calls(self, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
        return {str(tool["name"]): "it is odd" for tool in tools if tool.get("odd")}

    closed = False

    async def follow(self, uris: Collection[str], timeout_s: float) -> Mapping[str, RpcFailed]:
        raise NotImplementedError

    async def wait_closed(self) -> UpstreamFailed:
        raise NotImplementedError

    async def close(self) -> None: ...


async def listed(pages: Mapping[str | None, Any], **capabilities: Any) -> Listing:
    return await list_tools(Pages(pages), "u", ServerInfo("modern", "2026-07-28", capabilities=capabilities), 5)


async def test_all_pages_are_read_and_an_empty_cursor_is_one() -> None:
    listing = await listed(
        {
            None: {"tools": [{"name": "a"}], "nextCursor": ""},
            "": {"tools": [{"name": "b", "x": 1}], "nextCursor": "é\0"},
            "é\0": {"tools": [{"name": "c"}], "nextCursor": None},
        }
    )

    assert [tool.name for tool in listing.tools] == ["a", "b", "c"]
    assert listing.tools[1].definition == {"name": "b", "x": 1}


async def test_what_is_no_tool_is_dropped_and_the_first_of_two_stays() -> None:
    listing = await listed({None: {"tools": [5, {}, {"name": 1}, {"name": ""}, {"name": "a", "v": 1}, {"name": "a"}]}})

    assert [tool.definition for tool in listing.tools] == [{"name": "a", "v": 1}]
    assert listing.dropped == 5


async def test_a_cursor_that_comes_twice_ends_the_reading() -> None:
    with pytest.raises(UpstreamFailed, match="a cursor came twice"):
        await listed({None: {"tools": [], "nextCursor": "x"}, "x": {"tools": [], "nextCursor": "x"}})


async def test_pages_without_end_are_cut_off() -> None:
    class Endless(dict[Any, Any]):
        def __missing__(self, key: Any) -> Any:
            return {"tools": [], "nextCursor": f"{len(str(key))}{key}"[-40:] if key else "1"}

    with pytest.raises(UpstreamFailed, match=f"more than {MAX_PAGES} pages|twice"):
        await listed(Endless())


@pytest.mark.parametrize("page", [b"[]", b"{}", b'{"tools":{}}', b'{"tools":[],"nextCursor":5}', b'{"tools":[1e999]}'])
async def test_an_answer_without_a_list_is_not_an_empty_list(page: bytes) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        await listed({None: page})
    assert caught.value.stage == "list"


async def test_only_a_server_that_claims_no_tools_may_know_no_list() -> None:
    unknown = RpcFailed("u", -32601, "what?")

    assert await listed({None: unknown}, prompts={}) == Listing(())
    with pytest.raises(RpcFailed):
        await listed({None: unknown}, tools={})


async def test_the_deadline_is_for_all_pages_and_is_named() -> None:
    with pytest.raises(UpstreamTimedOut, match=r"tools/list within its deadline of 5 s"):
        await listed({None: {"tools": [], "nextCursor": "x"}, "x": UpstreamTimedOut("u", "tools/list", 0.1)})
