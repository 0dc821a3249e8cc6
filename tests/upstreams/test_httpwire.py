"""The connection pool over raw sockets: what a server may do to it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest

from gateway.upstreams import httpwire
from gateway.upstreams.httphead import parse_target, request_head
from gateway.upstreams.httpwire import Pool, WireFailed
from tests.companions import eventually
from tests.upstreams.support import nothing_left

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Server:
    """Answers each request with the next of some byte strings; None closes the connection instead."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.opened = 0
        self.requests = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.open.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                answer = self.answers.pop(0) if self.answers else OK
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        self.open.discard(writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def pool_to(
    server: Server, tls: ssl.SSLContext | None = None, idle_s: float = 2.5
) -> AsyncIterator[Callable[[], AsyncIterator[bytes]]]:
    async with nothing_left():
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
        server.port = int(listener.sockets[0].getsockname()[1])
        target = parse_target(f"{'https' if tls else 'http'}://127.0.0.1:{server.port}/", {})
        pool = Pool(target, idle_s=idle_s)

        async def get() -> AsyncIterator[bytes]:
            answer = await pool.send(request_head(target, "GET", {}, None))
            try:
                yield await answer.read()
            finally:
                answer.release()

        try:
            yield get
        finally:
            await pool.close()
            listener.close()
            for writer in server.open:
                writer.close()


async def body(get: Callable[[], AsyncIterator[bytes]]) -> bytes:
    async with contextlib.aclosing(get()) as answers:  # type: ignore[type-var]
        async for answer in answers:
            return answer
    raise AssertionError


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (OK, b"ok"),
        (CHUNKED + b"1\r\no\r\n1;ext=1\r\nk\r\n0\r\ntrailer: x\r\n\r\n", b"ok"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
async def test_forms_of_answers(answer: bytes, expected: bytes) -> None:
    server = Server(answer, answer)
    async with pool_to(server) as get:
        assert await body(get) == expected
        assert await body(get) == expected
    assert server.opened == 1


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok")
    async with pool_to(server) as get:
        reading = asyncio.create_task(body(get))
        await eventually(lambda: server.requests)
        for writer in server.open:
            writer.close()
        assert await reading == b"ok"
        assert await body(get) == b"ok"
    assert server.opened == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"\r\n", "head of its answer is too large"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", "head of its answer is too large"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n", "larger than 16 MiB"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nok", "not asked for"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nok", "damaged"),
        (None, "closed before the answer was complete"),
    ],
)
async def test_answers_that_end_the_exchange(answer: bytes | None, reason: str) -> None:
    async with pool_to(Server(answer)) as get:
        with pytest.raises(WireFailed, match=reason):
            await body(get)
        assert await body(get) == b"ok"


@pytest.mark.case("UPSTREAMS-09")
async def test_a_compressed_bomb_stops_at_the_cap() -> None:
    bomb = gzip.compress(b"\0" * (64 << 20))
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    async with pool_to(Server(head + bomb)) as get:
        with pytest.raises(WireFailed, match="larger than 16 MiB"):
            await body(get)


async def test_a_second_answer_to_one_request_is_not_taken_for_the_answer_to_the_next() -> None:
    server = Server(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
    async with pool_to(server) as get:
        assert await body(get) == b"ok"
        assert await body(get) == b"ok"
    assert server.opened == 2


@pytest.mark.case("UPSTREAMS-11")
async def test_an_idle_connection_is_used_only_while_it_is_young_and_open() -> None:
    server = Server()
    async with pool_to(server, idle_s=0.05) as get:
        await body(get)
        loop = asyncio.get_running_loop()
        later = loop.time() + 0.06
        await eventually(lambda: loop.time() > later)
        await body(get)
        assert server.opened == 2
        for writer in list(server.open):
            writer.close()
            await writer.wait_closed()
        await body(get)
    assert (server.opened, server.requests) == (3, 3)


async def test_giving_up_closes_the_connection_at_once() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
    async with pool_to(server) as get:
        reading = asyncio.create_task(body(get))
        await eventually(lambda: server.requests)
        reading.cancel()
        await asyncio.wait({reading})
        await eventually(lambda: not server.open)


async def test_closing_the_pool_answers_whoever_waits() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
    async with pool_to(server) as get:
        reading = asyncio.create_task(body(get))
        await eventually(lambda: server.requests)
    with pytest.raises(WireFailed, match="the gateway closed the connection"):
        await reading


# ------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, in one file."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def serving(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def test_tls_with_a_trusted_certificate(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(httpwire, "tls_context", lambda: trusting)
    server = Server()
    async with pool_to(server, serving(certificate)) as get:
        for _ in range(5):
            assert await body(get) == b"ok"
    assert server.opened <= 2


async def test_tls_with_a_certificate_of_nobody(certificate: Path) -> None:
    async with pool_to(Server(), serving(certificate)) as get:
        with pytest.raises(WireFailed, match="its TLS certificate was not accepted") as caught:
            await body(get)
    assert (caught.value.connected, caught.value.sent) == (False, False)
