"""``execute_code`` as its author sees it: values, logs, limits, errors, calls, cancellation."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent

from tests.companions import Control, RawClient, events, eventually, free_port
from tests.running import META, MODERN, Answer, Running, config, faulty, gateway, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

MiB = 1024 * 1024
LEGACY = "2025-11-25"
MANY = {"concurrentExecutions": 16, "requestsPerMinute": 100_000, "toolCallsPerMinute": 100_000}
TENANTS: dict[str, Any] = {
    "acme": {"upstreams": {"good": ["*"], "hang": ["*"]}, "limits": MANY},
    "beta": {
        "upstreams": {"good": ["*", "!put"], "xyz": ["*"]},
        "manifest": {"env": {"REGION": "north"}, "maxParallelCalls": 10},
        "limits": MANY,
    },
    "gamma": {"upstreams": {"good": ["*"]}, "limits": MANY},
    "small": {
        "upstreams": {"good": ["*"]},
        "manifest": {"maxOutputTokens": 200},
        "limits": MANY,
    },
    "quick": {
        "upstreams": {"good": ["*"]},
        "manifest": {"wallMs": 1800, "cpuMs": 600, "memoryLimitBytes": 16 * MiB},
        "limits": {"concurrentExecutions": 1},
    },
}


@dataclass(frozen=True)
class House:
    """A gateway, and the upstream ``good`` from its other side."""

    running: Running
    good: Control
    log: Path

    def received(self) -> list[tuple[str, Any]]:
        """Tool and arguments of each call that ``good`` received, in order."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [(line["tool"], json.loads(line["arguments"])) for line in lines if line["point"] == "call"]

    async def spent(self, tenant: str) -> dict[str, Any]:
        """The ledger's sums of one tenant."""
        rows = (await self.running.admin_get(f"/api/usage?tenant={tenant}"))["usage"]
        return {key: sum(row[key] for row in rows) for key in ("requests", "toolCalls", "errors")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("execute")
    port, log = free_port(), folder / "calls.jsonl"
    upstreams = {
        "good": faulty("--control", str(port), "--log-calls", str(log), callTimeout="1500ms"),
        "hang": faulty("--hang", "call", callTimeout="300ms"),
        "xyz": faulty(),
    }
    kernels = {"python": {"engine": "monty", "queueTimeout": "30s"}}
    async with serving(folder, config(upstreams, TENANTS, kernels=kernels)) as running:
        await running.wait_for(good="ready", hang="ready", xyz="ready")
        yield House(running, Control(port), log)


def first_line(answer: Answer) -> str:
    assert answer.is_error, answer.text
    return answer.text.splitlines()[0]


# ---------------------------------------------------------------- the value and the logs


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("'a \"b\"\\n2'", 'a "b"\n2'),
        ("{'a': [1, 2.5, None, True], 'é': ()}", '{"a":[1,2.5,null,true],"é":[]}'),
        ("'5'", "5"),
        ("x = 1", "null"),
        ("None", "null"),
        ("# nothing", "null"),
        ("x = 4\nreturn x + 1\nreturn 9", "5"),
        ("x = 4\nx + 1", "5"),
    ],
)
async def test_a_string_comes_as_it_is_and_everything_else_as_compact_json(house: House, code: str, text: str) -> None:
    answer = await house.running.run(code)
    assert (answer.text, answer.is_error) == (text, False)
    assert [block["type"] for block in answer.result["content"]] == ["text"]
    assert "structuredContent" not in answer.result
    assert answer.usage["kernel"] == "python"


async def test_logs_follow_the_value_in_order(house: House) -> None:
    code = "import sys\nprint('one', end='')\nprint(' and', 'a half')\nprint('two', file=sys.stderr)\nreturn [3]"
    assert (await house.running.run(code)).text == "[3]\nlogs:\none and a half\ntwo"


