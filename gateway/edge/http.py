"""What the edge asks of raw HTTP, as pure functions and two small ASGI helpers.

The order of checks is cheapest first; nothing here looks inside a body.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = Iterable[tuple[bytes, bytes]]

_AUTHORITY = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)(?::(?P<port>\d{1,5}))?"
)
_UTF_8 = re.compile(r"\s*charset=\"?utf-?8\"?\s*;?\s*")
_encode = msgspec.json.Encoder().encode
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Headers:
    """Request headers, looked up by lower-case name. Built once a request; linear in the number of headers."""

    __slots__ = ("_values",)

    def __init__(self, raw: RawHeaders) -> None:
        values: dict[bytes, list[bytes]] = {}
        for name, value in raw:
            values.setdefault(name, []).append(value)
        self._values = values

    def get(self, name: bytes) -> str | None:
        """The last value of that name without surrounding white space, or None."""
        found = self._values.get(name)
        return found[-1].decode("latin-1").strip(" \t") if found else None

    def count(self, name: bytes) -> int:
        return len(self._values.get(name, ()))


class HttpRefused(Exception):
    """A request that ends before MCP begins.

    Args:
        status: HTTP status.
        message: one sentence for a person.
        headers: extra response headers.
    """

    def __init__(self, status: int, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Authorities:
    """Which ``Host`` and ``Origin`` values a listener answers to (DNS rebinding: security best practices, 2025-11-25).

    Attributes:
        hosts: exact lower-case ``host`` or ``host:port``.
        origins: exact lower-case origins that a browser may name.
    """

    hosts: frozenset[str]
    origins: frozenset[str]

    @classmethod
    def of(cls, host: str, port: int, public_url: str | None, origins: Iterable[str] = ()) -> Authorities:
        """The listener's own address (all spellings of loopback when it is one) and the public URL's authority."""
        literal = f"[{host}]" if ":" in host else host.lower()
        names = LOOPBACK_NAMES if literal in LOOPBACK_NAMES else (literal,)
        hosts = {f"{name}:{port}" for name in names} | {name for name in names if port in (80, 443)}
        allowed = {f"http://{name}:{port}" for name in names}
        if public_url is not None:
            parts = urlsplit(public_url.lower())
            default = {"http": 80, "https": 443}[parts.scheme]
            bare = parts.hostname or ""
            bare = f"[{bare}]" if ":" in bare else bare
            hosts |= {f"{bare}:{parts.port or default}"} | ({bare} if parts.port in (None, default) else set())
            allowed.add(f"{parts.scheme}://{parts.netloc}")
        return cls(frozenset(hosts), frozenset(allowed) | {origin.lower().rstrip("/") for origin in origins})

    def check(self, headers: Headers) -> None:
        """Raises HttpRefused: 400 for no or two Hosts, 421 for a foreign Host, 403 for a foreign Origin."""
        if headers.count(b"host") != 1:
            raise HttpRefused(400, "exactly one Host header is required")
        host = (headers.get(b"host") or "").lower()
        if host not in self.hosts or not _AUTHORITY.fullmatch(host):
            raise HttpRefused(421, "this Host is not served here; set server.publicUrl to the address clients use")
        origin = headers.get(b"origin")
        if origin is not None and origin.lower() not in self.origins:
            raise HttpRefused(403, "this Origin may not call; add it to server.allowedOrigins")


def check_media(headers: Headers) -> None:
    """Raises HttpRefused: 415 for a body that is not JSON in UTF-8, 406 for a client that does not take JSON."""
    media, _, parameters = (headers.get(b"content-type") or "").lower().partition(";")
    if headers.count(b"content-type") != 1 or media.strip() != "application/json":
        raise HttpRefused(415, "Content-Type must be application/json")
    if parameters and not _UTF_8.fullmatch(parameters):
        raise HttpRefused(415, "Content-Type must be application/json, and its only charset is utf-8")
    if (headers.get(b"content-encoding") or "identity").lower() != "identity" or headers.count(b"content-encoding") > 1:
        raise HttpRefused(415, "Content-Encoding is not supported")
    accept = headers.get(b"accept") or "*/*"
    if not any(kind in accept for kind in ("application/json", "application/*", "*/*")):
        raise HttpRefused(406, "Accept must cover application/json and text/event-stream")


async def read_body(receive: Receive, limit: int, declared: str | None = None) -> bytes | None:
    """The whole request body, or None when the client left while sending it. Deadlines: :mod:`gateway.edge.guard`.

    Args:
        receive: of the request.
        limit: bytes.
        declared: the Content-Length, which the HTTP parser has checked.

    Raises:
        HttpRefused: 413 as soon as the body is, or is declared to be, larger than ``limit`` bytes.
    """
    if declared is not None and int(declared) > limit:
        raise HttpRefused(413, f"the body is larger than {limit} bytes")
    message = await receive()
    if message["type"] == "http.disconnect":
        return None
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > limit:
            raise HttpRefused(413, f"the body is larger than {limit} bytes")
        return body
    parts = bytearray(body)
    while message.get("more_body", False):
        if len(parts) > limit:
            raise HttpRefused(413, f"the body is larger than {limit} bytes")
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts += message.get("body", b"")
    if len(parts) > limit:
        raise HttpRefused(413, f"the body is larger than {limit} bytes")
    return bytes(parts)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has closed its side."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_response(
    send: Send,
    status: int,
    body: bytes = b"",
    headers: tuple[tuple[bytes, bytes], ...] = (),
    kind: bytes = b"application/json",
) -> None:
    """One complete response; ``kind`` is left out when there is no body."""
    head = [(b"content-length", b"%d" % len(body)), *headers]
    if body:
        head.append((b"content-type", kind))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def refusal_body(refused: HttpRefused) -> bytes:
    """A JSON-RPC error without id, which is what MCP clients can show (transport section, 403)."""
    return _encode({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": refused.message}})


def refusal(refused: HttpRefused) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """Body and headers."""
    body = refusal_body(refused)
    length = (b"content-length", b"%d" % len(body))
    return body, (length, (b"content-type", b"application/json"), *refused.headers)


async def send_refusal(send: Send, refused: HttpRefused) -> None:
    """Answer with a refusal, where nothing else is under way."""
    body, headers = refusal(refused)
    await send({"type": "http.response.start", "status": refused.status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})
