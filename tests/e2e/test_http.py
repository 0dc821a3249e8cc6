"""Raw HTTP and JSON-RPC at both listeners: what is refused, how, how fast, and what it leaves behind.

Cases with many variants of framing, heads and JSON are also spelled out in tests/edge; a client that leaves and legacy
cancellation also in test_execute_code.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from tests.companions import Control, RawClient, RawResponse, events, eventually, free_port
from tests.running import META, MODERN, Answer, Running, config, faulty, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MANY = {"concurrentExecutions": 16, "requestsPerMinute": 100_000, "toolCallsPerMinute": 100_000}
PUBLIC = "http://gw.example.test:8443"
HEAD_S, BODY_S = 1.0, 1.8
MiB = 1024 * 1024
BOTH = pytest.mark.parametrize("listener", ["tenants", "operators"])
QUICK_S = 0.05


@dataclass(frozen=True)
class House:
    """A gateway with short deadlines, and its upstream ``good`` from the other side."""

    running: Running
    good: Control

    def port(self, listener: str = "tenants") -> int:
        url = self.running.url if listener == "tenants" else self.running.admin
        return int(url.rpartition(":")[2])

    async def raw(self, data: bytes, listener: str = "tenants") -> RawResponse:
        """Exact bytes on a connection of their own; the first answer."""
        async with RawClient(self.port(listener)) as client, asyncio.TaskGroup() as group:
            group.create_task(_sent(client, data))
            return await client.response()

    async def post(self, body: Any, *, path: str = "/mcp", **headers: str | None) -> httpx2.Response:
        """A POST whose headers can be replaced, or left out with None; ``_`` stands for ``-``."""
        sent: dict[str, str | None] = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {self.running.keys['acme']}",
        }
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = [(name, value) for name, value in sent.items() if value is not None]
        return await self.running.client.post(self.running.url + path, content=content, headers=given)

    async def calls(self) -> int:
        """How many tool calls reached the upstream."""
        return int((await self.good.state())["calls"])

    async def alive(self) -> None:
        assert (await self.running.run("1 + 1")).text == "2"


async def _sent(client: RawClient, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # an answer may come before all is sent
        await client.send(data)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    port = free_port()
    content = config({"good": faulty("--control", str(port))}, {"acme": {"limits": MANY}, "quick": {"limits": MANY}})
    content["server"] |= {
        "port": free_port(),
        "publicUrl": PUBLIC,
        "allowedOrigins": ["https://app.example.test"],
        "headerTimeout": f"{HEAD_S * 1000:.0f}ms",
        "bodyTimeout": f"{BODY_S * 1000:.0f}ms",
    }
    async with serving(tmp_path_factory.mktemp("http"), content) as running:
        running.url = f"http://127.0.0.1:{content['server']['port']}"  # it told its public one
        await running.wait_for(good="ready")
        yield House(running, Control(port))


def request(method: str, params: Any = None, request_id: Any = 1) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return message if params is None else {**message, "params": params}


def modern_params(**params: Any) -> dict[str, Any]:
    return {**params, "_meta": {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}}


def modern_call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return request("tools/call", modern_params(name=name, arguments=arguments))


LIST = request("tools/list", {})


# ---- Host and Origin -------------------------------------------------------------------------------------------------


async def asked(house: House, listener: str, *headers: str, target: str = "") -> int:
    """Status of a well-formed request with these headers."""
    key = f"Authorization: Bearer {house.running.keys['acme']}"
    if listener == "tenants":
        body = json.dumps(LIST)
        start = f"POST {target or '/mcp'} HTTP/1.1"
        lines = [start, *headers, key, "Content-Type: application/json", f"Content-Length: {len(body)}", "", body]
    else:
        lines = [f"GET {target or '/api/tenants'} HTTP/1.1", *headers, "", ""]
    return (await house.raw("\r\n".join(lines).encode(), listener)).status


@pytest.mark.case("HTTP-01")
@BOTH
async def test_only_the_own_authorities_are_answered(house: House, listener: str) -> None:
    port = house.port(listener)
    own = f"Host: 127.0.0.1:{port}"
    assert await asked(house, listener, own) == 200
    assert await asked(house, listener, f"Host: localhost:{port}") == 200
    for host in ("evil.test", f"127.0.0.1:{port}@evil.test", f"evil.test:{port}", "127.0.0.1:1", f"127.0.0.1:{port}."):
        assert await asked(house, listener, f"Host: {host}") == 421, host
    assert await asked(house, listener, own, own) == 400
    assert await asked(house, listener, own, "Host: evil.test") == 400
    assert await asked(house, listener) == 400
    assert await asked(house, listener, own, target="http://evil.test/mcp") == 421
    for origin in ("http://evil.test", "null", "http://localhost.evil.test", f"http://localhost.evil.test:{port}"):
        assert await asked(house, listener, own, f"Origin: {origin}") == 403, origin
    assert await asked(house, listener, own, f"Origin: http://127.0.0.1:{port}") == 200


@pytest.mark.case("HTTP-01")
async def test_the_public_url_and_configured_origins_are_answered(house: House) -> None:
    assert await asked(house, "tenants", "Host: gw.example.test:8443") == 200
    assert await asked(house, "tenants", "Host: gw.example.test") == 421, "that is another port"
    assert await asked(house, "tenants", "Host: gw.example.test:8443", "Origin: https://app.example.test") == 200
    assert await asked(house, "operators", "Host: gw.example.test:8443") == 421, "the operator's listener is not public"


# ---- heads and bodies ------------------------------------------------------------------------------------------------


def head(port: int, *lines: bytes, key: str = "", target: bytes = b"/mcp") -> bytes:
    """Of a POST of JSON."""
    start = [b"POST %b HTTP/1.1" % target, b"Host: 127.0.0.1:%d" % port, b"Content-Type: application/json"]
    credentials = [b"Authorization: Bearer " + key.encode()] if key else []
    return b"\r\n".join([*start, *credentials, *lines]) + b"\r\n\r\n"


async def drip(client: RawClient, data: bytes, pause_s: float) -> None:
    """Send the same again and again, until the peer has gone."""
    with contextlib.suppress(ConnectionError):
        while True:
            await client.send(data)
            await asyncio.sleep(pause_s)


async def took(house: House, data: bytes, listener: str, expected: Sequence[int]) -> float:
    begun = time.perf_counter()
    response = await house.raw(data, listener)
    seconds = time.perf_counter() - begun
    assert response.status in expected
    assert response.headers["connection"] == "close"
    return seconds


@pytest.mark.case("HTTP-02")
@BOTH
@pytest.mark.parametrize("with_key", [True, False])
async def test_a_huge_head_is_refused_at_once(house: House, listener: str, with_key: bool) -> None:
    key = house.running.keys["acme"] if with_key else ""
    port = house.port(listener)
    heads = [
        head(port, *[b"a%d: b" % n for n in range(8_000)], key=key),
        head(port, b"X: " + b"x" * MiB, key=key),
        head(port, *[b"Cookie: a=b"] * 5_000, key=key),
        head(port, key=key, target=b"/mcp?" + b"x" * 64 * 1024),
    ]
    lags: list[float] = []

    async def probe() -> None:
        while True:
            begun = time.perf_counter()
            assert (await house.running.client.get(house.running.admin + "/livez")).status_code == 200
            lags.append(time.perf_counter() - begun)

    async def quiet() -> float:
        begun = time.perf_counter()
        await house.raw(head(port, b"Content-Length: 0"), listener)
        return time.perf_counter() - begun

    usual = statistics.median([await quiet() for _ in range(5)])
    probing = asyncio.create_task(probe())
    try:
        for data in heads:
            assert min([await took(house, data, listener, (431, 414)) for _ in range(3)]) < QUICK_S + 2 * usual
    finally:
        probing.cancel()
        await asyncio.wait({probing})
    assert statistics.quantiles(lags, n=20)[-1] < 0.5, "the unguarded fault stopped everything for seconds"


@pytest.mark.case("HTTP-03")
@BOTH
async def test_slow_senders_are_closed_and_disturb_nobody(house: House, listener: str) -> None:
    process = psutil.Process(house.running.process.pid)
    await house.alive()
    base = process.num_fds()
    port = house.port(listener)
    # the operator's listener has no request that reads a body: it answers, and closes
    path, whole = (b"/mcp", 408) if listener == "tenants" else (b"/livez", 405)
    start = head(port, b"Content-Length: 1000", key=house.running.keys["acme"], target=path)

    async def slow(first: bytes, status: int) -> None:
        async with RawClient(port) as client:
            await client.send(first)
            async with asyncio.TaskGroup() as group:
                dripping = group.create_task(drip(client, b"x", 0.3))
                assert (await client.response()).status == status
                with contextlib.suppress(ConnectionError):
                    assert await client.read() == b"", "closed"
                dripping.cancel()

    async def served() -> None:
        while True:
            await house.alive()

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        normal = group.create_task(served())
        async with asyncio.TaskGroup() as slow_ones:
            for _ in range(100):
                slow_ones.create_task(slow(start[:-2] + b"X: ", 408))
                slow_ones.create_task(slow(start, whole))
        assert time.perf_counter() - begun < BODY_S + 5
        normal.cancel()
    await eventually(lambda: process.num_fds() <= base + 5)


@pytest.mark.case("HTTP-04")
async def test_a_body_has_a_size_whatever_is_declared(house: House) -> None:
    key, port = house.running.keys["acme"], house.port()
    process = psutil.Process(house.running.process.pid)
    await house.alive()
    before = process.memory_info().rss
    huge = b"Content-Length: 1000000000"
    assert (await house.raw(head(port, huge) + b"x" * 100_000)).status == 401
    assert (await house.raw(head(port, huge, key=key) + b"x" * 100_000)).status == 413
    assert (await house.raw(head(port, b"Content-Length: 5242880", key=key) + b" " * 5 * MiB)).status == 413
    for status, credentials in ((401, ""), (413, key)):
        async with RawClient(house.port()) as client:
            await client.send(head(port, b"Transfer-Encoding: chunked", key=credentials))
            chunk = b"%x\r\n%b\r\n" % (64 * 1024, b" " * 64 * 1024)
            async with asyncio.TaskGroup() as group:
                flooding = group.create_task(drip(client, chunk, 0))
                assert (await client.response()).status == status
                flooding.cancel()
    assert process.memory_info().rss - before < 30 * MiB
    for length in (b"-1", b"+2", b"9" * 30, b"2, 2", b"2\r\nContent-Length: 2", b"2\r\nContent-Length: 3"):
        async with RawClient(house.port()) as client:
            await client.send(head(port, b"Content-Length: " + length, key=key) + b"{}")
            response = await client.response()
            assert (response.status, response.headers["connection"]) == (400, "close"), length
            assert await client.read() == b""


@pytest.mark.case("HTTP-05")
@BOTH
async def test_ambiguous_framing_executes_nothing(house: House, listener: str) -> None:
    call = json.dumps(
        request("tools/call", {"name": "good__put", "arguments": {"key": "smuggled", "value": 1}})
    ).encode()
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(call), call)
    length = b"Content-Length: %d" % len(call)
    forms: list[tuple[bytes, bytes, bytes]] = [
        (b"POST", length + b"\r\nTransfer-Encoding: chunked", chunked),
        (b"POST", b"Transfer-Encoding: xchunked", chunked),
        (b"POST", b"Transfer-Encoding: chunked, chunked", chunked),
        (b"POST", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", chunked),
        (b"POST", b"X: y\n" + length, call),
        (b"POST", b"X: y\r" + length, call),
        (b"POST", b"X: y\r\n z\r\n" + length, call),
        (b"POST", length.replace(b":", b" :"), call),
        (b"POST", b"X: \0\r\n" + length, call),
        (b"GET", length, call),
    ]
    host = b"Host: 127.0.0.1:%d\r\nAuthorization: Bearer %b" % (
        house.port(listener),
        house.running.keys["acme"].encode(),
    )
    before = await house.calls()
    for method, lines, body in forms:
        async with RawClient(house.port(listener)) as client:
            start = b"%b /mcp/direct HTTP/1.1\r\n%b\r\nContent-Type: application/json\r\n" % (method, host)
            await client.send(start + lines + b"\r\n\r\n" + body)
            response = await client.response()
            assert (response.status, response.headers["connection"]) == (400, "close"), lines
            with contextlib.suppress(ConnectionError):
                assert await client.read() == b""
    assert await house.calls() == before


# ---- JSON ------------------------------------------------------------------------------------------------------------


def nested(depth: int) -> bytes:
    """Arguments that make the whole body ``depth`` deep."""
    inside = depth - 2
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}' % (
        b'{"name":"good__echo","arguments":{"a":' + b"[" * (inside - 1) + b"]" * (inside - 1) + b"}}"
    )


def direct(arguments: bytes, more: bytes = b"") -> bytes:
    """A call of ``echo`` with exact bytes as arguments, and more members after the usual ones."""
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"good__echo","arguments":%b}%b}' % (
        arguments,
        more,
    )


UNUSUAL = {
    "two names": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"good__echo","name":"good__put"}}',
    "two methods": direct(b"{}", b',"method":"ping"'),
    "two ids": direct(b"{}", b',"id":2'),
    "two arguments": direct(b'{"a":1,"a":2}'),
    "an escaped duplicate": direct(rb'{"a":1,"\u0061":2}'),
    "depth 65": nested(65),
    "depth 100,000": nested(100_000),
    "NaN": direct(b'{"a":NaN}'),
    "1e999": direct(b'{"a":1e999}'),
    "invalid UTF-8": direct(b'{"a":"\xff"}'),
    "a lone surrogate": direct(rb'{"a":"\ud800"}'),
    "UTF-16": direct(b"{}").decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + direct(b"{}"),
    "trailing data": direct(b"{}") + b"{}",
    "nothing": b"",
    "400,000 keys": direct(b"{" + b",".join(b'"%x":1' % n for n in range(400_000)) + b"}"),
    "many values": direct(b'{"a":[' + b"0," * 1_000_000 + b"0]}"),
}


@pytest.mark.case("HTTP-06")
@pytest.mark.parametrize("what", UNUSUAL)
async def test_json_that_parsers_read_differently_is_refused(house: House, what: str) -> None:
    before = await house.calls()
    fastest = 1e9
    for _ in range(3):
        begun = time.perf_counter()
        response = await house.post(UNUSUAL[what], path="/mcp/direct")
        fastest = min(fastest, time.perf_counter() - begun)
        assert response.status_code == 400
        assert response.json()["error"]["code"] in (-32700, -32600)
        assert response.json()["id"] is None
    begun = time.perf_counter()
    await house.post(b" " * len(UNUSUAL[what]), path="/mcp/direct")
    assert fastest < QUICK_S + 2 * (time.perf_counter() - begun)
    assert await house.calls() == before


@pytest.mark.case("HTTP-06")
async def test_a_dense_body_does_not_hold_up_others(house: House) -> None:
    dense = direct(b'{"a":{' + b",".join(b'"%x":[]' % n for n in range(24_000)) + b"}}")
    sending = [asyncio.create_task(house.post(dense, path="/mcp/direct")) for _ in range(3)]
    lags = []
    while not all(task.done() for task in sending):
        begun = time.perf_counter()
        await house.running.client.get(house.running.admin + "/livez")
        lags.append(time.perf_counter() - begun)
    assert [(await task).status_code for task in sending] == [200] * 3
    assert statistics.median(lags) < 0.25


@pytest.mark.case("HTTP-06")
async def test_deep_but_allowed_nesting_and_large_integers_arrive_as_they_were(house: House) -> None:
    response = await house.post(nested(64), path="/mcp/direct")
    assert response.status_code == 200, response.text
    assert response.json()["result"]["content"][0]["text"].count("[") == 61
    exact = b'{"n":12345678901234567890,"m":-98765432109876543210,"x":1.10}'
    response = await house.post(direct(exact), path="/mcp/direct")
    assert json.loads(response.json()["result"]["content"][0]["text"])["n"] == 12345678901234567890
    assert b"-98765432109876543210" in response.content


# ---- headers and bodies that disagree --------------------------------------------------------------------------------


def routed(name: str | None, method: str | None = "tools/call", version: str | None = MODERN) -> dict[str, Any]:
    return {"MCP_Protocol_Version": version, "Mcp_Method": method, "Mcp_Name": name}


def sentinel(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.case("HTTP-07")
async def test_what_headers_say_must_be_what_the_body_says(house: House) -> None:
    put = modern_call("good__put", {"key": "policy", "value": "by header"})
    damaged = sentinel("good__put")[:-3] + "?="
    wrong: list[dict[str, Any]] = [
        routed("good__echo"),
        routed(None),
        routed("GOOD__PUT"),
        routed("good__put, good__put"),
        routed(sentinel("good__echo")),
        routed(damaged),
        routed(sentinel("good__put").replace("=?base64?", "=?BASE64?")),
        routed("good__put", "tools/list"),
        routed("good__put", None),
        routed("good__put", "Tools/Call"),
        routed("good__put", version="2025-11-25"),
        routed("good__put", version=None),
    ]
    before = await house.calls()
    for headers in wrong:
        response = await house.post(put, path="/mcp/direct", **headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, -32020), headers
        assert response.json()["id"] == 1
    response = await house.post(put, path="/mcp/direct", **routed("good__put", version="2099-01-01"))
    assert (response.status_code, response.json()["error"]["code"]) in ((400, -32020), (400, -32022))
    usual = (f"MCP-Protocol-Version: {MODERN}", "Mcp-Method: tools/call")

    async def sent(*lines: str) -> tuple[int, Any]:
        content = json.dumps(put).encode()
        more = [line.encode() for line in (*usual, *lines, f"Content-Length: {len(content)}")]
        key = house.running.keys["acme"]
        answer = await house.raw(head(house.port(), *more, key=key, target=b"/mcp/direct") + content)
        return answer.status, answer.json()

    for doubled in ("Mcp-Name: good__put", *usual):
        status, answer = await sent("Mcp-Name: good__put", doubled)
        assert (status, answer["error"]["code"]) == (400, -32020), doubled
    assert await house.calls() == before
    for name in ("Mcp-Name:good__put", "mcp-name:  \tgood__put \t", f"MCP-NAME: {sentinel('good__put')}"):
        status, answer = await sent(name)
        assert status == 200, answer
    assert await house.calls() == before + 3


@pytest.mark.case("HTTP-07")
async def test_policy_and_metering_follow_the_body(house: House) -> None:
    """A parameter header that the tool's schema does not ask for decides nothing either."""
    before = await house.running.metric("mcp_gateway_upstream_calls_total", upstream="good", outcome="ok")
    add = modern_call("good__add", {"a": 1, "b": 2})
    response = await house.post(add, path="/mcp/direct", **routed("good__add"), Mcp_Param_a="7")
    assert response.json()["result"]["structuredContent"] == {"sum": 3}

    async def counted() -> bool:
        now = await house.running.metric("mcp_gateway_upstream_calls_total", upstream="good", outcome="ok")
        return now == before + 1

    await eventually(counted)