async def test_logs_of_a_failed_script_are_kept(house: House) -> None:
    answer = await house.running.run("print('before')\n1 / 0")
    assert answer.text.splitlines() == [
        "RUNTIME_ERROR: ZeroDivisionError: division by zero (line 2)",
        "logs:",
        "before",
    ]


async def test_a_call_that_was_not_awaited_is_said(house: House) -> None:
    answer = await house.running.run("good__sleep(ms=1000)\n5")
    assert answer.text == "5\nnote: calls that were not awaited have been cancelled: good__sleep"


async def test_executions_share_no_state(house: House) -> None:
    await house.running.run("kept = 1")
    assert (
        first_line(await house.running.run("kept")) == "RUNTIME_ERROR: NameError: name 'kept' is not defined (line 1)"
    )


@pytest.mark.parametrize(
    ("code", "is_error"),
    [
        ("'word ' * 5_000", False),
        ("['word'] * 5_000", False),
        ("'\U0001f9f0' * 5_000", False),
        ("'\U00013000' * 190", False),
        ("print('word ' * 5_000)", False),
        ("print('word ' * 5_000)\n'word ' * 5_000", False),
        ("raise ValueError('word ' * 5_000)", True),
        ("print('word ' * 5_000)\nraise ValueError('word ' * 5_000)", True),
        ("await good__fail(message='word ' * 5_000)", True),
    ],
)
async def test_an_answer_is_cut_to_its_tokens_and_says_so(house: House, code: str, is_error: bool) -> None:
    answer = await house.running.run(code, tenant="small")
    assert answer.is_error is is_error
    assert 100 < answer.usage["tokens"]["out"] <= 200
    assert re.search(r"\[truncated: about \d+ of \d+ tokens shown", answer.text)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("a = 1\nb = (", "SYNTAX_ERROR: .* \\(line 2\\)"),
        ("a = 1\n\ndef f():\n    return 1 / 0\n\nf()", "RUNTIME_ERROR: ZeroDivisionError: .* \\(line 4\\)"),
        ("\n\nraise ValueError('no')", "RUNTIME_ERROR: ValueError: no \\(line 3\\)"),
        ("class A(Exception):\n    pass", "UNSUPPORTED_SYNTAX: .*inheritance.* \\(line 1\\)"),
        ("1\nimport requests", "UNSUPPORTED_SYNTAX: .*'requests' \\(line 2\\)"),
        ("open('/etc/hostname').read()", "CAPABILITY_DENIED: .*'/etc/hostname' \\(line 1\\)"),
        ("x = 1\nawait good__fail(message='boom')", "TOOL_ERROR: good__fail: boom \\(line 2\\)"),
        ("await good__add(a='x', b=2)", "INVALID_ARGUMENTS: good__add: a: .*integer.* \\(line 1\\)"),
        ("await good__nothing()", "UNKNOWN_TOOL: .*good__nothing.* \\(line 1\\)"),
        ("def f(n):\n    return f(n + 1)\nf(0)", "RECURSION_LIMIT: .* \\(line 2\\)"),
    ],
)
async def test_the_first_line_of_an_error_is_class_message_and_line(house: House, code: str, line: str) -> None:
    assert re.fullmatch(line, first_line(await house.running.run(code)))


@pytest.mark.parametrize(
    ("code", "replacement"),
    [
        ("class A(Exception): pass", "raise ValueError"),
        ("import requests", "docs_search"),
        ("input()", "write the value into the script"),
        ("import asyncio\nasyncio.create_task(good__echo())", "asyncio.gather"),
        ("good__add(a=1, b=2)['sum']", "`await`"),
    ],
)
async def test_what_is_not_supported_comes_with_a_replacement(house: House, code: str, replacement: str) -> None:
    answer = await house.running.run(code)
    assert first_line(answer)
    hint = next(line for line in answer.text.splitlines() if line.startswith("hint: "))
    assert replacement in hint


async def test_invalid_arguments_show_the_signature_and_reach_nobody(house: House) -> None:
    before = len(house.received())
    answer = await house.running.run("await good__add(a='x', b=2)")
    assert "async def good__add(*, a: int, b: int)" in answer.text
    assert len(house.received()) == before


