"""The HTTP connector against a faulty server, in both eras and both forms of answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.config.model import HttpUpstream
from gateway.errors import ErrorClass, GatewayError
from gateway.upstreams.base import Connector, RpcFailed, UpstreamFailed, UpstreamTimedOut
from tests.companions import Answer, Recorder, eventually, faulty_http, free_port
from tests.faulty.http1 import HttpRequest
from tests.upstreams.support import called, connected, connector_for, logged, nothing_left, points, reached

HTML = "HTTP 200 with content type text/html, which is no MCP answer"
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
FORMS = pytest.mark.parametrize("form", ["json", "sse"])


def at(url: str, **headers: str) -> HttpUpstream:
    return HttpUpstream(url=url, headers=headers)


async def failure_to_open(config: HttpUpstream) -> GatewayError:
    async with nothing_left():
        connector = connector_for(config)
        try:
            with pytest.raises(GatewayError) as caught:
                await connector.open(5)
            return caught.value
        finally:
            await connector.close()


# ------------------------------------------------------------------ the start


@ERAS
@FORMS
async def test_either_era_and_either_form_of_answer(era: str, form: str) -> None:
    async with faulty_http("--era", era, "--answers", form) as fu, connected(at(fu.url)) as connector:
        answers = await asyncio.gather(*(called(connector, "echo", n=n) for n in range(50)))
        for n in range(20):
            await called(connector, "echo", n=n)
        state = await fu.control.state()

    assert answers == [{"n": n} for n in range(50)]
    assert state["handshakes"] == ({"discover": 1} if era == "modern" else {"initialize": 1, "initialized": 1})
    assert state["connections_opened"] < 60, "connections are used again"


@pytest.mark.parametrize("pieces", ["split-events", "crlf", "gzip", "progress:3"])
async def test_event_streams_in_unusual_pieces(pieces: str) -> None:
    async with faulty_http("--answers", "sse", "--sse", pieces) as fu, connected(at(fu.url)) as connector:
        assert await called(connector, "echo", text="é😀" * 2000) == {"text": "é😀" * 2000}


@pytest.mark.parametrize(
    ("switches", "stage", "reason"),
    [
        (["--status", "init=500"], "http", "HTTP 500 to server/discover"),
        (["--era", "legacy", "--status", "init=500"], "http", "HTTP 500 to initialize"),
        (["--era", "legacy", "--status", "init=404"], "http", "HTTP 404 to initialize"),
        (["--status", "any=307"], "http", "HTTP 307 to server/discover; it redirects, and redirects are not followed"),
        (["--require-auth", "Bearer x"], "http", "HTTP 401 to server/discover; the credentials were not accepted"),
        (
            ["--content-type", "text/html:point=any"],
            "http",
            "HTTP 200 with content type text/html, which is no MCP answer",
        ),
        (["--era", "modern", "--protocol", "2031-01-01"], "handshake", "it speaks only 2031-01-01"),
    ],
)
async def test_why_a_server_cannot_be_used(switches: list[str], stage: str, reason: str) -> None:
    async with faulty_http(*switches) as fu:
        failure = await failure_to_open(at(fu.url))

    assert isinstance(failure, UpstreamFailed)
    assert (failure.stage, failure.reason) == (stage, reason)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"http://127.0.0.1:{free_port()}/mcp", "the connection was refused"),
        ("http://no-such-host.invalid/mcp", "its host name could not be resolved"),
    ],
)
async def test_a_closed_port_and_a_name_that_does_not_exist(url: str, reason: str) -> None:
    failure = await failure_to_open(at(url))

    assert isinstance(failure, UpstreamFailed)
    assert (failure.stage, failure.reason, failure.delivered) == ("connect", reason, False)


async def test_credentials_are_sent_with_every_request_and_never_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    secrets = ("sekret-password", "sekret-query", "sekret-bearer")

    def echoes(request: HttpRequest) -> Answer:
        return Answer(status=500, body=json.dumps([request.target, request.headers]).encode())

    async with Recorder(echoes) as recorder:
        url = recorder.url.replace("http://", "http://me:sekret-password@") + "?key=sekret-query"
        failure = await failure_to_open(at(url, **{"X-Key": "Bearer sekret-bearer"}))
        assert isinstance(failure, UpstreamFailed)
        assert all(secret not in f"{failure}{failure.reason}{failure.detail}" for secret in secrets)
        assert "sekret-query" in recorder.requests[0].target

    async with (
        faulty_http("--era", "legacy", "--require-auth", "Bearer x", "--log-calls", str(log)) as fu,
        connected(at(fu.url, Authorization="Bearer x")) as connector,
    ):
        await called(connector, "echo")
        await fu.control.now(reset="sessions")
        await called(connector, "echo")
    await eventually(lambda: "delete" in points(log))
    assert {line["headers"].get("Authorization") for line in logged(log)} == {"Bearer x"}


async def test_a_name_that_a_header_cannot_carry() -> None:
    async with faulty_http("--era", "modern") as fu, connected(at(fu.url)) as connector:
        with pytest.raises(RpcFailed) as caught:
            await called(connector, "größe ")
    assert caught.value.code == -32602  # the tool is unknown; a header that differs from the body would be -32020


# ------------------------------------------------------------------ failures of one call


async def test_an_error_of_the_server_keeps_code_and_data() -> None:
    async with faulty_http("--error", '-32000:broken:{"hint":"use id"}') as fu, connected(at(fu.url)) as connector:
        with pytest.raises(RpcFailed, match="broken") as caught:
            await called(connector, "echo")
    assert (caught.value.code, caught.value.data) == (-32000, {"hint": "use id"})


@pytest.mark.case("UPSTREAMS-03")
@FORMS
@pytest.mark.parametrize("reply", ["deep:5000", "malformed", "not-rpc"])
async def test_a_reply_that_cannot_be_read_fails_its_call_at_once(form: str, reply: str) -> None:
    async with faulty_http("--answers", form, "--reply", f"{reply}:times=1") as fu, connected(at(fu.url)) as connector:
        async with asyncio.timeout(5):
            with pytest.raises(UpstreamFailed) as caught:
                await called(connector, "echo", 30)
        assert caught.value.delivered
        assert await called(connector, "echo", a=1) == {"a": 1}


@ERAS
@FORMS
async def test_a_call_beyond_its_deadline_is_cancelled_at_the_server(era: str, form: str) -> None:
    switches = ["--era", era, "--answers", form, "--hang", "call:tool=sleep"]
    async with faulty_http(*switches) as fu, connected(at(fu.url)) as connector:
        with pytest.raises(UpstreamTimedOut, match=r"tools/call within its deadline of 0.2 s"):
            await called(connector, "sleep", 0.2, ms=1)
        await reached(fu, lambda state: state["cancelled"])
        assert await called(connector, "echo", a=1) == {"a": 1}


@ERAS
async def test_a_cancelled_call_is_cancelled_at_the_server(era: str) -> None:
    async with faulty_http("--era", era) as fu, connected(at(fu.url)) as connector:
        call = asyncio.create_task(called(connector, "sleep", 30, ms=20000))
        await reached(fu, lambda state: state["in_flight"] == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await reached(fu, lambda state: state["cancelled"])


@pytest.mark.case("UPSTREAMS-08")
@ERAS
async def test_a_stream_without_the_answer_fails_at_once(era: str) -> None:
    switches = ["--era", era, "--answers", "sse", "--sse", "no-final:tool=put"]
    async with faulty_http(*switches) as fu, connected(at(fu.url)) as connector:
        slow = asyncio.create_task(called(connector, "sleep", ms=400))
        async with asyncio.timeout(5):
            with pytest.raises(UpstreamFailed, match="without the answer") as caught:
                await called(connector, "put", 30, key="k", value=1)
        assert caught.value.delivered
        assert await slow
        assert (await fu.control.state())["calls_by_tool"] == {"put": 1, "sleep": 1}


@pytest.mark.case("SESSIONS-02")
@pytest.mark.parametrize("cut", ["after-headers", "mid-body", "reset"])
async def test_a_broken_connection_is_never_repaired_by_sending_again(cut: str) -> None:
    async with faulty_http("--cut", cut) as fu, connected(at(fu.url)) as connector:
        with pytest.raises(UpstreamFailed) as caught:
            await called(connector, "put", key="k", value=1)
        assert caught.value.delivered
        assert caught.value.stage == "closed"
        assert len((await fu.control.state())["puts"]) == 1


@pytest.mark.case("UPSTREAMS-09")
async def test_answers_without_bounds_stop_at_the_cap_or_the_deadline() -> None:
    switches = ["--result", "huge:2GiB:tool=echo", "--drip", "1:tool=sleep"]
    async with faulty_http(*switches) as fu, connected(at(fu.url)) as connector:
        with pytest.raises(UpstreamFailed, match="larger than 16 MiB"):
            await called(connector, "echo", 30)
        with pytest.raises(UpstreamTimedOut):
            await called(connector, "sleep", 0.5, ms=1)
        assert await called(connector, "add", a=1, b=2)


@pytest.mark.case("UPSTREAMS-09")
async def test_one_enormous_event_stops_at_the_cap() -> None:
    switches = ["--answers", "sse", "--result", "huge:100MiB:tool=echo"]
    async with faulty_http(*switches) as fu, connected(at(fu.url)) as connector:
        with pytest.raises(UpstreamFailed, match="larger than 16 MiB"):
            await called(connector, "echo", 30)


@pytest.mark.case("UPSTREAMS-10")
async def test_one_reset_connection_is_the_affair_of_one_call() -> None:
    async with faulty_http() as fu, connected(at(fu.url)) as connector:
        others = [asyncio.create_task(called(connector, "sleep", ms=500)) for _ in range(20)]
        await fu.control.set(call_delay="5:tool=put")
        victim = asyncio.create_task(called(connector, "put", key="k", value=1))
        await reached(fu, lambda state: state["in_flight"] == 21)
        await fu.control.now(reset="call", tool="put")
        with pytest.raises(UpstreamFailed):
            await victim
        assert len(await asyncio.gather(*others)) == 20
        assert await called(connector, "echo", a=1) == {"a": 1}


@pytest.mark.case("UPSTREAMS-11")
async def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    async with faulty_http("--close-idle", "0.05") as fu, connected(at(fu.url)) as connector:
        for n in range(5):
            assert await called(connector, "echo", n=n) == {"n": n}
            # this request of the state, and the stream of announcements
            await reached(fu, lambda state: state["connections"] <= 2)
        assert (await fu.control.state())["calls"] == 5


@pytest.mark.case("UPSTREAMS-13")
@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (200, "text/html", b"<html>log in"),
        (502, "text/html", b"<html>bad gateway"),
        (204, "", b""),
        (202, "", b""),
        (200, "application/json", b"[]"),
        (200, "application/json", b'{"jsonrpc":"2.0","id":99,"result":{}}'),
        (200, "", b'{"jsonrpc":"2.0","id":2,"result":{}}'),
        (302, "text/html", b""),
        (413, "text/plain", b"too large"),
    ],
)
async def test_what_is_no_mcp_answer_is_never_a_result(status: int, kind: str, body: bytes) -> None:
    discovered = b'{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}'

    def answer(request: HttpRequest) -> Answer:
        if b"server/discover" in request.body:
            return Answer(headers={"Content-Type": "application/json"}, body=discovered)
        return Answer(status=status, headers={"Content-Type": kind} if kind else {}, body=body)

    async with Recorder(answer) as recorder, connected(at(recorder.url)) as connector:
        with pytest.raises(UpstreamFailed) as caught:
            await called(connector, "echo")
    assert len(caught.value.detail) <= 300
    assert "<html>" not in str(caught.value)


@pytest.mark.case("UPSTREAMS-14")
async def test_a_rate_limit_is_passed_on_at_once_with_its_time() -> None:
    async with faulty_http("--status", "call=429,retry-after=60") as fu, connected(at(fu.url)) as connector:
        with pytest.raises(UpstreamFailed) as caught:
            await called(connector, "echo")
        assert caught.value.error_class is ErrorClass.RATE_LIMITED
        assert caught.value.retry_after_s == 60
        assert not caught.value.delivered
        assert (await fu.control.state())["requests"]["call"] == 1


# ------------------------------------------------------------------ legacy sessions


@pytest.mark.case("SESSIONS-01")
async def test_a_session_that_the_server_forgot_is_renewed_once_for_all_calls(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with faulty_http("--era", "legacy", "--log-calls", str(log)) as fu, connected(at(fu.url)) as connector:
        for _ in range(3):
            await fu.control.now(reset="sessions")
            answers = await asyncio.gather(*(called(connector, "echo", n=n) for n in range(10)))
            assert answers == [{"n": n} for n in range(10)]
        state = await fu.control.state()

    assert points(log).count("init") == 4
    assert state["calls"] == 30


async def test_a_session_is_ended_with_the_connection(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with faulty_http("--era", "legacy", "--log-calls", str(log)) as fu:
        async with connected(at(fu.url)) as connector:
            await called(connector, "echo")
        assert points(log)[-1] == "delete"
        assert (await fu.control.state())["sessions"] == []
    greeting = next(line for line in logged(log) if line["point"] == "init")
    assert "mcp-protocol-version" not in {name.lower() for name in greeting["headers"]}


async def test_a_server_without_sessions() -> None:
    async with faulty_http("--era", "legacy", "--sessions", "off") as fu, connected(at(fu.url)) as connector:
        assert await called(connector, "echo", a=1) == {"a": 1}


@pytest.mark.case("PASS-03")
@pytest.mark.parametrize("question", ["roots", "ping", "made/up"])
async def test_what_a_server_asks_is_answered_at_once(question: str) -> None:
    switches = ["--era", "legacy", "--answers", "sse", "--ask", question]
    async with faulty_http(*switches) as fu, connected(at(fu.url)) as connector:
        assert await called(connector, "echo", 5, a=1) == {"a": 1}


async def test_a_stream_that_the_server_ends_early_is_taken_up_again() -> None:
    """Polling of 2025-11-25: an event with an id, an end, and the answer on a GET with Last-Event-ID."""
    info = '{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}'
    stream = {"Content-Type": "text/event-stream"}

    def answer(request: HttpRequest) -> Answer:
        if request.method == "GET":
            assert request.header("last-event-id") == "7"
            return Answer(headers=stream, body=b'data: {"jsonrpc":"2.0","id":3,"result":{"content":[],"ok":1}}\n\n')
        if b'"tools/call"' in request.body:
            return Answer(headers=stream, body=b"id: 7\nretry: 10\ndata: \n\n")
        if b'"initialize"' in request.body:
            body = f'{{"jsonrpc":"2.0","id":2,"result":{info}}}'
            return Answer(headers={"Content-Type": "application/json"}, body=body.encode())
        return Answer(status=202 if b"notifications/" in request.body else 400)

    async with Recorder(answer) as recorder, connected(at(recorder.url)) as connector:
        raw = await connector.request("tools/call", {"name": "t", "arguments": {}}, 5)
    assert b'"ok":1' in raw


# ------------------------------------------------------------------ the end


async def test_a_server_that_is_gone_ends_the_connection_once_nothing_is_in_flight() -> None:
    async with faulty_http() as fu, connected(at(fu.url)) as connector:
        calls = [asyncio.create_task(called(connector, "sleep", 30, ms=20000)) for _ in range(3)]
        await reached(fu, lambda state: state["in_flight"] == 3)
        fu.process.kill()
        await fu.process.wait()
        async with asyncio.timeout(5):
            for failure in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(failure, UpstreamFailed)
                assert failure.delivered
        with pytest.raises(UpstreamFailed) as caught:
            await called(connector, "echo")
        assert (caught.value.stage, caught.value.delivered) == ("connect", False)
        assert (await connector.wait_closed()).stage == "connect"


async def test_a_server_that_has_changed_its_era_ends_the_connection() -> None:
    async with faulty_http("--era", "modern") as fu, connected(at(fu.url)) as connector:
        await fu.control.set(era="legacy")
        with pytest.raises(UpstreamFailed):
            await called(connector, "echo")
        assert (await _closed(connector)).stage == "handshake"


async def _closed(connector: Connector) -> UpstreamFailed:
    async with asyncio.timeout(5):
        return await connector.wait_closed()


@ERAS
async def test_a_change_of_tools_is_passed_on(era: str) -> None:
    changed = asyncio.Event()
    async with faulty_http("--era", era) as fu, connected(at(fu.url), on_list_changed=changed.set):
        await reached(fu, lambda state: state["requests"].get("listen") or state["requests"].get("get"))
        await fu.control.now(notify="list_changed")
        async with asyncio.timeout(5):
            await changed.wait()


@pytest.mark.case("CATALOG-08")
async def test_a_broken_announcement_stream_is_opened_again_and_counts_as_a_change() -> None:
    changed = asyncio.Event()
    announced: list[tuple[str, bytes]] = []
    async with (
        faulty_http("--era", "modern") as fu,
        connected(at(fu.url), on_list_changed=changed.set, on_announced=lambda *news: announced.append(news)),
    ):
        await reached(fu, lambda state: state["requests"].get("listen") or state["requests"].get("get"))
        assert not changed.is_set()
        await fu.control.now(reset="connections")
        async with asyncio.timeout(5):
            await changed.wait()
        await eventually(lambda: announced == [("notifications/tools/list_changed", b"{}")])


async def test_what_a_server_may_ask_is_declared_in_the_handshake() -> None:
    greetings: list[bytes] = []

    def answer(request: HttpRequest) -> Answer:
        if b'"initialize"' in request.body:
            greetings.append(request.body)
        return Answer(400)

    for wanted in ((), ("sampling", "elicitation")):
        async with Recorder(answer) as recorder:
            await failure_to_open(HttpUpstream(url=recorder.url, client_capabilities=wanted))
    declared = [json.loads(greeting)["params"]["capabilities"] for greeting in greetings]
    assert declared == [{}, {"sampling": {}, "elicitation": {}}]