# ---- clients that leave ----------------------------------------------------------------------------------------------

LEAVING = """\
await good__put(key='{key}', value='begun')
await good__sleep(ms=700)
await good__put(key='{key}', value='ended')"""


@pytest.mark.case("HTTP-08")
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_client_that_leaves_is_metered_once_and_its_script_ends_as_the_era_says(
    house: House, era: str, stream: bool
) -> None:
    key = f"{era}-{stream}"
    token = {"progressToken": "t"} if stream else {}
    arguments = {"code": LEAVING.format(key=key)}
    if era == "modern":
        body = modern_call("execute_code", arguments)
        body["params"]["_meta"] |= token
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "execute_code"}
    else:
        body = request(
            "tools/call", {"name": "execute_code", "arguments": arguments, **({"_meta": token} if token else {})}
        )
        headers = {"MCP-Protocol-Version": LEGACY[-1]}
    sent = {
        "Authorization": f"Bearer {house.running.keys['quick']}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream" if stream else "application/json",
        **headers,
    }

    async def spent() -> int:
        rows = (await house.running.admin_get("/api/usage?tenant=quick"))["usage"]
        return int(sum(row["requests"] for row in rows))

    async def stored() -> Any:
        return (await house.good.state())["stored"].get(key)

    before, cancelled = await spent(), len((await house.good.state())["cancelled"])
    async with RawClient(house.port()) as client:
        await client.request("POST", "/mcp", json.dumps(body).encode(), sent)

        async def sleeping() -> bool:
            return bool(await stored() == "begun" and (await house.good.state())["in_flight"])

        await eventually(sleeping)
        client.abort()

    async def ended() -> bool:
        if era == "legacy":
            return bool(await stored() == "ended")
        return len((await house.good.state())["cancelled"]) == cancelled + 1

    await eventually(ended, within_s=1 if era == "modern" else 3)

    async def recorded() -> bool:
        return await spent() > before

    await eventually(recorded)
    await house.alive()
    assert await spent() == before + 1
    if era == "modern":
        assert await stored() == "begun"