async def test_a_failed_call_can_be_caught(house: House) -> None:
    code = (
        "found = []\n"
        "for call in (good__fail(message='boom'), good__add(a='x', b=1), good__nothing(), good__add(a=1, b=2)):\n"
        "    try:\n"
        "        found.append(await call)\n"
        "    except Exception as error:\n"
        "        found.append(str(error).split(': ')[0])\n"
        "found"
    )
    assert (await house.running.run(code)).json() == ["TOOL_ERROR", "INVALID_ARGUMENTS", "UNKNOWN_TOOL", {"sum": 3}]


@pytest.mark.parametrize(
    ("tenant", "hidden", "missing"),
    [
        ("acme", "xyz__echo", "qwk__echo"),  # an upstream that the tenant may not use
        ("beta", "good__put", "good__pyt"),  # a tool that its patterns take away
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "await {name}(key='a', value=1)",
        "await call_tool('{name}', {{'key': 'a', 'value': 1}})",
        "try:\n    await {name}()\nexcept Exception as error:\n    r = str(error)\nr",
    ],
)
async def test_a_tool_one_may_not_use_answers_as_one_that_does_not_exist(
    house: House, tenant: str, hidden: str, missing: str, form: str
) -> None:
    async def shape(name: str) -> tuple[str, dict[str, Any]]:
        answer = await house.running.run(form.format(name=name), tenant=tenant)
        assert "UNKNOWN_TOOL" in answer.text
        usage = {key: value for key, value in answer.usage.items() if key in ("toolCalls", "kernel")}
        return json.dumps(answer.result["content"]).replace(name, "NAME"), usage

    assert await shape(hidden) == await shape(missing)


# ---------------------------------------------------------------- what a script can reach


async def test_every_form_of_a_call_reaches_the_tool(house: House) -> None:
    code = (
        "[await good__add(a=1, b=2), await good__add({'a': 1, 'b': 2}), await good__add({'a': 1}, b=2),\n"
        "await call_tool('good__add', {'a': 1, 'b': 2}), await callTool('good__add', {'a': 1, 'b': 2}),\n"
        "await call_tool('good__add', a=1, b=2), await call_tool(' good__add ', a=1, b=2)]"
    )
    answer = await house.running.run(code)
    assert answer.json() == [{"sum": 3}] * 7
    assert answer.usage["toolCalls"] == 7


async def test_search_docs_works_inside_a_script_and_stays_there(house: House) -> None:
    text = (await house.running.run("await search_docs('sum of two integers')")).text
    assert text == await house.running.search("sum of two integers")
    quiet = await house.running.run("len(await search_docs('sum of two integers')) > 0")
    assert quiet.usage["tokens"]["out"] < 3


async def test_env_is_the_manifests_and_nothing_else(house: House) -> None:
    assert (await house.running.run("env", tenant="beta")).json() == {"REGION": "north"}
    assert (await house.running.run("env['REGION']", tenant="beta")).text == "north"
    assert (await house.running.run("env")).json() == {}
    assert (await house.running.run("import os\n[os.getenv('REGION'), dict(os.environ)]", tenant="beta")).json() == [
        "north",
        {"REGION": "north"},
    ]


@pytest.mark.case("EXEC-01")
async def test_calls_run_in_parallel_up_to_the_limit(house: House) -> None:
    code = (
        "import asyncio\n"
        "async def nap(i):\n"
        "    try:\n"
        "        return (await good__sleep(ms=200) if i != {failing} else await good__fail(message='no'))\n"
        "    except Exception as error:\n"
        "        return str(error)\n"
        "await asyncio.gather(*[nap(i) for i in range({calls})])"
    )

    async def timed(calls: int, failing: int = -1) -> float:
        started = time.monotonic()
        results = (await house.running.run(code.format(calls=calls, failing=failing), tenant="beta")).json()
        expected: list[Any] = [{"ms": 200}] * calls
        if failing >= 0:
            expected[failing] = "TOOL_ERROR: good__fail: no"
        assert results == expected
        return time.monotonic() - started

    serial_s, overhead_s = 20 * 0.2, 0.5
    assert await timed(20) < 3 * serial_s / 10 + overhead_s
    assert await timed(20, failing=3) < 3 * serial_s / 10 + overhead_s
    # with 11 at once these would be done in two rounds
    assert await timed(21) >= 3 * 0.2
    # nothing before this in the module had more calls in flight; one more is counted when the upstream reads the next
    # call before it has put away the one that it has just answered
    assert (await house.good.state())["in_flight_peak"] in (10, 11)


