"""The direct endpoint relays everything besides plain results, in both eras: resources, prompts, questions, progress,
cancellation, log messages and changes. Upstreams ``a``, ``b`` and ``c`` share the URIs of their resources."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp import MCPError
from mcp import types as mcp_types
from mcp.client import ClientRequestContext
from mcp.client.client import ConnectMode

from tests.companions import Control, eventually, faulty_http, free_port
from tests.e2e.streams import LEGACY, Message, Stream, Talker, everything, official
from tests.running import META, MODERN, Running, config, faulty, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKABLE: dict[str, Any] = {"elicitation": {}, "sampling": {}, "roots": {}}
SHARED, PAGE, OWN = "note://shared", "note://shared/page/", "codemode-gateway://b/"
ADA = {"action": "accept", "content": {"name": "Ada"}}
each_mode = pytest.mark.parametrize("mode", ["legacy", "auto"])
each_version = pytest.mark.parametrize("version", [LEGACY, MODERN])


@dataclass(frozen=True)
class House:
    """A gateway. ``a`` is modern on stdio, ``b`` legacy on stdio, ``c`` modern over HTTP; each can be made faulty."""

    running: Running
    a: Control
    b: Control
    c: Control
    folder: Path

    async def client(self, version: str, tenant: str = "acme", capabilities: Mapping[str, Any] | None = None) -> Talker:
        talker = Talker(self.running, tenant, capabilities=capabilities or {})
        return await talker.hello() if version == LEGACY else talker

    def sent(self, name: str, point: str = "call") -> list[Message]:
        """What an upstream was sent."""
        lines = (self.folder / f"{name}.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["point"] == point]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("relay")
    a, b = free_port(), free_port()
    every = list(ASKABLE)

    def log(name: str) -> tuple[str, str]:
        return "--log-calls", str(folder / f"{name}.jsonl")

    async with faulty_http("--library", "c", "--era", "modern", *log("c")) as web:
        upstreams = {
            "a": faulty("--library", "a", "--control", str(a), *log("a")),
            "b": faulty("--library", "b", "--era", "legacy", "--control", str(b), *log("b"), clientCapabilities=every),
            "c": {"url": web.url},
            "many": faulty("--tools", "1200"),
            "new": everything(),
            "old": everything("--legacy", clientCapabilities=every),
        }
        most: dict[str, list[str]] = {name: ["*"] for name in upstreams if name != "many"}
        tenants = {
            "acme": {"upstreams": most},
            "beta": {"upstreams": {"a": ["*"], "b": ["echo", "put"], "new": ["*"], "old": ["*"]}},
            "crowd": {"upstreams": {"many": ["*"], "a": ["*"]}},
            "narrow": {"upstreams": {"a": ["echo", "put"], "new": ["test_*"]}},
        }
        async with serving(folder, config(upstreams, tenants)) as running:
            await running.wait_for(**dict.fromkeys(upstreams, "ready"))
            yield House(running, Control(a), Control(b), web.control, folder)


@contextlib.asynccontextmanager
async def faults(control: Control, **switches: Any) -> AsyncIterator[None]:
    await control.set(**switches)
    try:
        yield
    finally:
        await control.set(**dict.fromkeys(switches))


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def text_of(result: Message) -> str:
    return str(result["content"][0]["text"])


# ---------------------------------------------------------------- resources, prompts, completion


@each_mode
async def test_the_official_client_reads_resources(house: House, mode: ConnectMode) -> None:
    async with official(house.running, mode) as client:
        uris = [resource.uri for resource in (await client.list_resources()).resources]
        assert {"note://a", "note://b", "note://c", SHARED, "test://static-binary"} <= set(uris)
        assert len(set(uris)) == len(uris)
        (own,) = (await client.read_resource("note://b")).contents
        assert isinstance(own, mcp_types.TextResourceContents)
        assert own.text == "b: empty at note://b"
        (picture,) = (await client.read_resource("test://static-binary")).contents
        assert isinstance(picture, mcp_types.BlobResourceContents)
        assert base64.b64decode(picture.blob).startswith(b"\x89PNG")
        templates = [t.uri_template for t in (await client.list_resource_templates()).resource_templates]
        assert "test://template/{id}/data" in templates
        (made,) = (await client.read_resource("test://template/7/data")).contents
        assert isinstance(made, mcp_types.TextResourceContents)
        assert json.loads(made.text)["id"] == "7"


@each_mode
async def test_the_official_client_gets_prompts_and_completions(house: House, mode: ConnectMode) -> None:
    async with official(house.running, mode) as client:
        names = [prompt.name for prompt in (await client.list_prompts()).prompts]
        assert {"a__greet", "b__greet", "c__greet", "new__test_prompt_with_arguments"} <= set(names)
        for upstream in "abc":
            prompt = await client.get_prompt(f"{upstream}__greet", {"who": "Ada"})
            assert prompt.messages[0].content == mcp_types.TextContent(text=f"{upstream} greets Ada")
            reference = mcp_types.PromptReference(name=f"{upstream}__greet")
            completed = await client.complete(reference, {"name": "who", "value": "A"})
            assert completed.completion.values == [f"{upstream} completes greet who=A"]
        with pytest.raises(MCPError, match="argument is missing"):
            await client.get_prompt("new__test_prompt_with_arguments", {"arg1": "x"})


@pytest.mark.case("PASS-04")
@each_version
async def test_what_two_upstreams_offer_under_one_uri_is_reachable_at_both(house: House, version: str) -> None:
    client = await house.client(version)
    uris = [entry["uri"] for entry in (await client.result("resources/list"))["resources"]]
    assert [uri for uri in uris if uri.endswith(SHARED)] == [SHARED, OWN + SHARED, f"codemode-gateway://c/{SHARED}"]
    templates = (await client.result("resources/templates/list"))["resourceTemplates"]
    assert {f"{PAGE}{{a}}", f"{OWN}{PAGE}{{b}}"} <= {entry["uriTemplate"] for entry in templates}
    for prefix, upstream in (("", "a"), (OWN, "b"), ("codemode-gateway://c/", "c"), ("codemode-gateway://a/", "a")):
        for uri in (SHARED, PAGE + "7"):
            (content,) = (await client.result("resources/read", {"uri": prefix + uri}))["contents"]
            assert content["text"] == f"{upstream}: empty at {uri}"  # it was asked for its own URI
            assert content["uri"] == prefix + uri
        (picture,) = (await client.result("resources/read", {"uri": f"{prefix}{SHARED}/pixel"}))["contents"]
        assert picture["blob"] == "iVBORw=="
    reference = {"type": "ref/resource", "uri": f"{OWN}{PAGE}{{b}}"}
    completed = await client.result("completion/complete", {"ref": reference, "argument": {"name": "b", "value": "1"}})
    assert completed["completion"]["values"] == [f"b completes {PAGE}{{b}} b=1"]


@pytest.mark.case("PASS-04")
@each_version
async def test_what_does_not_exist_is_invalid_params(house: House, version: str) -> None:
    client = await house.client(version)
    for method, params in (
        ("resources/read", {"uri": "note://nobody"}),
        ("resources/read", {"uri": "codemode-gateway://nobody/note://shared"}),
        ("resources/read", {"uri": f"{OWN}note://nobody"}),
        ("prompts/get", {"name": "a__nothing"}),
        ("prompts/get", {"name": "greet"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "n", "value": ""}}),
        ("completion/complete", {"ref": {"type": "ref/tool"}, "argument": {"name": "n", "value": ""}}),
        ("completion/complete", {}),
    ):
        assert await client.code(method, params) == -32602, (method, params)


@pytest.mark.case("PASS-04")
async def test_a_resource_beyond_the_limit_is_an_error_and_the_connection_stays(house: House) -> None:
    """16 MiB, as for a tool's result. Over HTTP only the request fails."""
    client = await house.client(MODERN)
    response = await client.ask("resources/read", {"uri": "codemode-gateway://c/note://huge"})
    assert "larger than 16 MiB" in response["error"]["message"]
    assert text_of(await client.result("tools/call", called("c__echo"))) == "{}"