# ---- methods and versions --------------------------------------------------------------------------------------------


@pytest.mark.case("HTTP-09")
async def test_unknown_methods_and_versions_are_answered_in_the_form_of_their_era(house: House) -> None:
    async def ask(body: Any, **headers: str) -> tuple[int, Any]:
        response = await house.post(body, **headers)
        return response.status_code, response.json() if response.content else None

    def modern(method: str) -> dict[str, str]:
        return {"MCP_Protocol_Version": MODERN, "Mcp_Method": method}

    for method in ("no/such", "ping", "initialize"):
        status, answer = await ask(request(method, modern_params(), "q"), **modern(method))
        assert (status, answer["error"]["code"], answer["id"]) == (404, -32601, "q")
    for version in LEGACY:
        for method in ("no/such", "server/discover"):
            status, answer = await ask(request(method, {}, 7), MCP_Protocol_Version=version)
            assert (status, answer["error"]["code"], answer["id"]) == (200, -32601, 7)
    for version in ("1999-01-01", "2099-01-01"):
        params = modern_params()
        params["_meta"][META + "protocolVersion"] = version
        status, answer = await ask(request("tools/list", params), MCP_Protocol_Version=version, Mcp_Method="tools/list")
        assert (status, answer["error"]["code"]) == (400, -32022)
        assert answer["error"]["data"] == {"supported": [MODERN], "requested": version}
    for left_out in ("protocolVersion", "clientCapabilities"):
        params = modern_params()
        del params["_meta"][META + left_out]
        status, answer = await ask(request("tools/list", params), **modern("tools/list"))
        assert (status, answer["error"]["code"]) == (400, -32602)
    status, answer = await ask(request("tools/list", {}), **modern("tools/list"))
    assert (status, answer["error"]["code"]) == (400, -32602)
    notification = {"jsonrpc": "2.0", "method": "notifications/no_such", "params": {}}
    assert await ask(notification, **modern("notifications/no_such")) == (202, None)
    assert await ask(notification) == (202, None)