@pytest.mark.case("EXEC-07")
async def test_an_upstream_that_never_answers_costs_one_call_only(house: House) -> None:
    code = (
        "try:\n    await hang__echo(x=1)\nexcept Exception as error:\n    failed = str(error)\n"
        "[failed, await good__echo(after=True)]"
    )
    gateway_process = psutil.Process(house.running.process.pid)

    def counts() -> tuple[int, int, int]:
        return gateway_process.num_threads(), gateway_process.num_fds(), len(gateway_process.children(recursive=True))

    async def busy() -> float:
        return await house.running.metric("mcp_gateway_kernel_workers", kernel="python", state="busy")

    await house.running.run(code)  # what is made once, at first use, is there now
    base = counts()
    for _ in range(5):
        failed, after = (await house.running.run(code)).json()
        assert failed.startswith("UPSTREAM_TIMEOUT: upstream hang did not answer")
        assert "0.3 s" in failed
        assert after == {"after": True}
    await eventually(lambda: all(now <= then for now, then in zip(counts(), base, strict=True)), within_s=2)
    await eventually(lambda: _is(busy, 0.0), within_s=3)


async def _is(read: Callable[[], Any], value: float) -> bool:
    return bool(await read() == value)


# ---------------------------------------------------------------- limits


@pytest.mark.case("EXEC-02")
@pytest.mark.parametrize(
    "code",
    [
        "for i in range(100_000):\n    await good__echo(i=i)",
        "import asyncio\nawait asyncio.gather(*[good__echo(i=i) for i in range(10_000)])",
        "import asyncio\n"
        "async def some():\n    return await asyncio.gather(*[good__echo(i=i) for i in range(30)])\n"
        "await asyncio.gather(*[some() for i in range(30)])",
        "for i in range(100_000):\n"
        "    try:\n        await good__echo(i=i)\n"
        "    except Exception as error:\n        if 'CALL_LIMIT' not in str(error): raise",
    ],
    ids=["loop", "gather", "nested", "caught"],
)
async def test_no_script_makes_more_calls_than_it_may(house: House, code: str) -> None:
    running = house.running
    memory = psutil.Process(running.process.pid)

    async def latency() -> float:
        started = time.perf_counter()
        assert (await running.run("1", tenant="beta")).text == "1"
        return time.perf_counter() - started

    quiet = statistics.median([await latency() for _ in range(20)])
    before, resident = len(house.received()), memory.memory_info().rss
    greedy = asyncio.create_task(running.run(code))
    disturbed = [await latency()]
    while not greedy.done():
        disturbed.append(await latency())
    answer = await greedy
    assert first_line(answer).startswith("CALL_LIMIT: ")
    assert "100 completed" in answer.text
    assert answer.usage["toolCalls"] == 100
    assert len(house.received()) - before == 100
    # a ratio that also holds where a few milliseconds of the machine's own make a quiet value twice as long
    assert statistics.median(disturbed) < 2 * quiet + 0.05
    assert memory.memory_info().rss - resident < 20 * MiB


