"""Wire switches: era, version, discovery, sessions, form of answers, HTTP faults, stdio noise."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from tests.companions import RawClient, events, faulty_http
from tests.faulty_upstream.conversation import (
    ACCEPT,
    call,
    exchange,
    legacy,
    modern,
    open_session,
    post,
    state_with,
    stdio,
)

ECHO = call("echo", text="hé")


# ---------------------------------------------------------------- era, version, discovery


async def test_era_legacy_does_not_know_discovery() -> None:
    async with stdio("--era", "legacy") as fu:
        assert (await fu.ask(modern("server/discover")))["error"]["code"] == -32601
        assert (await fu.initialize())["result"]["protocolVersion"] == "2025-11-25"
    async with faulty_http("--era", "legacy") as http:
        response = await exchange(http.port, modern("server/discover"))
        assert (response.status, response.json()["error"]["code"]) == (400, -32600)


async def test_era_modern_names_its_version_when_it_refuses_a_handshake() -> None:
    async with stdio("--era", "modern") as fu:
        error = (await fu.ask(legacy("initialize", {"protocolVersion": "2025-11-25"})))["error"]
        assert (error["code"], error["data"]) == (-32601, {"supported": ["2026-07-28"]})
    async with faulty_http("--era", "modern") as http:
        assert (await exchange(http.port, legacy("initialize"))).status == 404


async def test_protocol_is_claimed_whatever_was_asked() -> None:
    async with stdio("--protocol", "2024-11-05") as fu:
        assert (await fu.initialize("2025-11-25"))["result"]["protocolVersion"] == "2024-11-05"
    async with stdio("--protocol", "2031-01-01") as fu:
        assert (await fu.ask(modern("server/discover")))["error"]["data"]["supported"] == ["2031-01-01"]


async def test_instructions_come_with_the_handshake_of_either_era() -> None:
    async with stdio("--instructions", "Ask nicely.") as fu:
        assert (await fu.ask(modern("server/discover")))["result"]["instructions"] == "Ask nicely."
        assert (await fu.initialize())["result"]["instructions"] == "Ask nicely."


async def test_discover_error_silent_noisy() -> None:
    async with stdio("--era", "legacy", "--discover", "error:-32602") as fu:
        assert (await fu.ask(modern("server/discover")))["error"]["code"] == -32602
    async with stdio("--era", "legacy", "--discover", "silent") as fu:
        await fu.send(modern("server/discover"), legacy("ping", identity=2))
        assert json.loads(await fu.line())["id"] == 2
    async with stdio("--era", "legacy", "--discover", "noisy") as fu:
        assert (await fu.ask(modern("server/discover")))["error"]["code"] == -32601
        fu.close_stdin()
        await fu.ended()
    assert len(fu.stderr) == 200_000


async def test_http_path() -> None:
    async with faulty_http("--path", "/other/mcp") as fu:
        assert fu.url.endswith("/other/mcp")
        assert (await exchange(fu.port, ECHO)).status == 404
        assert (await exchange(fu.port, ECHO, path="/other/mcp")).status == 200


# ---------------------------------------------------------------- HTTP


async def test_sessions_off() -> None:
    async with faulty_http("--sessions", "off") as fu:
        response = await exchange(fu.port, legacy("initialize", {"protocolVersion": "2025-11-25"}))
        assert "mcp-session-id" not in response.headers
        assert (await exchange(fu.port, legacy("tools/list"))).status == 200


async def test_session_ttl() -> None:
    async with faulty_http("--session-ttl", "2") as fu:
        session = await open_session(fu.port)
        body = legacy("tools/call", {"name": "echo"})
        assert [(await exchange(fu.port, body, **session)).status for _ in range(3)] == [200, 200, 404]
        assert (await exchange(fu.port, body, **await open_session(fu.port))).status == 200


async def test_answers_sse() -> None:
    async with faulty_http("--answers", "sse") as fu:
        response = await exchange(fu.port, ECHO)
        assert response.headers["content-type"] == "text/event-stream"
        assert response.body.startswith(b'event: message\ndata: {"jsonrpc":"2.0","id":1,"result":')
        assert response.body.endswith(b"}\n\n")


async def test_require_auth() -> None:
    async with faulty_http("--require-auth", "Bearer right") as fu:
        refused = await exchange(fu.port, ECHO, Authorization="Bearer wrong")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert (await exchange(fu.port, ECHO, Authorization="Bearer right")).status == 200


async def test_status_with_retry_after_and_limits() -> None:
    async with faulty_http("--status", "list=429:times=2,retry-after=3", "--status", "init=500") as fu:
        first, second, third = [await exchange(fu.port, modern("tools/list")) for _ in range(3)]
        assert (first.status, first.headers["retry-after"]) == (429, "3")
        assert (second.status, third.status) == (429, 200)
        assert (await exchange(fu.port, legacy("initialize"))).status == 500
        assert (await exchange(fu.port, modern("server/discover"))).status == 500
        assert (await exchange(fu.port, ECHO)).status == 200


async def test_status_at_get_and_delete() -> None:
    async with faulty_http("--status", "get=405", "--status", "delete=405") as fu, RawClient(fu.port) as client:
        for method in ("GET", "DELETE"):
            await client.request(method, "/mcp", headers=ACCEPT)
            assert (await client.response()).status == 405


async def test_cut_comes_after_the_call_was_executed() -> None:
    put = call("put", key="k", value=1)
    async with faulty_http() as fu:
        await fu.control.set(cut="after-headers")
        async with RawClient(fu.port) as client:
            await post(client, put)
            status, headers = await client.head()
            assert (status, await client.read_all()) == (200, b"")
            assert int(headers["content-length"]) > 0
        await fu.control.set(cut="mid-body")
        async with RawClient(fu.port) as client:
            await post(client, put)
            _, headers = await client.head()
            assert len(await client.read_all()) == int(headers["content-length"]) // 2
        await fu.control.set(cut="reset")
        async with RawClient(fu.port) as client:
            await post(client, put)
            with pytest.raises(ConnectionResetError):
                await client.read_all()
        assert len((await fu.control.state())["puts"]) == 3
        assert (await exchange(fu.port, modern("tools/list"))).status == 200


async def test_cut_of_an_event_stream() -> None:
    async with faulty_http("--answers", "sse", "--cut", "mid-body") as fu, RawClient(fu.port) as client:
        await post(client, ECHO)
        await client.head()
        assert not (await client.read_all()).endswith(b"0\r\n\r\n")


async def test_content_type_and_body(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(b"<html>Sign in</html>")
    async with faulty_http("--content-type", "text/plain") as fu:
        response = await exchange(fu.port, ECHO)
        assert (response.status, response.headers["content-type"]) == (200, "text/plain")
    async with faulty_http("--body", f"{page}:point=call") as fu:
        response = await exchange(fu.port, ECHO)
        assert (response.headers["content-type"], response.body) == ("text/html", b"<html>Sign in</html>")
        assert "tools" in (await exchange(fu.port, modern("tools/list"))).json()["result"]


async def test_close_idle() -> None:
    async with faulty_http("--close-idle", "0.1") as fu, RawClient(fu.port) as client:
        await post(client, ECHO)
        assert (await client.response()).status == 200
        assert await client.read_all() == b""


async def test_sse_split_events_is_the_same_message_in_small_pieces() -> None:
    async with faulty_http("--sse", "split-events") as fu, RawClient(fu.port) as client:
        await post(client, ECHO)
        await client.head()
        chunks = [chunk async for chunk in client.chunks()]
        assert len(chunks) > 20
        assert b"".join(chunks).startswith(b": comment\nid: 1\nevent: message\ndata: {\ndata: ")
        (message,) = events(b"".join(chunks).decode())
        assert message["result"]["structuredContent"] == {"text": "hé"}


async def test_sse_crlf() -> None:
    async with faulty_http("--sse", "crlf") as fu:
        response = await exchange(fu.port, ECHO)
        assert response.body.startswith(b"event: message\r\ndata: {")
        assert response.body.endswith(b"}\r\n\r\n")


async def test_sse_gzip() -> None:
    async with faulty_http("--sse", "gzip") as fu:
        response = await exchange(fu.port, ECHO)
        assert response.headers["content-encoding"] == "gzip"
        assert events(gzip.decompress(response.body).decode())[0]["result"]["structuredContent"] == {"text": "hé"}


async def test_sse_progress_needs_a_token_and_rises() -> None:
    async with faulty_http("--sse", "progress:3") as fu:
        asked = modern("tools/call", {"name": "echo"}, progressToken=0)
        *progress, answer = (await exchange(fu.port, asked)).events()
        assert [(each["params"]["progressToken"], each["params"]["progress"]) for each in progress] == [
            (0, 1),
            (0, 2),
            (0, 3),
        ]
        assert answer["id"] == 1
        assert len((await exchange(fu.port, ECHO)).events()) == 1


async def test_sse_no_final_ends_the_stream_in_order() -> None:
    async with faulty_http("--sse", "no-final", "--sse", "progress:1") as fu, RawClient(fu.port) as client:
        await post(client, modern("tools/call", {"name": "echo"}, progressToken="t"))
        (only,) = (await client.response()).events()
        assert only["method"] == "notifications/progress"


async def test_drip_sends_so_many_bytes_a_second() -> None:
    async with faulty_http("--drip", "1000:tool=echo") as fu, RawClient(fu.port) as client:
        await post(client, ECHO)
        _, headers = await client.head()
        begun = asyncio.get_running_loop().time()
        await client.read_until(b"}}}")
        took = asyncio.get_running_loop().time() - begun
        assert took > int(headers["content-length"]) / 1000 * 0.5


async def test_read_slowly_reads_so_many_bytes_a_second() -> None:
    async with stdio("--read-slowly", "2000") as fu:
        begun = asyncio.get_running_loop().time()
        await fu.ask(call("echo", text="x" * 600))
        assert asyncio.get_running_loop().time() - begun > 0.2


# ---------------------------------------------------------------- stdio


async def test_stdout_garbage_stands_around_the_real_line() -> None:
    async with stdio("--stdout-garbage") as fu:
        before = [await fu.line() for _ in range(5)]
        await fu.send(ECHO)
        real = await fu.line()
        after = [await fu.line() for _ in range(5)]
        assert before == after
        assert b"\r\n" in before
        assert b'{"level":"info","message":"JSON, but no JSON-RPC"}\r\n' in before
        assert real.startswith(b'\xef\xbb\xbf{"jsonrpc"')
        assert real.endswith(b"}\r\n")
        await fu.send(ECHO)
        assert (await fu.line()).startswith(b'{"jsonrpc"')


async def test_stdout_garbage_in_any_number() -> None:
    async with stdio("--stdout-garbage", "2000:point=call") as fu:
        assert [await fu.line() for _ in range(2000)][-1] == b"[1,2,3]\r\n"


async def test_seed_chooses_where_the_noise_begins() -> None:
    async with stdio("--stdout-garbage", "1", "--seed", "4") as fu:
        assert await fu.line() == b"[1,2,3]\r\n"


async def test_stdout_long_line() -> None:
    async with stdio("--stdout-long-line", "300KB:times=1") as fu:
        await fu.send(ECHO)
        line = await fu.line()
        assert line.startswith(b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"xxx')
        assert len(line) == 300_000
        assert (await fu.ask(ECHO))["result"]["structuredContent"] == {"text": "hé"}


async def test_stdout_long_line_without_end() -> None:
    async with stdio("--stdout-long-line", "endless") as fu:
        await fu.send(ECHO)
        assert b"\n" not in await fu.read(2_000_000)


async def test_stderr_flood() -> None:
    async with stdio("--stderr-flood", "1MiB") as fu:
        await fu.ask(ECHO)
        fu.close_stdin()
        await fu.ended()
    assert len(fu.stderr) == 1 << 20
    assert b"\n" in fu.stderr[:1000]
    assert b"\n" not in fu.stderr[-1000:]


# ---------------------------------------------------------------- asks and announcements


async def test_ask_in_the_legacy_era_is_a_request_to_the_client() -> None:
    kinds = ("elicitation", "sampling", "roots", "made/up")
    switches = [word for number, kind in enumerate(kinds, 1) for word in ("--ask", f"{kind}:after={number},times=1")]
    async with stdio(*switches) as fu:
        await fu.initialize()
        for method in ("elicitation/create", "sampling/createMessage", "roots/list", "made/up"):
            asked = await fu.ask(legacy("tools/call", {"name": "echo"}))
            assert asked["method"] == method
            await fu.send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {}}).encode())
            assert "result" in json.loads(await fu.line())


async def test_ask_in_the_modern_era_is_an_incomplete_result() -> None:
    async with stdio("--ask", "sampling") as fu:
        result = (await fu.ask(ECHO))["result"]
        assert result["resultType"] == "input_required"
        assert result["inputRequests"]["ask"]["method"] == "sampling/createMessage"
        again = {"name": "echo", "inputResponses": {"ask": {}}, "requestState": result["requestState"]}
        assert (await fu.ask(modern("tools/call", again, 2)))["result"]["resultType"] == "complete"


async def test_ask_over_http_comes_on_the_stream_of_the_call() -> None:
    async with faulty_http("--ask", "roots") as fu, RawClient(fu.port) as client:
        session = await open_session(fu.port)
        await post(client, legacy("tools/call", {"name": "echo"}), **session)
        await client.head()
        (asked,) = events((await client.read_until(b"\n\n")).partition(b"\r\n")[2].decode())
        reply = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}}).encode()
        assert (await exchange(fu.port, reply, **session)).status == 202
        assert b'"result"' in await client.read_until(b"\n\n")
        assert (await fu.control.state())["replies"] == [asked["id"]]


async def test_notify_on_stdio() -> None:
    async with stdio("--notify", "list_changed:every=0.02") as fu:
        await fu.initialize()
        assert await fu.line() == b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'
    async with stdio("--notify", "log:rate=1000", "--notify", "ping:every=0.01") as fu:
        await fu.initialize()
        await fu.send(legacy("tools/call", {"name": "sleep", "arguments": {"ms": 100}}))
        methods = []
        while "result" not in (message := json.loads(await fu.line())):
            methods.append(message["method"])
        assert methods.count("notifications/message") > 30
        assert "ping" in methods


async def test_notify_log_turns_the_answer_of_a_call_into_a_stream() -> None:
    async with faulty_http("--notify", "log:rate=100") as fu:
        *logs, answer = (await exchange(fu.port, call("sleep", ms=100))).events()
        assert {log["method"] for log in logs} == {"notifications/message"}
        assert answer["id"] == 1


async def test_script(tmp_path: Path) -> None:
    steps = tmp_path / "steps.json"
    steps.write_text('[{"on":"list","send":"first $ID\\n"},{"on":"list","send":"base64:AAE="},{"on":"call","exit":7}]')
    async with stdio("--script", str(steps)) as fu:
        await fu.send(modern("tools/list", identity="x"))
        assert await fu.read(12) == b'first "x"\n\x00\x01'
        await fu.send(ECHO)
        assert await fu.ended() == 7
    steps.write_text(
        '[{"on":"call","send":"HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\nab"},{"on":"call","close":true}]'
    )
    async with faulty_http("--script", str(steps)) as http, RawClient(http.port) as client:
        await post(client, ECHO)
        assert await client.read_all() == b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"
        await state_with(http.control, connections=0)
