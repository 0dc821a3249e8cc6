"""HTTP/1.1 framing on a socket, as little as the faulty upstream and the companions of the tests need."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; the body is complete."""

    method: str
    target: str
    headers: Headers
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


class HttpConnection:
    """One connection of a server: requests in, raw bytes out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: int | None = None) -> None:
        """``rate``: bytes a second that are read at most."""
        self._reader = reader
        self._writer = writer
        self._rate = rate
        self._buffer = bytearray()
        self._writer.transport.set_write_buffer_limits(0)  # so that drain() means: sent

    async def read_request(self, idle_s: float | None = None) -> HttpRequest | None:
        """The next request; None when the peer has closed, stayed silent for ``idle_s``, or sent no HTTP."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(idle_s):
                while not self._buffer:
                    if not await self._fill():
                        return None
        if not self._buffer:
            return None
        while b"\r\n\r\n" not in self._buffer:
            if not await self._fill():
                return None
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer = bytearray(rest)
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        headers = tuple((name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
        request = HttpRequest(words[0], words[1] if len(words) > 1 else "", headers, b"")
        if request.header("transfer-encoding") is not None:
            await self.respond(411)
            return None
        length_header = request.header("content-length") or "0"
        if not length_header.isdecimal():
            return None
        length = int(length_header)
        while len(self._buffer) < length:
            if not await self._fill():
                return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return HttpRequest(request.method, request.target, headers, body)

    async def closed(self) -> None:
        """Returns when the peer has closed; what it sends meanwhile is kept for the next request."""
        with contextlib.suppress(ConnectionError):
            while await self._fill():
                pass

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def respond(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """A whole response with its length."""
        length = {} if status == 204 else {"Content-Length": str(len(body))}
        await self.write(head(status, {**(headers or {}), **length}) + body)

    def close(self) -> None:
        """End it in order, after what was written."""
        self._writer.close()

    def reset(self) -> None:
        """End it with RST."""
        sock = self._writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def _fill(self) -> bool:
        data = await self._reader.read(64 * 1024 if self._rate is None else max(1, self._rate // 20))
        self._buffer += data
        if self._rate is not None:
            await asyncio.sleep(len(data) / self._rate)
        return bool(data)


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Status line and headers, with the empty line that ends them."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