# ---- what goes wrong inside ------------------------------------------------------------------------------------------

CANARY = "canary-7f3a"
CHANGED = """\
import importlib.machinery

changes = {changes!r}
load = importlib.machinery.SourceFileLoader.exec_module


def exec_module(self, module):
    load(self, module)
    if module.__name__ in changes:
        exec(changes[module.__name__], module.__dict__)


importlib.machinery.SourceFileLoader.exec_module = exec_module
"""
BUG = f"""
async def _bug(*args, **more):
    raise RuntimeError("{CANARY} in /etc/{CANARY}.conf")
"""


def changed(folder: Path, changes: Mapping[str, str]) -> dict[str, str]:
    """Environment of a gateway in which code runs at the end of modules, for faults that nothing else makes."""
    place = folder / "changed"
    place.mkdir()
    (place / "sitecustomize.py").write_text(CHANGED.format(changes=dict(changes)))
    return {"PYTHONPATH": str(place)}


@pytest.mark.case("HTTP-10")
@pytest.mark.parametrize("accept", ["application/json", "application/json, text/event-stream"], ids=["json", "stream"])
async def test_a_bug_is_told_by_its_request_id_only(tmp_path: Path, accept: str) -> None:
    changes = {
        "gateway.facade.code": BUG + "CodeFacade.call_tool = _bug\nCodeFacade.list_tools = _bug\n",
        "gateway.broker": BUG + "Broker.call = _bug\n",
    }
    async with serving(tmp_path, config({"good": faulty()}), **changed(tmp_path, changes)) as running:
        await running.wait_for(good="ready")
        told: list[str] = []
        code = {"name": "execute_code", "arguments": {"code": "1"}}
        echo = {"name": "good__echo", "arguments": {}}
        for method, params, path in (
            ("tools/call", code, "/mcp"),
            ("tools/list", {}, "/mcp"),
            ("tools/call", echo, "/mcp/direct"),
        ):
            for headers, body in (
                ({}, request(method, params)),
                (
                    {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": str(params.get("name"))},
                    request(method, modern_params(**params)),
                ),
            ):
                response = await running.post(body, path=path, headers={"Accept": accept, **headers})
                request_id = response.headers["x-request-id"]
                error = response.json()["error"]
                assert (response.status_code, error["code"]) == (200, -32603)
                assert error["message"] == f"Internal error (request {request_id})"
                assert CANARY not in response.text
                assert "Traceback" not in response.text
                told.append(request_id)
        await eventually(lambda: all(any(request_id in line for line in running.log) for request_id in told))
        assert any(CANARY in line for line in running.log)
        assert (await running.post(request("ping"))).status_code == 200


@pytest.mark.case("HTTP-10")
async def test_failures_below_are_typed_and_keep_their_details(tmp_path: Path) -> None:
    port = free_port()
    upstreams = {"bad": faulty("--reply", "malformed", callTimeout="2s"), "good": faulty("--control", str(port))}

    async def sleeping() -> bool:
        return bool((await Control(port).state())["in_flight"])

    async with serving(tmp_path, config(upstreams)) as running:
        await running.wait_for(good="ready", bad="ready")
        answers = [await running.run("await bad__echo()"), await running.direct("bad__echo", {})]
        assert all(answer.is_error for answer in answers)
        running_on = asyncio.create_task(running.run("await good__sleep(ms=1000)"))
        await eventually(sleeping)
        for process in psutil.Process(running.process.pid).children():
            if "monty" in process.name():
                process.kill()
        killed = await running_on
        assert killed.text.startswith("KERNEL_CRASHED")
        answers.append(killed)
        with contextlib.closing(sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)) as store:
            store.execute("BEGIN EXCLUSIVE")
            locked = await running.run("'while it is locked'")
            assert locked.text == "while it is locked" or locked.is_error
            answers.append(locked)
            store.execute("ROLLBACK")
        for answer in answers:
            assert_plain(answer)
        assert (await running.run("2")).text == "2"