@each_version
async def test_only_upstreams_granted_whole_show_resources_and_prompts(house: House, version: str) -> None:
    client = await house.client(version, "beta")
    uris = {entry["uri"] for entry in (await client.result("resources/list"))["resources"]}
    assert "note://a" in uris
    assert not {uri for uri in uris if "note://b" in uri or uri.startswith("codemode-gateway://b")}
    prompts = {entry["name"] for entry in (await client.result("prompts/list"))["prompts"]}
    assert "b__greet" not in prompts
    for uri in ("note://b", OWN + SHARED):
        assert await client.code("resources/read", {"uri": uri}) == -32602
    assert await client.code("prompts/get", {"name": "b__greet", "arguments": {"who": "x"}}) == -32602


@each_version
async def test_what_no_upstream_can_do_is_not_advertised_and_not_served(house: House, version: str) -> None:
    client = await house.client(version, "narrow")
    if version == LEGACY:
        capabilities = client.welcome["capabilities"]
    else:
        capabilities = (await client.result("server/discover"))["capabilities"]
    assert capabilities == {"tools": {"listChanged": True}}
    for method in (
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "logging/setLevel",
        "tools/unheard",
    ):
        params = {"uri": "note://a", "name": "a__greet", "level": "info"}
        assert await client.code(method, params) == -32601, method


# ---------------------------------------------------------------- pages


