"""What a connection may cost, on a real socket with a small application behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn

from gateway.edge.guard import MAX_TARGET_BYTES, HttpLimits, guarded
from gateway.edge.http import HttpRefused, read_body, send_refusal, send_response
from tests.companions import RawClient, RawResponse, eventually

LIMIT = 100_000
HEAD_S = 0.3
BODY_S = 0.9
STALL_S = 0.3
LARGE = 30_000_000


CLOSE = ((b"connection", b"close"),)


@dataclass
class Served:
    """A server on loopback that answers with the body it got.

    Attributes:
        bodies: what its application received; None for a client that left.
        scopes: of its requests.
    """

    port: int = 0
    bodies: list[bytes | None] = field(default_factory=list)
    scopes: list[Any] = field(default_factory=list)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["path"] == "/early":
            await send_refusal(send, HttpRefused(401, "early", CLOSE if scope["query_string"] == b"close" else ()))
            return
        try:
            body = await read_body(receive, LIMIT)
        except HttpRefused as refused:
            await send_refusal(send, HttpRefused(refused.status, refused.message, CLOSE))
            return
        self.bodies.append(body)
        if scope["path"] == "/large":
            await send_response(send, 200, bytes(2 * LARGE if scope["query_string"] else LARGE))
        elif body is not None:
            await send_response(send, 200, b"got " + body)

    async def ask(self, *pieces: bytes) -> RawResponse:
        """Send pieces as they are; the first answer."""
        async with RawClient(self.port) as client:
            for piece in pieces:
                await client.send(piece)
            return await client.response()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    served = Served()
    limits = HttpLimits(headers=30, head_bytes=8_192 + 4_096, head_s=HEAD_S, body_s=BODY_S, stall_s=STALL_S)
    config = uvicorn.Config(
        served.app,
        interface="asgi3",
        proxy_headers=False,
        http=guarded(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=1,
        timeout_graceful_shutdown=1,
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        served.port = listening.getsockname()[1]
        server = Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await eventually(lambda: server.started)
        yield served
        server.should_exit = True
        await serving


def post(body: bytes = b"", *headers: bytes, target: bytes = b"/", length: int | None = None) -> bytes:
    lines = [
        b"POST %b HTTP/1.1" % target,
        b"Host: a",
        b"Content-Length: %d" % (len(body) if length is None else length),
    ]
    return b"\r\n".join([*lines, *headers]) + b"\r\n\r\n" + body


async def closes(client: RawClient) -> bytes:
    """What still comes until the server closes, which it must."""
    try:
        return await client.read_all()
    except ConnectionError:
        return b""


# ---- what passes -----------------------------------------------------------------------------------------------------


async def test_a_connection_serves_many_requests_whole_or_in_pieces(served: Served) -> None:
    async with RawClient(served.port) as client:
        for _ in range(3):
            await client.send(post(b"whole"))
            assert (await client.response()).body == b"got whole"
            for byte in post(b"pieces"):
                await client.send(bytes([byte]))
            assert (await client.response()).body == b"got pieces"
        await client.send(b"\r\n" + post(b"1") + post(b"2"))
        assert [(await client.response()).body for _ in range(2)] == [b"got 1", b"got 2"]


async def test_a_deadline_of_one_request_is_not_that_of_the_next(served: Served) -> None:
    async with RawClient(served.port) as client:
        for _ in range(2):
            await client.send(b"POST / HT")
            await asyncio.sleep(HEAD_S * 0.7)
            await client.send(post(b"x").removeprefix(b"POST / HT"))
            assert (await client.response()).status == 200


async def test_an_idle_connection_is_not_held_to_the_deadlines_of_its_last_request(served: Served) -> None:
    async with RawClient(served.port) as client:
        for _ in range(2):
            for piece in (post(b"", length=2), b"x", b"y"):
                await client.send(piece)
                await asyncio.sleep(0.02)
            assert (await client.response()).body == b"got xy"
            await asyncio.sleep(2 * HEAD_S)


async def test_a_body_may_be_large_and_steady(served: Served) -> None:
    response = await served.ask(post(b"", length=LIMIT), *[b"x" * (LIMIT // 10)] * 10)
    assert len(response.body) == LIMIT + 4


async def test_an_upgrade_is_ignored_and_the_body_kept(served: Served) -> None:
    upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA")
    whole = post(b"body", *upgrade)
    async with RawClient(served.port) as client:
        for pieces in ([whole], [whole[:30], whole[30:]], [whole[:-4], whole[-4:]], [whole[:-2], whole[-2:]]):
            for piece in pieces:
                await client.send(piece)
                await asyncio.sleep(0)
            assert (await client.response()).body == b"got body"
        assert all(b"upgrade" not in dict(scope["headers"]) for scope in served.scopes)


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.case("HTTP-02")
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(b"", *[b"a: b"] * 28), 200),
        (post(b"", *[b"a: b"] * 29), 431),
        (post(b"", *[b"a: b"] * 8_000), 431),
        (post(b"", b"X: " + b"x" * 12_000), 200),
        (post(b"x" * 90_000, b"X: " + b"x" * 12_000), 200),
        (post(b"", b"X: " + b"x" * 12_288), 431),
        (post(b"x" * 90_000, b"X: " + b"x" * 12_288), 431),
        (post(b"", b"X: " + b"x" * 1_000_000), 431),
        (post(b"", b"Cookie: a=b\r\n" * 20 + b"X: " + b"x" * 12_000), 431),
        (post(target=b"/" + b"x" * (MAX_TARGET_BYTES - 1)), 200),
        (post(target=b"/" + b"x" * MAX_TARGET_BYTES), 414),
        (post(target=b"/" + b"x" * 64_000), 414),
    ],
)
async def test_a_head_has_a_size(served: Served, request_: bytes, status: int) -> None:
    for pieces in ([request_], [request_[:500], request_[500:]]):
        async with RawClient(served.port) as client:
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    await client.send(piece)
            response = await client.response()
            assert response.status == status
            if status != 200:
                assert response.headers["connection"] == "close"
                assert response.json()["error"]["code"] == -32600
                assert await closes(client) == b""
    assert len(served.bodies) == (2 if status == 200 else 0)


@pytest.mark.case("HTTP-04")
@pytest.mark.parametrize("start", [b"1;", b"1\r\nx\r\n0\r\nX: "], ids=["extension", "trailer"])
async def test_what_comes_besides_a_body_has_a_size(served: Served, start: bytes) -> None:
    async with RawClient(served.port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + start)
        async with asyncio.TaskGroup() as group:
            flooding = group.create_task(drip(client, b"x" * 10_000, 0))
            assert (await client.response()).status == 431
            flooding.cancel()
    await eventually(lambda: served.bodies == [None])


# ---- framing ---------------------------------------------------------------------------------------------------------

CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"2\r\nhi\r\n0\r\n\r\n"


def bare(*lines: bytes, body: bytes = b"", start: bytes = b"POST / HTTP/1.1", end: bytes = b"\r\n") -> bytes:
    return end.join([start, b"Host: a", *lines]) + end * 2 + body


@pytest.mark.case("HTTP-05")
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (bare(b"Content-Length: 2", CHUNKED, body=CHUNKS), 400),
        (bare(CHUNKED, b"Content-Length: 2", body=CHUNKS), 400),
        (bare(b"Transfer-Encoding: xchunked", body=CHUNKS), 400),
        (bare(b"Transfer-Encoding: gzip, chunked", body=CHUNKS), 400),
        (bare(b"Transfer-Encoding: chunked, chunked", body=CHUNKS), 400),
        (bare(CHUNKED, CHUNKED, body=CHUNKS), 400),
        (bare(CHUNKED, body=CHUNKS, start=b"POST / HTTP/1.0"), 400),
        (bare(CHUNKED, body=b"2\nhi\r\n0\r\n\r\n"), 400),
        (bare(CHUNKED, body=b"-2\r\nhi\r\n0\r\n\r\n"), 400),
        (bare(CHUNKED, body=b"2\r\nhi\r\n0\r\nHost: b\r\n\r\n"), 400),
        (bare(b"Content-Length: 2", body=b"hi", end=b"\n"), 400),
        (bare(b"X: y\nContent-Length: 2", body=b"hi"), 400),
        (bare(b"X: y\rContent-Length: 2", body=b"hi"), 400),
        (bare(b"X: y\r\n z", b"Content-Length: 2", body=b"hi"), 400),
        (bare(b"Content-Length : 2", body=b"hi"), 400),
        (bare(b"X: \0", b"Content-Length: 2", body=b"hi"), 400),
        (bare(b"Content-Length: -2", body=b"hi"), 400),
        (bare(b"Content-Length: +2", body=b"hi"), 400),
        (bare(b"Content-Length: 2, 2", body=b"hi"), 400),
        (bare(b"Content-Length: 99999999999999999999", body=b"hi"), 400),
        (bare(b"Content-Length: 2", b"Content-Length: 2", body=b"hi"), 400),
        (bare(b"Content-Length: 2", b"Content-Length: 3", body=b"hi"), 400),
        (bare(b"Content-Length: 2", body=b"hi", start=b"GET / HTTP/1.1"), 400),
        (bare(CHUNKED, body=CHUNKS, start=b"HEAD / HTTP/1.1"), 400),
        (bare(start=b"POST http://a/ HTTP/1.1"), 421),
        (bare(start=b"OPTIONS * HTTP/1.1"), 421),
        (bare(start=b"CONNECT a:80 HTTP/1.1"), 421),
        (b"\x16\x03\x01\x02\x00\x01", 400),
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused_and_closed(served: Served, request_: bytes, status: int) -> None:
    async with RawClient(served.port) as client:
        await client.send(request_ + b"POST /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, _ = (await closes(client)).partition(b"\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert not any(served.bodies)
    assert "/smuggled" not in [scope["path"] for scope in served.scopes]


# ---- deadlines -------------------------------------------------------------------------------------------------------


async def drip(client: RawClient, data: bytes, pause_s: float) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            await client.send(data)
            await asyncio.sleep(pause_s)


@pytest.mark.case("HTTP-03")
@pytest.mark.parametrize(
    ("first", "again", "pause_s", "seconds"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nX: ", b"x", 0.05, HEAD_S),
        (b"POST / HTTP/1.1\r\nHost: a\r\nX: ", b"", 0.05, HEAD_S),
        (b"\r\n", b"\r\n", 0.05, HEAD_S),
        (post(b"", length=1_000), b"x", 0.05, BODY_S),
        (post(b"", length=1_000), b"", 0.05, BODY_S / 3),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.05, BODY_S),
    ],
)
async def test_a_slow_sender_is_answered_408_and_closed(
    served: Served, first: bytes, again: bytes, pause_s: float, seconds: float
) -> None:
    loop = asyncio.get_running_loop()
    async with RawClient(served.port) as client:
        begun = loop.time()
        await client.send(first)
        async with asyncio.TaskGroup() as group:
            dripping = group.create_task(drip(client, again, pause_s))
            assert (await client.response()).status == 408
            took = loop.time() - begun
            assert seconds * 0.9 < took < seconds + 1
            assert await closes(client) == b""
            dripping.cancel()
    assert not any(served.bodies)


@pytest.mark.case("HTTP-03")
async def test_a_silent_connection_is_closed_like_an_idle_one(served: Served) -> None:
    async with RawClient(served.port) as silent, RawClient(served.port) as idle:
        await idle.send(post(b"x"))
        assert (await idle.response()).status == 200
        assert await closes(silent) == await closes(idle) == b""


# ---- early answers ---------------------------------------------------------------------------------------------------


@pytest.mark.case("HTTP-04")
@pytest.mark.parametrize("query", [b"", b"?close"])
async def test_an_answer_before_the_end_of_a_request_arrives_and_ends_the_connection(
    served: Served, query: bytes
) -> None:
    async with RawClient(served.port) as client:
        await client.send(post(b"", target=b"/early" + query, length=1_000_000_000))
        async with asyncio.TaskGroup() as group:
            flooding = group.create_task(drip(client, b"x" * 100_000, 0))
            assert (await client.response()).status == 401
            assert await closes(client) == b""
            flooding.cancel()


async def test_an_answer_after_a_whole_request_keeps_the_connection(served: Served) -> None:
    async with RawClient(served.port) as client:
        for _ in range(2):
            await client.send(post(b"xyz", target=b"/early"))
            assert (await client.response()).status == 401


@pytest.mark.case("HTTP-04")
async def test_a_body_without_end_is_given_up(served: Served) -> None:
    async with RawClient(served.port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            flooding = group.create_task(drip(client, b"2710\r\n" + b"x" * 10_000 + b"\r\n", 0))
            response = await client.response()
            flooding.cancel()
        assert (response.status, response.headers["connection"]) == (413, "close")


# ---- answers that nobody takes ---------------------------------------------------------------------------------------


@pytest.fixture
async def reader(served: Served) -> AsyncIterator[socket.socket]:
    """A client that asked for a large answer and reads of it what the test reads."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", served.port))
        await loop.sock_sendall(client, post(target=b"/large"))
        yield client


async def take(client: socket.socket, most: int) -> int:
    """Read that many bytes, or fewer when the server ends the connection."""
    count = 0
    with contextlib.suppress(ConnectionResetError):
        while count < most:
            piece = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, most - count), 5)
            if not piece:
                break
            count += len(piece)
    return count


async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(reader: socket.socket) -> None:
    await asyncio.sleep(4 * STALL_S)
    assert await take(reader, LARGE) < LARGE


async def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(reader: socket.socket) -> None:
    taken = 0
    for _ in range(10):  # four times as long as it may take nothing
        taken += await take(reader, LARGE // 10)
        await asyncio.sleep(STALL_S * 0.4)
    assert taken == LARGE


async def test_the_time_for_one_answer_is_not_that_of_the_next(reader: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time() + STALL_S
    first = await take(reader, LARGE)
    await asyncio.sleep(due - loop.time() - 0.05)
    await loop.sock_sendall(reader, post(target=b"/large?twice"))
    await asyncio.sleep(STALL_S * 0.6)
    assert first + await take(reader, 2 * LARGE) == 3 * LARGE
