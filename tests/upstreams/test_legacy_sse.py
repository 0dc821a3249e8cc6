"""The connector of HTTP+SSE (2024-11-05) against servers that do not keep to it. The good ones are in ``test_sdk``."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.config.model import HttpUpstream
from gateway.errors import GatewayError
from gateway.upstreams import legacy_sse as legacy_sse_module
from gateway.upstreams.base import UpstreamFailed, UpstreamTimedOut
from gateway.upstreams.legacy_sse import LegacySseConnector
from tests.companions import Answer, Recorder, free_port
from tests.faulty.http1 import HttpRequest
from tests.upstreams.support import nothing_left, running, state_of

STREAM = {"Content-Type": "text/event-stream"}
INFO = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {"name": "old", "version": "1"}}


def event(kind: str, data: object) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"event: {kind}\r\ndata: {text}\r\n\r\n".encode()


def hello(message_id: int = 1) -> bytes:
    return event("message", {"jsonrpc": "2.0", "id": message_id, "result": INFO})


async def failure(url: str, timeout_s: float = 5, **headers: str) -> GatewayError:
    """Why the connector does not open; nothing of it may be left."""
    async with nothing_left():
        connector = LegacySseConnector("u", HttpUpstream(url=url, headers=headers))
        try:
            with pytest.raises(GatewayError) as caught:
                await connector.open(timeout_s)
            return caught.value
        finally:
            await connector.close()


@pytest.mark.parametrize(
    ("answer", "stage", "reason"),
    [
        (Answer(401), "http", "HTTP 401 to GET; the credentials were not accepted"),
        (Answer(302), "http", "HTTP 302 to GET; it redirects, and redirects are not followed"),
        (Answer(503), "http", "HTTP 503 to GET"),
        (Answer(200), "handshake", "it answered GET with something that is no event stream"),
        (Answer(200, STREAM, b""), "closed", "its event stream has ended"),
        (Answer(200, STREAM, hello()), "closed", "its event stream has ended"),
    ],
)
async def test_what_is_no_stream_of_this_transport(answer: Answer, stage: str, reason: str) -> None:
    async with Recorder(answer) as server:
        error = await failure(server.url)
    assert isinstance(error, UpstreamFailed)
    assert (error.stage, error.reason, error.delivered) == (stage, reason, False)


@pytest.mark.parametrize(
    "endpoint", ["http://elsewhere.example/messages", "https://127.0.0.1/x", "//127.0.0.1:1/x", "http://[::1"]
)
async def test_credentials_go_nowhere_but_where_the_stream_is(endpoint: str) -> None:
    stream = Answer(200, STREAM, event("endpoint", endpoint))
    async with Recorder(stream) as server:
        error = await failure(server.url + "/sse", Authorization="Bearer abcdef")
        assert [request.method for request in server.requests] == ["GET"]
    assert "endpoint event" in str(error)
    assert endpoint not in str(error)


@pytest.mark.parametrize(
    ("endpoint", "path"), [("/m?session=1", "/m?session=1"), ("m/1", "/a/m/1"), ("?s=2", "/a/sse?s=2")]
)
async def test_the_endpoint_is_relative_to_the_stream_and_gets_the_headers(endpoint: str, path: str) -> None:
    def answer(request: HttpRequest) -> Answer:
        if request.method == "GET":
            return Answer(200, STREAM, event("endpoint", endpoint) + b": still here\n\n", delay_s=0, piece_s=0.005)
        return Answer(202)

    async with Recorder(answer) as server:
        await failure(server.url + "/a/sse", Authorization="Bearer abcdef")
        posts = [request for request in server.requests if request.method == "POST"]
    assert posts[0].target == path
    assert posts[0].header("authorization") == "Bearer abcdef"
    assert json.loads(posts[0].body)["method"] == "initialize"


async def test_a_server_that_takes_no_request_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_sse_module, "POST_S", 0.1)

    def answer(request: HttpRequest) -> Answer:
        if request.method == "GET":
            return Answer(200, STREAM, event("endpoint", "/m") + b":" * 400, piece_s=0.005)
        return Answer(202, delay_s=0.5)

    async with Recorder(answer) as server:
        error = await failure(server.url)
    assert "it did not take the request within 0.1 s" in str(error)


@pytest.mark.parametrize(("status", "reason"), [(404, "HTTP 404 to initialize"), (500, "HTTP 500 to initialize")])
async def test_a_refused_post_fails_its_request(status: int, reason: str) -> None:
    def answer(request: HttpRequest) -> Answer:
        if request.method == "GET":
            return Answer(200, STREAM, event("endpoint", "/m") + b":" * 400, piece_s=0.005)
        return Answer(status)

    async with Recorder(answer) as server:
        error = await failure(server.url)
    assert reason in str(error)


async def test_a_server_that_never_names_an_endpoint_ends_with_the_deadline() -> None:
    async with Recorder(Answer(200, STREAM, b":" * 4000, piece_s=0.005)) as server:
        error = await failure(server.url, timeout_s=0.2)
    assert isinstance(error, UpstreamTimedOut)


async def test_nobody_there() -> None:
    error = await failure(f"http://127.0.0.1:{free_port()}/sse")
    assert isinstance(error, UpstreamFailed)
    assert (error.stage, error.reason) == ("connect", "the connection was refused")


async def test_a_get_stream_of_another_kind_is_not_taken_for_the_old_transport() -> None:
    def answer(request: HttpRequest) -> Answer:
        if request.method == "GET":
            return Answer(200, STREAM, event("message", {"jsonrpc": "2.0", "method": "notifications/message"}))
        return Answer(405)

    async with Recorder(answer) as server, running({"u": HttpUpstream(url=server.url)}) as ups, asyncio.timeout(5):
        await state_of(ups["u"], "down")
        assert ups["u"].status.reason == "HTTP 405 to initialize"