async def test_a_long_list_comes_in_pages_with_every_tool_once(house: House) -> None:
    client = Talker(house.running, "crowd")
    sizes, names, cursor = [], [], None
    while True:
        page = await client.result("tools/list", {} if cursor is None else {"cursor": cursor})
        sizes.append(len(page["tools"]))
        names += [tool["name"] for tool in page["tools"]]
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert sizes[:-1] == [500, 500]
    assert len(names) == len(set(names)) == 1200 + 7 + 7
    assert names == sorted(names)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_reads_all_pages(house: House, mode: ConnectMode) -> None:
    async with official(house.running, mode, tenant="crowd") as client:
        page = await client.list_tools()
        assert len(page.tools) == 500
        following = await client.list_tools(cursor=page.next_cursor)
        assert not {tool.name for tool in page.tools} & {tool.name for tool in following.tools}


async def test_a_cursor_counts_for_its_tenant_and_its_list_only(house: House) -> None:
    crowd = Talker(house.running, "crowd")
    cursor = (await crowd.result("tools/list"))["nextCursor"]
    assert await Talker(house.running).code("tools/list", {"cursor": cursor}) == -32602
    for method in ("prompts/list", "resources/list", "resources/templates/list"):
        assert await crowd.code(method, {"cursor": cursor}) == -32602
    for damaged in ("", "x", cursor[:-2], cursor + "A", cursor.swapcase(), "500", 500):
        assert await crowd.code("tools/list", {"cursor": damaged}) == -32602


# ---------------------------------------------------------------- progress


@pytest.mark.case("PASS-02")
@each_version
@pytest.mark.parametrize("token", [0, "a", 1])
@pytest.mark.parametrize("upstream", ["a", "b", "c"])
async def test_progress_arrives_under_the_clients_token_before_the_result(
    house: House, upstream: str, token: int | str, version: str
) -> None:
    client = await house.client(version)
    async with (
        faults(getattr(house, upstream), sse="progress:5"),
        client.open("tools/call", called(f"{upstream}__echo"), meta={"progressToken": token}) as stream,
    ):
        assert "result" in await stream.answer()
    reports = stream.of("notifications/progress")
    assert [report["progress"] for report in reports] == [1, 2, 3, 4, 5]
    assert all(report["progressToken"] == token and type(report["progressToken"]) is type(token) for report in reports)
    assert reports[0]["message"] == "step 1 of 5"
    assert "result" in stream.messages[-1]
    sent = house.sent(upstream)[-1]["meta"]["progressToken"]
    assert isinstance(sent, int)  # the connector's own


@pytest.mark.case("PASS-02")
@each_version
async def test_without_a_token_none_is_sent_upstream(house: House, version: str) -> None:
    client = await house.client(version)
    for control, upstream in ((house.a, "a"), (house.b, "b"), (house.c, "c")):
        async with (
            faults(control, sse="progress:5"),
            client.open("tools/call", called(f"{upstream}__echo")) as stream,
        ):
            assert "result" in await stream.answer()
        assert stream.of("notifications/progress") == []
        assert "progressToken" not in house.sent(upstream)[-1]["meta"]


@pytest.mark.case("PASS-02")
@each_version
@pytest.mark.parametrize("token", [0, "a", 1])
async def test_a_script_reports_its_calls_as_progress(house: House, token: int | str, version: str) -> None:
    client = await house.client(version)
    client.path = "/mcp"
    script = "await a__echo()\nawait a__echo()\nawait b__echo()\n7"
    params = called("execute_code", code=script)
    async with (
        faults(house.a, sse="progress:5"),
        client.open("tools/call", params, meta={"progressToken": token}) as stream,
    ):
        assert text_of((await stream.answer())["result"]) == "7"
    reports = stream.of("notifications/progress")
    assert [(report["progressToken"], report["progress"]) for report in reports] == [(token, n) for n in (1, 2, 3)]
    assert "result" in stream.messages[-1]
    assert "progressToken" not in house.sent("a")[-1]["meta"]


@each_mode
async def test_the_official_client_hears_progress(house: House, mode: ConnectMode) -> None:
    heard: list[tuple[float, float | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total))

    async with official(house.running, mode) as client:
        for upstream in ("new", "old"):
            heard.clear()
            await client.call_tool(f"{upstream}__test_tool_with_progress", {}, progress_callback=hear)
            assert heard == [(0, 100), (50, 100), (100, 100)]


@pytest.mark.case("PASS-06")
@each_version
@pytest.mark.parametrize("upstream", ["a", "c"])
async def test_events_arrive_when_they_are_sent(house: House, upstream: str, version: str) -> None:
    client = await house.client(version)
    control = getattr(house, upstream)
    async with (
        faults(control, sse="progress:4", progress_every="0.15"),
        client.open("tools/call", called(f"{upstream}__echo"), meta={"progressToken": 1}) as stream,
    ):
        await stream.answer()
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.headers["x-accel-buffering"] == "no"
    assert "no-transform" in stream.headers["cache-control"]
    gaps = [later - earlier for earlier, later in zip(stream.times, stream.times[1:-1], strict=False)]
    assert len(gaps) == 3
    assert min(gaps) > 0.05