PUTS = "last: good__put ×5"
ENDINGS = [
    ("CPU_LIMIT", "while True: pass", f"5 completed ({PUTS}), their effects stand"),
    ("MEMORY_LIMIT", "x = 'a' * (1 << 30)", f"5 completed ({PUTS}), their effects stand"),
    ("RUNTIME_ERROR", "1 / 0", f"5 completed ({PUTS}), their effects stand"),
    (
        "WALL_TIMEOUT",
        "while True: await good__sleep(ms=1300)",
        "6 completed (last: good__put ×4, good__sleep), their effects stand; "
        "1 in flight and cancelled, outcome unknown (good__sleep)",
    ),
    # the worker is killed while its script waits; that shows when the call comes back
    (
        "KERNEL_CRASHED",
        "await good__sleep(ms=1000)",
        "6 completed (last: good__put ×4, good__sleep), their effects stand",
    ),
]


@pytest.mark.case("EXEC-03")
@pytest.mark.parametrize(("error_class", "ending", "told"), ENDINGS, ids=[row[0] for row in ENDINGS])
async def test_a_failed_script_says_which_calls_had_happened(
    house: House, error_class: str, ending: str, told: str
) -> None:
    puts = f"for i in range(5): await good__put(key='{error_class}' + str(i), value=i)\n"
    before, spent = len(house.received()), await house.spent("quick")
    run = asyncio.create_task(house.running.run(puts + ending, tenant="quick"))
    if error_class == "KERNEL_CRASHED":
        await eventually(lambda: len(house.received()) == before + 6)
        for worker in psutil.Process(house.running.process.pid).children():
            if "monty" in worker.name():
                worker.kill()
    answer = await run
    received = house.received()[before:]
    assert first_line(answer).startswith(f"{error_class}: ")
    assert answer.text.splitlines()[-1] == f"tool calls before this: {told}"
    assert [arguments["value"] for tool, arguments in received if tool == "put"] == list(range(5))
    assert answer.usage["toolCalls"] == len(received)
    after = await house.spent("quick")
    assert after["toolCalls"] - spent["toolCalls"] == len(received)
    assert after["errors"] - spent["errors"] == 1


@pytest.mark.case("EXEC-04")
@pytest.mark.parametrize(
    ("tenant", "code", "outcome"),
    [
        ("quick", "for i in range(1_000_000): print('x' * 1000)", "CPU_LIMIT"),
        ("quick", "print('x' * (1 << 30))", "MEMORY_LIMIT"),
        ("quick", "import sys\nwhile True: print('error', file=sys.stderr)", "CPU_LIMIT"),
        ("gamma", "'x' * 50_000_000", "MEMORY_LIMIT|OUTPUT_LIMIT"),
        ("gamma", "'x' * 900_000", ""),
        ("gamma", "list(range(10_000_000))", "MEMORY_LIMIT|OUTPUT_LIMIT"),
        ("gamma", "x = []\nfor i in range(100_000): x = [x]\nx", "OUTPUT_LIMIT"),
        ("gamma", "raise ValueError('x' * 10_000_000)", "RUNTIME_ERROR"),
        ("gamma", "print('x' * 10_000_000)", ""),
    ],
)
async def test_no_output_is_unbounded(house: House, tenant: str, code: str, outcome: str) -> None:
    process = psutil.Process(house.running.process.pid)
    before = process.memory_info().rss
    answer = await house.running.run(code, tenant=tenant)
    if outcome:
        assert re.match(outcome, first_line(answer))
    else:
        assert not answer.is_error
        assert "[truncated: " in answer.text
    assert answer.usage["tokens"]["out"] <= 6000
    assert len(answer.text) < 256 * 1024
    await eventually(lambda: process.memory_info().rss - before < 20 * MiB)