def assert_plain(answer: Answer) -> None:
    """No exception text, file or stack in what a client gets."""
    for trace in ("Traceback", ".py", "sqlite", "0x", "Exception", "site-packages"):
        assert trace not in json.dumps(answer.result), answer.text
    assert not answer.is_error or answer.text.partition(":")[0].replace("_", "").isupper(), answer.text


# ---- types and characters --------------------------------------------------------------------------------------------


@pytest.mark.case("HTTP-11")
async def test_only_plain_json_in_utf_8_is_taken(house: House) -> None:
    import gzip

    plain = json.dumps(LIST).encode()
    for encoding, body in (("gzip", plain), ("gzip", gzip.compress(plain)), ("br", plain), ("gzip, identity", plain)):
        assert (await house.post(body, Content_Encoding=encoding)).status_code == 415, encoding
    assert (await house.post(plain, Content_Encoding="identity")).status_code == 200
    for kind in (
        "application/jsonx",
        "application/json-rpc",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/json; charset=latin-1",
        "application/json, text/plain",
        "",
        None,
    ):
        assert (await house.post(plain, Content_Type=kind)).status_code == 415, kind
    for kind in ("application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"', "application/json"):
        assert (await house.post(plain, Content_Type=kind)).status_code == 200, kind
    for accept, status in (("text/html", 406), ("*/*", 200), ("application/json", 200), (None, 200)):
        assert (await house.post(plain, Accept=accept)).status_code == status, accept


ODD = ["\x00", "\x1b[31m", "\ufffe", "\u2028", "\U0010ffff", "\x7f", "\x85"]


@pytest.mark.case("HTTP-12")
@pytest.mark.parametrize("text", ODD, ids=ascii)
async def test_odd_characters_make_a_clean_round_trip(house: House, text: str) -> None:
    running = house.running
    assert (await running.direct("good__echo", {"a": text})).json() == {"a": text}
    told = await running.direct("good__fail", {"message": f"odd {text}"})
    assert told.is_error
    echoed = await running.run(f"(await good__echo(a={text!r}))['a']")
    assert (echoed.text, echoed.is_error) == (text, False)
    answer = await running.run(f"print('{text if text != chr(0) else 'x'}')\n1")
    assert answer.is_error is False or answer.text.startswith("SYNTAX_ERROR")
    failed = await running.run(f"raise ValueError({text!r})")
    assert failed.text.startswith("RUNTIME_ERROR")
    await running.search(text)
    assert await unknown(house, f"good__no{text}") == -32602
    await house.alive()
    assert (await running.admin_get("/api/usage"))["usage"]


async def unknown(house: House, name: str) -> int:
    """The code that a call of this name is refused with."""
    response = await house.post(request("tools/call", {"name": name, "arguments": {}}))
    return int(response.json()["error"]["code"])


@pytest.mark.case("HTTP-12")
async def test_lone_surrogates_are_refused_in_requests(house: House) -> None:
    for place in ('"name":"\\ud800","arguments":{}', '"name":"execute_code","arguments":{"code":"\'\\udc00\'"}'):
        body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{place}}}}}'.encode()
        response = await house.post(body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, -32700)
    answer = await house.running.run("'a' + chr(0xd800)")
    assert answer.is_error or answer.text
    await house.alive()