@pytest.mark.case("PASS-06")
async def test_a_reader_who_does_not_read_blocks_nobody(house: House) -> None:
    slow, other = await house.client(MODERN), await house.client(MODERN)
    body = json.dumps(slow.body("tools/call", called("a__echo"), 1, {"progressToken": 1})).encode()
    headers = {
        **slow.headers("tools/call", called("a__echo")),
        "Authorization": f"Bearer {house.running.keys['acme']}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    port = int(house.running.url.rpartition(":")[2])
    async with faults(house.a, sse="progress:20000"):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        lines = [
            "POST /mcp/direct HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await eventually(lambda: house.sent("a")[-1]["meta"].get("progressToken") is not None)
        async with asyncio.timeout(5):
            for _ in range(5):
                assert text_of(await other.result("tools/call", called("b__echo"))) == "{}"
        writer.transport.abort()
        await running_calls(house.a, 0)


# ---------------------------------------------------------------- cancellation


async def running_calls(control: Control, count: int, within_s: float = 5.0) -> None:
    """Wait until an upstream works on so many calls."""

    async def reached() -> bool:
        return bool((await control.state())["in_flight"] == count)

    await eventually(reached, within_s=within_s)


@pytest.mark.case("PASS-01")
@pytest.mark.parametrize("upstream", ["a", "b", "c"])
@pytest.mark.parametrize("request_id", [0, "seventeen"])
async def test_a_legacy_cancel_reaches_the_upstream(house: House, upstream: str, request_id: int | str) -> None:
    control = getattr(house, upstream)
    client = await house.client(LEGACY)
    stranger = await house.client(LEGACY, "beta")
    await running_calls(control, 0)

    def cancel(target: int | str) -> Message:
        return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": target}}

    async with client.open("tools/call", called(f"{upstream}__sleep", ms=20_000), request_id=request_id) as stream:
        await running_calls(control, 1)
        for other in ("nobody", 99, str(request_id) if isinstance(request_id, int) else 17):
            assert await client.post(cancel(other)) == 202
        assert await stranger.post(cancel(request_id)) == 202  # its own session has no such request
        stranger.session = client.session
        assert await stranger.post(cancel(request_id)) in (202, 404)
        await running_calls(control, 1)
        assert await client.post(cancel(request_id)) == 202
        assert await client.post(cancel(request_id)) == 202
        await running_calls(control, 0, within_s=1)
        await eventually(lambda: stream.ended)
    assert stream.messages == []
    assert await client.post(cancel(request_id)) == 202
    if upstream != "c":
        assert (await control.state())["cancelled"]


@pytest.mark.case("PASS-01")
@pytest.mark.parametrize("upstream", ["a", "b", "c"])
async def test_a_modern_client_that_leaves_cancels(house: House, upstream: str) -> None:
    control, client = getattr(house, upstream), await house.client(MODERN)
    await running_calls(control, 0)
    opening = asyncio.create_task(client.ask("tools/call", called(f"{upstream}__sleep", ms=20_000)))
    await running_calls(control, 1)
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    assert await client.post(note) == 202  # means nothing in this era over HTTP
    await running_calls(control, 1)
    opening.cancel()
    await running_calls(control, 0, within_s=1)


@pytest.mark.case("PASS-01")
async def test_a_legacy_client_that_leaves_cancels_nothing(house: House) -> None:
    client = await house.client(LEGACY)
    before = await house.a.state()
    opening = asyncio.create_task(client.ask("tools/call", called("a__sleep", ms=700)))
    await running_calls(house.a, 1)
    opening.cancel()
    await running_calls(house.a, 0)
    assert (await house.a.state())["cancelled"] == before["cancelled"]


# ---------------------------------------------------------------- questions: elicitation, sampling, roots


@dataclass
class Person:
    """Callbacks of the official client; remembers what it was asked."""

    asked: list[str]

    @property
    def callbacks(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.roots,
        }

    async def elicit(
        self, context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult:
        self.asked.append(params.message)
        content: dict[str, Any] = {"name": "Ada", "username": "ada", "email": "a@b.c", "ok": True, "color": "red"}
        return mcp_types.ElicitResult(action="accept", content=content)

    async def sample(
        self, context: ClientRequestContext, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult:
        self.asked.append(f"sample {params.max_tokens}")
        return mcp_types.CreateMessageResult(
            role="assistant", content=mcp_types.TextContent(text="Paris"), model="a-model"
        )

    async def roots(self, context: ClientRequestContext) -> mcp_types.ListRootsResult:
        self.asked.append("roots")
        return mcp_types.ListRootsResult(roots=[mcp_types.Root(uri="file:///home/ada")])


QUESTIONS = [
    ("test_input_required_result_elicitation", "Hello, Ada!"),
    ("test_input_required_result_sampling", "The model says: Paris"),
    ("test_input_required_result_list_roots", "Roots: file:///home/ada"),
    ("test_input_required_result_multiple_inputs", "Paris, Ada"),
    ("test_input_required_result_request_state", "state-ok"),
    ("test_input_required_result_multi_round", "Ada likes red."),
]


@pytest.mark.parametrize(
    ("mode", "upstream", "tool", "answer"),
    [
        pytest.param(mode, upstream, tool, answer, id=f"{mode}-{upstream}-{tool.rpartition('result_')[2]}")
        for mode, upstream in (("auto", "new"), ("legacy", "new"), ("legacy", "old"))
        for tool, answer in QUESTIONS
        if upstream == "new" or not tool.endswith(("state", "round"))  # a state is a matter of the modern era
    ],
)
async def test_questions_reach_the_official_client(
    house: House, mode: ConnectMode, upstream: str, tool: str, answer: str
) -> None:
    person = Person([])
    async with official(house.running, mode, **person.callbacks) as client:
        result = await client.call_tool(f"{upstream}__{tool}", {})
    assert result.content == [mcp_types.TextContent(text=answer)]
    assert not result.is_error
    assert person.asked


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_prompt_may_ask_too(house: House, mode: ConnectMode) -> None:
    person = Person([])
    async with official(house.running, mode, **person.callbacks) as client:
        prompt = await client.get_prompt("new__test_input_required_result_prompt")
    assert person.asked == ["What context should the prompt use?"]
    assert isinstance(prompt.messages[0].content, mcp_types.TextContent)


@each_version
@pytest.mark.parametrize("upstream", ["new", "old"])
async def test_a_client_that_declared_nothing_is_not_asked(house: House, upstream: str, version: str) -> None:
    client = await house.client(version)
    response = await client.ask("tools/call", called(f"{upstream}__test_elicitation", message="Who?"))
    told = json.dumps(response)
    assert "elicitation" in told
    assert "declare" in told
    if "result" in response:
        assert response["result"]["isError"]


@each_version
@pytest.mark.parametrize("what", ["elicitation", "sampling", "roots", "unheard/of"])
async def test_a_modern_upstream_that_asks_what_was_not_declared_gets_nothing(
    house: House, what: str, version: str
) -> None:
    client = await house.client(version)
    async with faults(house.a, ask=what):
        result = await client.result("tools/call", called("a__echo"))
    assert result["isError"]
    assert text_of(result).startswith("TOOL_ERROR: ")
    assert what.removesuffix("s") in text_of(result)
    assert "did not declare" in text_of(result)


async def test_a_modern_client_and_an_upstream_that_asks_in_between_get_a_clear_error(house: House) -> None:
    client = await house.client(MODERN, capabilities=ASKABLE)
    response = await client.ask("tools/call", called("old__test_elicitation", message="Who?"))
    assert "cannot be asked" in json.dumps(response)
    assert "error" in response or response["result"]["isError"]


async def asked_in_between(house: House, client: Talker, stream: Stream) -> Message:
    question = await stream.until(lambda message: message.get("method") == "elicitation/create")
    assert question["params"]["message"] == "What is your name?"
    return question


@pytest.mark.parametrize("upstream", ["a", "b"])
async def test_nobody_else_can_answer_and_only_the_first_answer_counts(house: House, upstream: str) -> None:
    client = await house.client(LEGACY, capabilities=ASKABLE)
    same_tenant = await house.client(LEGACY, capabilities=ASKABLE)
    other_tenant = await house.client(LEGACY, "beta", capabilities=ASKABLE)
    stolen = Talker(house.running, "beta", version=LEGACY, session=client.session)
    without = Talker(house.running, version=LEGACY)

    async with (
        faults(getattr(house, upstream), ask="elicitation"),
        client.open("tools/call", called(f"{upstream}__echo", n=1)) as stream,
    ):
        question = await asked_in_between(house, client, stream)
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": ADA}
        assert await same_tenant.post(answer) == 202
        assert await other_tenant.post(answer) == 202
        assert await stolen.post(answer) in (400, 404)
        assert await without.post(answer) == 400
        assert await client.post({**answer, "id": "gateway-0"}) == 202
        assert not stream.ended
        assert len(stream.messages) == 1
        assert await client.post(answer) == 202
        assert await client.post({**answer, "result": {"action": "decline"}}) == 202
        assert text_of((await stream.answer())["result"]) == '{"n": 1}'
    assert await client.post(answer) == 202  # late


async def test_a_refusal_of_the_person_is_told(house: House) -> None:
    client = await house.client(LEGACY, capabilities=ASKABLE)
    async with (
        faults(house.a, ask="elicitation"),
        client.open("tools/call", called("a__echo")) as stream,
    ):
        question = await asked_in_between(house, client, stream)
        refusal = {"code": -1, "message": "User rejected it"}
        assert await client.post({"jsonrpc": "2.0", "id": question["id"], "error": refusal}) == 202
        result = (await stream.answer())["result"]
    assert result["isError"]
    assert "refused elicitation/create: User rejected it" in text_of(result)


async def test_a_cancelled_call_takes_its_question_back(house: House) -> None:
    client = await house.client(LEGACY, capabilities=ASKABLE)
    async with (
        faults(house.a, ask="elicitation"),
        client.open("tools/call", called("a__echo"), request_id="call") as stream,
    ):
        question = await asked_in_between(house, client, stream)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "call"}}
        assert await client.post(cancel) == 202
        await eventually(lambda: stream.ended)
        assert len(stream.messages) == 1
    assert await client.post({"jsonrpc": "2.0", "id": question["id"], "result": ADA}) == 202


async def test_a_state_is_sealed_for_its_request(house: House) -> None:
    client = await house.client(MODERN, capabilities=ASKABLE)
    params = called("a__echo", n=1)
    async with faults(house.a, ask="elicitation"):
        asked = await client.result("tools/call", params)
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"]["ask"]["method"] == "elicitation/create"
        state = asked["requestState"]
        assert "faulty-state" not in state
        retry = {"inputResponses": {"ask": ADA}, "requestState": state}
        other = Talker(house.running, "beta", capabilities={"elicitation": {}})
        before = len(house.sent("a"))
        for talker, changed in (
            (client, {**params, **retry, "requestState": state[:-4] + "AAAA"}),
            (client, {**params, **retry, "requestState": "faulty-state"}),
            (client, {**params, **retry, "requestState": ""}),
            (client, {**called("a__echo", n=2), **retry}),
            (client, {**called("a__get", n=1), **retry}),
            (other, {**params, **retry}),
        ):
            assert await talker.code("tools/call", changed) == -32602
        assert len(house.sent("a")) == before
        result = await client.result("tools/call", {**params, **retry})
    assert result["resultType"] == "complete"
    assert result["structuredContent"] == {"n": 1}


@pytest.mark.parametrize(("upstream", "question"), [("a", "What is your name?"), ("b", "What is your name?")])
async def test_inside_a_script_a_question_is_an_error_that_says_what_was_asked(
    house: House, upstream: str, question: str
) -> None:
    script = f"""
try:
    await {upstream}__echo()
except Exception as error:
    caught = str(error)
caught
"""
    async with faults(getattr(house, upstream), ask="elicitation"):
        answer = await house.running.run(script)
    assert not answer.is_error, answer.text
    assert question in answer.text
    assert "elicitation" in answer.text


# ---------------------------------------------------------------- what an upstream says unasked


@pytest.mark.case("PASS-03")
@each_version
@pytest.mark.parametrize("what", ["sampling", "roots", "unheard/of"])
async def test_a_legacy_upstream_that_asks_is_answered_and_goes_on(house: House, what: str, version: str) -> None:
    client = await house.client(version)
    async with faults(house.b, ask=what), asyncio.timeout(5):
        assert text_of(await client.result("tools/call", called("b__echo", n=1))) == '{"n": 1}'


@pytest.mark.case("PASS-03")
@each_version
async def test_pings_and_a_flood_of_log_lines_disturb_no_call(house: House, version: str) -> None:
    client = await house.client(version)
    for notify in ("ping:every=0.02", "log:rate=10000"):
        async with faults(house.b, notify=notify), asyncio.timeout(10):
            async with client.open("tools/call", called("b__sleep", ms=300)) as stream:
                assert text_of((await stream.answer())["result"]) == "300"
            assert stream.of("ping") == []
            heard = stream.of("notifications/message")
            assert bool(heard) == (version == LEGACY and notify.startswith("log"))
            assert len(stream.messages) == len(heard) + 1


@pytest.mark.case("PASS-03")
async def test_log_messages_reach_only_who_wants_them(house: House) -> None:
    loud, quiet = await house.client(LEGACY), await house.client(LEGACY)
    assert await loud.result("logging/setLevel", {"level": "info"}) == {}
    assert await quiet.result("logging/setLevel", {"level": "error"}) == {}
    assert await quiet.code("logging/setLevel", {"level": "loud"}) == -32602
    modern = await house.client(MODERN)
    async with faults(house.b, notify="log:rate=50"):
        for client, meta, hears in (
            (loud, {}, True),
            (quiet, {}, False),
            (modern, {}, False),
            (modern, {META + "logLevel": "info"}, True),
            (modern, {META + "logLevel": "error"}, False),
        ):
            async with client.open("tools/call", called("b__sleep", ms=150), meta=meta) as stream:
                await stream.answer()
            assert bool(stream.of("notifications/message")) == hears, (client.version, meta)


async def test_a_modern_upstream_is_told_the_clients_level(house: House) -> None:
    client = await house.client(MODERN)
    for meta in ({}, {META + "logLevel": "warning"}):
        await client.result("tools/call", called("a__echo"), **meta)
        assert house.sent("a")[-1]["meta"].get(META + "logLevel") == meta.get(META + "logLevel")
    async with client.open("tools/call", called("new__test_logging_tool"), meta={META + "logLevel": "info"}) as stream:
        await stream.answer()
    assert len(stream.of("notifications/message")) == 1


@each_version
@pytest.mark.parametrize("upstream", ["a", "b", "c"])
async def test_the_trace_context_travels_on_and_nothing_else_of_meta(house: House, upstream: str, version: str) -> None:
    client = await house.client(version)
    trace = {"traceparent": f"00-{'7' * 32}-{'1' * 16}-01", "tracestate": "x=y", "baggage": "user=ada"}
    await client.result("tools/call", called(f"{upstream}__echo"), **trace, **{"example.com/private": "stays"})
    meta = house.sent(upstream)[-1]["meta"]
    assert {name: meta.get(name) for name in trace} == trace
    assert "example.com/private" not in meta
    await client.result("prompts/get", {"name": f"{upstream}__greet", "arguments": {"who": "x"}}, **trace)
    (sent,) = [line for line in house.sent(upstream, "other")[-1:] if line["method"] == "prompts/get"]
    assert {name: sent["meta"].get(name) for name in trace} == trace


# ---------------------------------------------------------------- changes


@contextlib.asynccontextmanager
async def hearing(client: Talker, **notifications: Any) -> AsyncIterator[Stream]:
    """The stream on which a client of either era hears of changes."""
    async with client.listen(**notifications) if client.version == MODERN else client.watch() as stream:
        assert stream.status == 200
        yield stream


async def heard(stream: Stream, method: str, times: int) -> None:
    """Wait until a stream has told something so many times."""
    await eventually(lambda: len(stream.of(method)) >= times)
    assert len(stream.of(method)) == times


@each_version
@pytest.mark.parametrize(("upstream", "prefix"), [("a", ""), ("b", OWN), ("c", "codemode-gateway://c/")])
async def test_an_update_of_a_resource_is_heard_by_who_subscribed(
    house: House, upstream: str, prefix: str, version: str
) -> None:
    """``a``, ``b`` and ``c`` all serve this URI; only the one that was meant counts."""
    client, other = await house.client(version), await house.client(version)
    uri = prefix + SHARED
    if version == LEGACY:
        assert await client.result("resources/subscribe", {"uri": uri}) == {}
        assert await client.code("resources/subscribe", {"uri": "note://nobody"}) == -32602
    wanted: dict[str, Any] = {} if version == LEGACY else {"resourceSubscriptions": [uri, "note://nobody"]}
    async with hearing(client, **wanted) as stream, hearing(other) as deaf:
        if version == MODERN:
            (told,) = stream.of("notifications/subscriptions/acknowledged")
            assert told["notifications"] == {"resourceSubscriptions": [uri]}
        for writer in "abc":
            await client.result("tools/call", called(f"{writer}__put", key=SHARED, value=f"by {writer}"))
        await stream.until(lambda message: message.get("method") == "notifications/resources/updated")
        (content,) = (await client.result("resources/read", {"uri": uri}))["contents"]
        assert content["text"] == f"{upstream}: by {upstream} at {SHARED}"
        if version == LEGACY:
            assert await client.result("resources/unsubscribe", {"uri": uri}) == {}
            await client.result("tools/call", called(f"{upstream}__put", key=SHARED, value="again"))
        assert [params["uri"] for params in stream.of("notifications/resources/updated")] == [uri]
        assert deaf.of("notifications/resources/updated") == []
    for writer in "abc":
        await client.result("tools/call", called(f"{writer}__put", key=SHARED, value="empty"))


@each_mode
@pytest.mark.filterwarnings("ignore:resources/subscribe is removed")
async def test_the_official_client_subscribes(house: House, mode: ConnectMode) -> None:
    heard: list[str] = []
    updated = asyncio.Event()

    async def take(message: Any) -> None:
        if isinstance(message, mcp_types.ResourceUpdatedNotification):
            heard.append(message.params.uri)
            updated.set()

    async with official(house.running, mode, message_handler=take) as client:
        if mode == "legacy":
            await client.subscribe_resource("note://c")

            async def changed() -> bool:  # its GET stream opens when it likes
                await client.call_tool("c__put", {"key": "note://c", "value": "x"})
                return updated.is_set()

            await eventually(changed, every_s=0.05)
        else:
            async with client.listen(resource_subscriptions=["note://c"]) as subscription, asyncio.timeout(10):
                await client.call_tool("c__put", {"key": "note://c", "value": "x"})
                event = await anext(aiter(subscription))
                heard.append(str(getattr(event, "uri", None)))
    assert set(heard) == {"note://c"}


@pytest.mark.case("PASS-05")
@each_version
async def test_a_change_of_its_own_tools_is_told_once(house: House, version: str) -> None:
    """``narrow`` sees two tools of ``a``, which hide the one that appears."""
    client = await house.client(version)
    hidden = await house.client(version, "narrow")
    flags = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
    changed = "notifications/tools/list_changed"
    async with hearing(client, **flags) as stream, hearing(hidden, **flags) as other:
        for count, appears in enumerate(("0:tool=appeared", None), 1):
            await house.a.set(add_tool_after=appears)
            await heard(stream, changed, count)
            names = {tool["name"] for tool in (await client.result("tools/list"))["tools"]}
            assert ("a__appeared" in names) == (appears is not None)
        # what the tenant does not see of a list is no change of its view
        await house.b.set(quiet_changes="")
        await house.b.set(quiet_changes=None)
        await house.a.now(notify="list_changed")
        await house.a.set(add_tool_after="0:tool=put_more")
        await heard(stream, changed, 3)
        await house.a.set(add_tool_after=None)
        await heard(stream, changed, 4)
        assert other.of(changed) == []
        assert stream.of("notifications/prompts/list_changed") == []
    if version == MODERN:
        assert all(params["_meta"] == {META + "subscriptionId": "listen"} for params in stream.of(changed))


@pytest.mark.case("PASS-05")
@each_version
async def test_a_change_of_prompts_is_told_to_who_may_use_the_upstream_whole(house: House, version: str) -> None:
    client, narrow = await house.client(version), await house.client(version, "narrow")
    changed = "notifications/prompts/list_changed"
    async with hearing(client, promptsListChanged=True) as stream, hearing(narrow, promptsListChanged=True) as other:
        for count, upstream in enumerate(("new", "old"), 1):
            await client.result("tools/call", called(f"{upstream}__test_trigger_prompt_change"))
            await heard(stream, changed, count)
        assert other.of(changed) == []


@pytest.mark.case("PASS-05")
async def test_code_mode_announces_nothing(house: House) -> None:
    modern, legacy = Talker(house.running, path="/mcp"), Talker(house.running, path="/mcp")
    await legacy.hello()
    async with legacy.watch() as refused:
        assert refused.status == 405
        assert refused.headers["allow"] == "POST"
    witness = await house.client(MODERN)
    async with modern.listen(toolsListChanged=True, resourceSubscriptions=[SHARED]) as stream:
        assert stream.of("notifications/subscriptions/acknowledged")[0]["notifications"] == {}
        async with witness.listen(toolsListChanged=True) as other:
            await house.a.set(add_tool_after="0:tool=appeared")
            await other.until(lambda message: message.get("method") == "notifications/tools/list_changed")
            await house.a.set(add_tool_after=None)
            await heard(other, "notifications/tools/list_changed", 2)
        assert len(stream.messages) == 1


@pytest.mark.parametrize(("session", "accept"), [("", "text/event-stream"), ("forged", "text/event-stream")])
async def test_a_get_stream_needs_a_session_of_the_tenant(house: House, session: str, accept: str) -> None:
    talker = Talker(house.running, version=LEGACY, session=session)
    async with talker.watch() as refused:
        assert refused.status == (404 if session else 405)
    foreign = Talker(house.running, "beta", version=LEGACY, session=(await house.client(LEGACY)).session)
    async with foreign.watch() as refused:
        assert refused.status == 404


# ---------------------------------------------------------------- down and up again; last, because it ends an upstream


@pytest.mark.case("PASS-05")
@each_version
async def test_an_upstream_that_is_lost_and_returns_keeps_its_subscriptions(house: House, version: str) -> None:
    """Its tools stay listed meanwhile, so the list of tools does not change; its resources do, twice."""
    client = await house.client(version)
    if version == LEGACY:
        await client.result("resources/subscribe", {"uri": "note://b"})
    wanted = {"toolsListChanged": True, "resourcesListChanged": True, "resourceSubscriptions": ["note://b"]}
    async with hearing(client, **wanted) as stream:
        before = (await house.running.upstream("b"))["restarts"]
        with contextlib.suppress(OSError, AssertionError, asyncio.IncompleteReadError):
            await house.b.now(exit=1)

        async def returned() -> bool:
            row = await house.running.upstream("b")
            return bool(row["restarts"] > before and row["state"] == "ready")

        await eventually(returned, within_s=15)
        await stream.until(lambda message: message.get("method") == "notifications/resources/list_changed")

        async def updated() -> bool:  # it is asked to tell of the resource just after it is ready
            await client.ask("tools/call", called("b__put", key="note://b", value="x"))
            return bool(stream.of("notifications/resources/updated"))

        await eventually(updated, every_s=0.05)
        assert {params["uri"] for params in stream.of("notifications/resources/updated")} == {"note://b"}
        assert stream.of("notifications/tools/list_changed") == []