@pytest.mark.case("EXEC-05")
async def test_scripts_at_once_share_nothing(house: House) -> None:
    tenants = ("acme", "beta", "gamma", "small")
    spent = {tenant: await house.spent(tenant) for tenant in tenants}

    async def one(number: int) -> str:
        token = f"token-{number:02d}-"
        code = (
            "import asyncio\n"
            "got = []\n"
            f"for i in range(5):\n"
            f"    await good__sleep(ms={number * 7 % 40})\n"
            f"    print('{token}')\n"
            f"    got.append((await good__echo(t='{token}'))['t'])\n"
            "got"
        )
        answer = await house.running.run(code, tenant=tenants[number % 4])
        value, _, logs = answer.text.partition("\nlogs:\n")
        assert json.loads(value) == [token] * 5
        assert logs.splitlines() == [token] * 5
        assert answer.usage["toolCalls"] == 10
        return str(answer.usage["requestId"])

    ids = await asyncio.gather(*(one(number) for number in range(64)))
    assert len(set(ids)) == 64
    for tenant in tenants:
        now = await house.spent(tenant)
        assert now["requests"] - spent[tenant]["requests"] == 16
        assert now["toolCalls"] - spent[tenant]["toolCalls"] == 160


async def test_a_tenant_has_so_many_executions_at_once(house: House) -> None:
    before = (await house.good.state())["in_flight"]
    running = asyncio.create_task(house.running.run("await good__sleep(ms=1000)", tenant="quick"))
    await eventually(lambda: _in_flight(house, before + 1))
    answer = await house.running.run("1", tenant="quick")
    assert first_line(answer).startswith("RATE_LIMITED: ")
    assert "all 1 executions" in answer.text
    assert not (await running).is_error
    assert (await house.running.run("1", tenant="quick")).text == "1"


async def _in_flight(house: House, calls: int) -> bool:
    return bool((await house.good.state())["in_flight"] == calls)


# ---------------------------------------------------------------- the request itself


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"code": 1}, "code must be a non-empty string"),
        ({"code": None}, "code must be a non-empty string"),
        ({"code": ["1"]}, "code must be a non-empty string"),
        ({"code": ""}, "code must be a non-empty string"),
        ({"code": "  \n"}, "code must be a non-empty string"),
        ({}, "code must be a non-empty string"),
        ({"code": "1", "language": "python"}, "'language'"),
        ({"script": "1"}, "code must be a non-empty string"),
        ({"code": "#" * (256 * 1024 + 1)}, "262144"),
    ],
)
async def test_wrong_arguments_are_a_result_that_the_model_can_mend(
    house: House, arguments: Mapping[str, Any], says: str
) -> None:
    answer = await house.running.call("execute_code", arguments)
    assert first_line(answer).startswith("INVALID_ARGUMENTS: ")
    assert says in answer.text
    assert answer.usage["toolCalls"] == 0


async def test_a_string_that_looks_dangerous_is_only_a_string(house: House) -> None:
    assert (await house.running.run("'import os; open(\"/etc/passwd\")'")).text == 'import os; open("/etc/passwd")'


async def test_a_key_without_the_scope_is_refused_with_403(house: House) -> None:
    running = house.running
    code, out, err = await gateway("keys", "create", "--tenant", "acme", "--scopes", "docs:read", folder=running.folder)
    assert code == 0, err
    key = {"Authorization": f"Bearer {out.strip()}"}

    async def post(call: Call) -> httpx2.Response:
        return await running.post(call.body, headers={**call.headers, **key})

    async def searched() -> bool:  # the gateway learns of a new key within a second
        return (await post(modern("docs_search", {"query": "sum"}))).status_code == 200

    await eventually(searched)
    for call in (modern("execute_code", {"code": "1"}), legacy("execute_code", {"code": "1"})):
        refused = await post(call)
        assert refused.status_code == 403
        assert 'error="insufficient_scope", scope="code:execute"' in refused.headers["www-authenticate"]
        assert "execute_code" in refused.json()["error"]["message"]


@dataclass(frozen=True)
class Call:
    """One ``tools/call`` as it goes over the wire."""

    body: dict[str, Any]
    headers: dict[str, str]


def modern(name: str, arguments: Mapping[str, Any], *, token: str | int | None = None) -> Call:
    meta: dict[str, Any] = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": name}
    return _call(name, arguments, meta, headers, token, 1)