@pytest.mark.case("HTTP-12")
async def test_odd_characters_of_upstreams_harm_nobody(tmp_path: Path) -> None:
    (tmp_path / "raw.json").write_bytes(rb'{"content":[{"type":"text","text":"a\ud800\u0000\u001b[2J\ufffe"}]}')
    tools = [
        {"name": "odd", "description": "tells\u0000 \u001b[31m odd \ufffe things", "inputSchema": {"type": "object"}}
    ]
    (tmp_path / "tools.json").write_bytes(json.dumps(tools).encode().replace(b"things", rb"th\ud800ings"))
    upstreams = {
        "raw": faulty("--result", f"raw:{tmp_path / 'raw.json'}"),
        "odd": faulty("--tools-file", str(tmp_path / "tools.json")),
        "good": faulty(),
    }
    async with serving(tmp_path, config(upstreams)) as running:
        await running.wait_for(good="ready", raw="ready")
        for path in ("/mcp", "/mcp/direct"):
            listed = await running.rpc("tools/list", path=path)
            assert listed["result"]["tools"]
        await running.search("odd things")
        for answer in (await running.direct("raw__echo", {}), await running.run("await raw__echo()")):
            assert answer.is_error or answer.text.startswith("a")
        assert (await running.run("await good__add(a=1, b=2)")).json()["sum"] == 3
        assert not any("\x1b[2J" in line or "Traceback" in line for line in running.log)


