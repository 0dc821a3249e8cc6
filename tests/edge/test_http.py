"""Host, Origin, headers and bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gateway.edge.http import Authorities, Headers, HttpRefused, check_media, read_body

LOOPBACK = Authorities.of("127.0.0.1", 8080, None)
PUBLIC = Authorities.of("0.0.0.0", 8080, "https://gw.example.com", ["https://app.example.com"])


def status(authorities: Authorities, *headers: tuple[str, str]) -> int:
    try:
        authorities.check(Headers((name.encode(), value.encode("latin-1")) for name, value in headers))
    except HttpRefused as refused:
        return refused.status
    return 200


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080", "[::1]:8080"])
def test_all_spellings_of_loopback_are_ours(host: str) -> None:
    assert status(LOOPBACK, ("host", host)) == 200


@pytest.mark.case("HTTP-01")
@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:8080",
        "127.0.0.1:1@evil.com",
        "127.0.0.1:8081",
        "127.0.0.1",
        "127.0.0.1:8080.evil.test",
        "localhost.evil.test:8080",
        "",
        "127.0.0.1:",
    ],
)
def test_a_foreign_host_is_misdirected(host: str) -> None:
    assert status(LOOPBACK, ("host", host)) == 421


def test_exactly_one_host() -> None:
    assert status(LOOPBACK) == 400
    assert status(LOOPBACK, ("host", "127.0.0.1:8080"), ("host", "127.0.0.1:8080")) == 400


@pytest.mark.parametrize("host", ["gw.example.com", "gw.example.com:443", "GW.example.com"])
def test_the_public_authority_is_ours_with_and_without_its_port(host: str) -> None:
    assert status(PUBLIC, ("host", host)) == 200
    assert status(PUBLIC, ("host", "gw.example.com:8443")) == 421


@pytest.mark.case("HTTP-01")
def test_origins() -> None:
    host = ("host", "127.0.0.1:8080")
    assert status(LOOPBACK, host, ("origin", "http://localhost:8080")) == 200
    for foreign in ("http://evil.test", "null", "http://localhost.evil.test:8080", "http://localhost:1", ""):
        assert status(LOOPBACK, host, ("origin", foreign)) == 403
    public = ("host", "gw.example.com")
    assert status(PUBLIC, public, ("origin", "https://gw.example.com")) == 200
    assert status(PUBLIC, public, ("origin", "https://app.example.com")) == 200
    assert status(PUBLIC, public, ("origin", "http://app.example.com")) == 403


def media(*headers: tuple[bytes, bytes]) -> int:
    try:
        check_media(Headers(headers))
    except HttpRefused as refused:
        return refused.status
    return 200


@pytest.mark.case("HTTP-11")
def test_media_types() -> None:
    kind = (b"content-type", b"application/json")
    for plain in (b"application/json", b"application/json; charset=utf-8", b'APPLICATION/JSON;charset="UTF-8"'):
        assert media((b"content-type", plain)) == 200
    for other in (
        b"application/jsonx",
        b"application/json; charset=utf-16",
        b"application/json; q=1",
        b"text/plain",
        b"",
    ):
        assert media((b"content-type", other)) == 415
    assert media() == media(kind, kind) == 415
    assert media(kind, (b"content-encoding", b"identity")) == 200
    assert media(kind, (b"content-encoding", b"gzip")) == 415
    assert media(kind, (b"accept", b"text/html")) == 406
    assert media(kind, (b"accept", b"text/html, application/*;q=0.1")) == 200


def body_of(*chunks: bytes, gone: bool = False) -> Any:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": chunk, "more_body": gone or number < len(chunks) - 1}
        for number, chunk in enumerate(chunks)
    ]
    if gone:
        messages.append({"type": "http.disconnect"})
    waiting: Iterable[dict[str, Any]] = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(waiting)  # type: ignore[call-overload, no-any-return]

    return receive


async def test_a_body_is_read_whole() -> None:
    assert await read_body(body_of(b"ab"), 10) == b"ab"
    assert await read_body(body_of(b"ab", b"", b"cd"), 10) == b"abcd"


async def test_a_body_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert await read_body(body_of(b"x" * 5, b"x" * 5), 10) == b"x" * 10
    for chunks in ([b"x" * 11], [b"x" * 5, b"x" * 6], [b"x"] * 11):
        with pytest.raises(HttpRefused) as refused:
            await read_body(body_of(*chunks), 10)
        assert refused.value.status == 413


async def test_a_body_that_is_declared_too_large_is_not_read() -> None:
    with pytest.raises(HttpRefused) as refused:
        await read_body(body_of(), 10, "11")
    assert refused.value.status == 413
    assert await read_body(body_of(b"ab"), 10, "2") == b"ab"


async def test_an_endless_body_is_given_up_at_the_limit() -> None:
    read = 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 4
        return {"type": "http.request", "body": b"abcd", "more_body": True}

    with pytest.raises(HttpRefused):
        await read_body(receive, 100)
    assert read <= 108


async def test_a_client_that_leaves_is_nobody() -> None:
    assert await read_body(body_of(b"ab", gone=True), 10) is None