def legacy(
    name: str,
    arguments: Mapping[str, Any],
    *,
    token: str | int | None = None,
    session: str | None = None,
    request_id: int = 1,
) -> Call:
    headers = {"MCP-Protocol-Version": LEGACY, **({"Mcp-Session-Id": session} if session else {})}
    return _call(name, arguments, {}, headers, token, request_id)


def _call(
    name: str,
    arguments: Mapping[str, Any],
    meta: dict[str, Any],
    headers: dict[str, str],
    token: str | int | None,
    request_id: int,
) -> Call:
    if token is not None:
        meta["progressToken"] = token
    params = {"name": name, "arguments": arguments, **({"_meta": meta} if meta else {})}
    return Call({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}, headers)


async def session_of(running: Running, tenant: str = "acme") -> str:
    """A session of the ``initialize`` era."""
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    return str((await running.post(body, tenant=tenant)).headers["mcp-session-id"])


@pytest.mark.parametrize("form", [modern, legacy])
@pytest.mark.parametrize("token", ["t1", 7, 0])
async def test_progress_is_streamed_to_a_client_that_asked(
    house: House, form: Callable[..., Call], token: str | int
) -> None:
    code = "for i in range(3): await good__echo(i=i)\n'done'"
    call = form("execute_code", {"code": code}, token=token)
    response = await house.running.post(call.body, headers=call.headers)
    assert response.headers["content-type"] == "text/event-stream"
    *told, last = events(response.text)
    assert {message["method"] for message in told} == {"notifications/progress"}
    assert [message["params"]["progressToken"] for message in told] == [token] * len(told)
    assert [message["params"]["progress"] for message in told] == [1, 2, 3]
    assert "good__echo" in told[0]["params"]["message"]
    assert last["id"] == 1
    assert last["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("form", [modern, legacy])
async def test_without_a_token_or_without_streams_the_answer_is_json(house: House, form: Callable[..., Call]) -> None:
    silent = form("execute_code", {"code": "await good__echo()\n'done'"})
    deaf = form("execute_code", {"code": "await good__echo()\n'done'"}, token="t")
    for call, more in ((silent, {}), (deaf, {"Accept": "application/json"})):
        response = await house.running.post(call.body, headers={**call.headers, **more})
        assert response.headers["content-type"] == "application/json"
        assert response.json()["result"]["content"][0]["text"] == "done"


# ---------------------------------------------------------------- going away

SLOW = """await good__put(key='{key}', value='begun')
await good__sleep(ms=900)
await good__put(key='{key}', value='ended')"""


@dataclass(frozen=True)
class Departure:
    """A script that waits in its second call, on a connection of its own, and what ``good`` sees of it."""

    house: House
    key: str
    client: RawClient
    cancelled_before: int

    async def cancelled(self) -> bool:
        return len((await self.house.good.state())["cancelled"]) == self.cancelled_before + 1

    async def free(self) -> bool:
        """Whether the one execution slot of the tenant is free again: the kernel has ended the script."""
        return not (await self.house.running.run("1", tenant="quick")).is_error

    async def stored(self) -> Any:
        return (await self.house.good.state())["stored"][self.key]


@asynccontextmanager
async def waiting_script(house: House, key: str, form: Callable[..., Call], **more: Any) -> AsyncIterator[Departure]:
    running = house.running
    call = form("execute_code", {"code": SLOW.format(key=key)}, **more)
    before = await house.good.state()
    async with RawClient(int(running.url.rpartition(":")[2])) as client:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {running.keys['quick']}",
            **call.headers,
        }
        await client.request("POST", "/mcp", json.dumps(call.body).encode(), headers)
        await eventually(lambda: _in_flight(house, before["in_flight"] + 1))
        yield Departure(house, key, client, len(before["cancelled"]))