# ---- long answers and idle connections -------------------------------------------------------------------------------


@pytest.mark.case("HTTP-13")
async def test_a_long_run_becomes_a_stream_with_signs_of_life(tmp_path: Path) -> None:
    """With an interval of 0.3 s instead of 15 s, which nobody configures."""
    short = changed(tmp_path, {"gateway.edge.exchange": "assert KEEPALIVE_S <= 15\nKEEPALIVE_S = 0.3\n"})
    async with serving(tmp_path, config({"good": faulty()}), **short) as running:
        await running.wait_for(good="ready")
        body = request("tools/call", {"name": "execute_code", "arguments": {"code": "await good__sleep(ms=2000)"}})
        streamed = await running.post(body)
        assert streamed.headers["content-type"] == "text/event-stream"
        assert streamed.headers["x-accel-buffering"] == "no"
        assert "no-transform" in streamed.headers["cache-control"]
        assert streamed.text.count(": ping") >= 2
        (answer,) = events(streamed.text)
        assert "2000" in answer["result"]["content"][0]["text"]
        plain = await running.post(body, headers={"Accept": "application/json"})
        assert plain.headers["content-type"] == "application/json"
        assert "2000" in plain.json()["result"]["content"][0]["text"]


@pytest.mark.case("HTTP-13")
async def test_an_idle_connection_outlives_the_pools_of_clients(tmp_path: Path) -> None:
    """The real idle time is checked where it stands; here it is two seconds, and connections idle for less of it."""
    short = changed(tmp_path, {"gateway.cli.serving": "assert KEEP_ALIVE_S >= 75\nKEEP_ALIVE_S = 2\n"})
    async with serving(tmp_path, config({}), **short) as running:
        port = int(running.url.rpartition(":")[2])
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {running.keys['acme']}"}
        chance = random.Random(13)

        async def reused() -> None:
            async with RawClient(port) as client:
                for _ in range(5):
                    await client.request("POST", "/mcp", json.dumps(request("ping")).encode(), headers)
                    assert (await client.response()).status == 200
                    await asyncio.sleep(chance.uniform(0, 0.8))

        async with RawClient(port) as silent:
            await asyncio.gather(*(reused() for _ in range(20)))
            assert await silent.read() == b"", "one that never begins a request is closed like an idle one"


# ---- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.case("HTTP-14")
@pytest.mark.parametrize("version", [None, *LEGACY, MODERN])
async def test_batches_are_refused_in_every_version(house: House, version: str | None) -> None:
    """Also in 2025-03-26, the one version that had them: a documented choice."""
    call = request("tools/call", {"name": "good__put", "arguments": {"key": "batch", "value": 1}})
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    before = await house.calls()
    for batch in ([], [call], [call] * 3, [[call]], [notification], [call, notification], [call] * 10_000):
        response = await house.post(batch, path="/mcp/direct", MCP_Protocol_Version=version, Mcp_Method="tools/call")
        assert (response.status_code, response.json()["error"]["code"]) in ((400, -32600), (400, -32700))
        assert response.json()["id"] is None
        if len(batch) < 10:
            assert response.json()["error"]["code"] == -32600
    assert await house.calls() == before
