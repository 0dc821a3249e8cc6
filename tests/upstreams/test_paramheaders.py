"""Which arguments of a tool are sent as HTTP headers too, and which tools may not be offered for their sake."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gateway.config.model import HttpUpstream
from gateway.upstreams.base import RpcFailed, ServerInfo
from gateway.upstreams.listing import list_tools
from gateway.upstreams.paramheaders import BadMark, Mirror, ParamHeaders, headers_for, mirrors_of
from tests.companions import Answer, Recorder
from tests.faulty.http1 import HttpRequest
from tests.upstreams.support import connected

INFO = ServerInfo("modern", "2026-07-28")
REGION = {"type": "string", "x-mcp-header": "Region"}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


# ------------------------------------------------------------------ marks


def test_marks_are_found_wherever_properties_alone_lead() -> None:
    nested = schema(
        region=REGION, other={"type": "string"}, deep=schema(count={"type": "integer", "x-mcp-header": "N"})
    )

    assert set(mirrors_of(nested)) == {
        Mirror("mcp-param-Region", ("region",)),
        Mirror("mcp-param-N", ("deep", "count")),
    }


@pytest.mark.parametrize(
    "data", [None, True, {}, schema(x={"const": REGION}), schema(x={"default": [REGION]}), {"$ref": "#/$defs/none"}]
)
def test_data_in_a_schema_is_no_mark(data: Any) -> None:
    assert mirrors_of(data) == ()


def test_a_property_may_have_the_name_of_the_mark() -> None:
    assert mirrors_of(schema(**{"x-mcp-header": {"type": "string"}})) == ()


@pytest.mark.parametrize("name", ["", " ", "a b", "a:b", "Ré", "a\r\nb", None, 5, ["A"], {}])
def test_a_mark_is_the_name_of_a_header(name: Any) -> None:
    with pytest.raises(BadMark, match="is not the name of a header"):
        mirrors_of(schema(x={"type": "string", "x-mcp-header": name}))


@pytest.mark.parametrize("kind", ["number", "object", "array", "null", None, ["string", "null"], {}])
def test_only_strings_integers_and_booleans_can_be_marked(kind: Any) -> None:
    with pytest.raises(BadMark, match="no string, integer or boolean"):
        mirrors_of(schema(x={"type": kind, "x-mcp-header": "X"}))


@pytest.mark.parametrize(
    "where",
    [
        {"x-mcp-header": "Root", "type": "string"},
        schema(x={"type": "array", "items": REGION}),
        schema(x={"anyOf": [REGION]}),
        schema(x={"anyOf": [schema(region=REGION)]}),
        {"$defs": {"r": REGION}},
        {"additionalProperties": REGION},
        {"patternProperties": {"r": REGION}},
        {"if": schema(region=REGION)},
    ],
)
def test_a_mark_stands_on_a_property(where: Any) -> None:
    with pytest.raises(BadMark, match="not a property"):
        mirrors_of(where)


def test_a_header_is_named_once_whatever_its_case() -> None:
    with pytest.raises(BadMark, match="twice"):
        mirrors_of(schema(a=REGION, b={"type": "string", "x-mcp-header": "REGION"}))


def test_a_schema_of_any_depth_comes_to_an_end() -> None:
    deep: dict[str, Any] = REGION
    for _ in range(5000):
        deep = schema(x=deep)
    (mirror,) = mirrors_of(deep)
    assert len(mirror.path) == 5000


# ------------------------------------------------------------------ headers


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("eu", "eu"),
        ("", ""),
        (True, "true"),
        (False, "false"),
        (42, "42"),
        (-1, "-1"),
        (5.0, "5"),
        (10**18, "1" + "0" * 18),
    ],
)
def test_values_are_written_as_json_would(value: Any, header: str) -> None:
    assert headers_for((Mirror("mcp-param-X", ("x",)),), {"x": value}) == {"mcp-param-X": header}


@pytest.mark.parametrize("arguments", [{}, {"x": None}, {"x": []}, {"x": {}}, None, []])
def test_what_is_absent_or_no_scalar_has_no_header(arguments: Any) -> None:
    assert headers_for((Mirror("mcp-param-X", ("x",)),), arguments) == {}


@pytest.mark.parametrize("arguments", [{"deep": {"count": 3}}, msgspec.Raw(b'{"deep":{"count":3}}')])
def test_arguments_may_be_raw(arguments: Any) -> None:
    headers = ParamHeaders()
    marked = schema(deep=schema(count={"type": "integer", "x-mcp-header": "N"}))

    assert headers.plan([{"name": "t", "inputSchema": marked}, {"name": "plain"}]) == {}
    assert headers.of_call("t", arguments) == {"mcp-param-N": "3"}
    assert headers.of_call("plain", arguments) == {}
    assert headers.of_call("t", msgspec.Raw(b'{"deep":' + b"9" * 9000 + b"}")) == {}


# ------------------------------------------------------------------ over HTTP


class Marked:
    """A modern server whose tool wants the header ``wanted``, and refuses calls without it.

    Attributes:
        odd: more tools, by name.
        calls: the ``Mcp-Param`` headers of each call.
    """

    def __init__(self, wanted: str, **odd: Mapping[str, Any]) -> None:
        self.wanted = wanted
        self.odd = odd
        self.calls: list[dict[str, str]] = []

    def __call__(self, request: HttpRequest) -> Answer:
        message = json.loads(request.body)
        match message["method"]:
            case "server/discover":
                return self.result(message, supportedVersions=["2026-07-28"], capabilities={"tools": {}})
            case "tools/list":
                tools = {"t": schema(place={"type": "string", "x-mcp-header": self.wanted}), **self.odd}
                return self.result(message, tools=[{"name": n, "inputSchema": inner} for n, inner in tools.items()])
            case _:
                self.calls.append({k.lower(): v for k, v in request.headers if k.lower().startswith("mcp-param-")})
                if f"mcp-param-{self.wanted}" in self.calls[-1]:
                    return self.result(message, content=[])
                return self.reply(message, 400, error={"code": -32020, "message": "a header is missing"})

    def result(self, message: Mapping[str, Any], **result: Any) -> Answer:
        return self.reply(message, 200, result=result)

    def reply(self, message: Mapping[str, Any], status: int, **members: Any) -> Answer:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], **members}).encode()
        return Answer(status, {"Content-Type": "application/json"}, body)


CALL = {"name": "t", "arguments": {"place": "Köln"}}
ENCODED = "=?base64?S8O2bG4=?="


async def test_a_call_carries_the_headers_that_its_tool_wants() -> None:
    async with Recorder(marked := Marked("region")) as server, connected(HttpUpstream(url=server.url)) as connector:
        await list_tools(connector, "u", INFO, 5)
        await connector.request("tools/call", CALL, 5)

    assert marked.calls == [{"mcp-param-region": ENCODED}]


async def test_a_tool_with_a_bad_mark_is_left_out_and_its_neighbours_stay(caplog: pytest.LogCaptureFixture) -> None:
    marked = Marked("region", bad=schema(x={"type": "number", "x-mcp-header": "X"}), good=schema())
    async with Recorder(marked) as server, connected(HttpUpstream(url=server.url)) as connector:
        listing = await list_tools(connector, "u", INFO, 5)

    assert [tool.name for tool in listing.tools] == ["t", "good"]
    assert listing.dropped == 1
    assert "'bad' cannot be called: x-mcp-header X stands on a property" in caplog.text


async def test_a_tool_that_wants_other_headers_than_it_did_is_called_once_more() -> None:
    told: list[None] = []
    async with (
        Recorder(marked := Marked("region")) as server,
        connected(HttpUpstream(url=server.url), on_list_changed=lambda: told.append(None)) as connector,
    ):
        await list_tools(connector, "u", INFO, 5)
        marked.wanted = "zone"
        await connector.request("tools/call", CALL, 5)

    assert marked.calls == [{"mcp-param-region": ENCODED}, {"mcp-param-zone": ENCODED}]
    assert told, "the list of tools that others have is old"


async def test_a_server_that_is_never_content_is_asked_twice() -> None:
    async with Recorder(marked := Marked("region")) as server, connected(HttpUpstream(url=server.url)) as connector:
        await list_tools(connector, "u", INFO, 5)
        with pytest.raises(RpcFailed, match="a header is missing"):
            await connector.request("tools/call", {"name": "t", "arguments": {}}, 5)

    assert marked.calls == [{}, {}]