@pytest.mark.case("EXEC-03")
@pytest.mark.parametrize("token", [None, "t"], ids=["json", "stream"])
async def test_a_modern_client_that_leaves_ends_kernel_and_upstream_call(house: House, token: str | None) -> None:
    spent = await house.spent("quick")
    async with waiting_script(house, f"left-{token}", modern, token=token) as left:
        left.client.abort()
        gone = time.monotonic()
        await eventually(left.cancelled, within_s=1)
        await eventually(left.free, within_s=1)
        assert time.monotonic() - gone < 1
        assert await left.stored() == "begun"
    after = await house.spent("quick")
    assert after["toolCalls"] - spent["toolCalls"] == 2
    assert after["errors"] > spent["errors"]


async def test_a_legacy_client_that_leaves_ends_nothing(house: House) -> None:
    session = await session_of(house.running, "quick")
    async with waiting_script(house, "lost", legacy, session=session) as left:
        left.client.abort()

        async def ended() -> bool:
            return bool(await left.stored() == "ended")

        await eventually(ended, within_s=3)
        assert len((await house.good.state())["cancelled"]) == left.cancelled_before


async def test_a_legacy_cancel_ends_kernel_and_upstream_call(house: House) -> None:
    running = house.running
    mine, other = await session_of(running, "quick"), await session_of(running, "quick")
    foreign = await session_of(running, "acme")

    async def cancel(session: str, request_id: int, tenant: str) -> int:
        params = {"requestId": request_id, "reason": "enough"}
        body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        headers = {"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": session}
        return (await running.post(body, tenant=tenant, headers=headers)).status_code

    async with waiting_script(house, "cancelled", legacy, session=mine, request_id=41) as left:
        for session, request_id, tenant in (
            (other, 41, "quick"),
            (mine, 42, "quick"),
            (mine, 41, "acme"),
            (foreign, 41, "acme"),
        ):
            await cancel(session, request_id, tenant)
        assert not await left.cancelled()
        assert await cancel(mine, 41, "quick") == 202
        await eventually(left.cancelled, within_s=1)
        await eventually(left.free, within_s=1)
        assert (await left.client.response()).body == b""
        assert await left.stored() == "begun"


# ---------------------------------------------------------------- clients

FIVE_SECONDS = "import asyncio\nfor _ in range(5): await asyncio.sleep(1)\n'five seconds'"


@pytest.mark.case("EXEC-06")
async def test_the_official_client_lists_searches_and_runs(house: House) -> None:
    running = house.running
    key = {"Authorization": f"Bearer {running.keys['gamma']}"}

    async def text(client: Client, name: str, **arguments: str) -> str:
        result = await client.call_tool(name, arguments)
        (block,) = result.content
        assert isinstance(block, TextContent)
        assert not result.is_error
        assert "codemode-gateway/usage" in (result.meta or {})
        return block.text

    async def talk(mode: str, version: str) -> None:
        async with (
            httpx2.AsyncClient(headers=key, timeout=30) as http,
            Client(streamable_http_client(f"{running.url}/mcp", http_client=http), mode=mode) as client,
        ):
            assert client.protocol_version == version
            assert [tool.name for tool in (await client.list_tools()).tools] == ["docs_search", "execute_code"]
            assert "good__add" in await text(client, "docs_search", query="sum of two integers")
            slow = asyncio.create_task(text(client, "execute_code", code=FIVE_SECONDS))
            assert await text(client, "execute_code", code="1+1") == "2"
            assert await slow == "five seconds"

    await asyncio.gather(talk("legacy", LEGACY), talk("auto", MODERN), talk(MODERN, MODERN))


@pytest.mark.case("EXEC-06")
@pytest.mark.parametrize("form", [modern, legacy])
async def test_a_raw_client_gets_the_result_in_the_answer_itself(house: House, form: Callable[..., Call]) -> None:
    call = form("execute_code", {"code": "1+1"})
    response = await house.running.post(call.body, headers=call.headers)
    assert response.status_code == 200
    assert set(response.json()) == {"jsonrpc", "id", "result"}
    result = response.json()["result"]
    assert result["content"] == [{"type": "text", "text": "2"}]
    assert result.get("resultType", "complete") == "complete"
