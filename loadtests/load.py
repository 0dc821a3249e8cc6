"""The load: kept-alive connections, one request on each sent together, wait for all answers, again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class HttpTarget:
    """One request that is sent again and again.

    Attributes:
        port: on loopback.
        path, headers, body: of the POST.
        right: whether an answer's body is the right one; a wrong one voids the row.
    """

    port: int
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    right: Callable[[bytes], bool]

    @property
    def request(self) -> bytes:
        lines = [f"POST {self.path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


class WrongAnswer(Exception):
    """A target answered something else than it should: the row means nothing."""


class Connections:
    """``size`` open connections to one target."""

    def __init__(self, target: HttpTarget, size: int) -> None:
        self._target = target
        self._size = size
        self._open: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> Connections:
        for _ in range(self._size):
            self._open.append(await asyncio.open_connection("127.0.0.1", self._target.port))
        return self

    async def __aexit__(self, *exit_info: object) -> None:
        for _, writer in self._open:
            writer.close()

    async def volleys(self, count: int) -> int:
        """Send ``count`` volleys. Returns the number of requests. Raises WrongAnswer."""
        request = self._target.request
        for _ in range(count):
            for _, writer in self._open:
                writer.write(request)
            for reader, _ in self._open:
                body = await asyncio.wait_for(_read_response(reader), 60)
                if not self._target.right(body):
                    raise WrongAnswer(body[:300].decode("utf-8", "replace"))
        return count * self._size


async def _read_response(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    status = head.split(b" ", 2)[1]
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            body = await reader.readexactly(int(value))
            break
    else:
        raise WrongAnswer(f"no length: {head[:200]!r}")
    if status != b"200":
        raise WrongAnswer(f"status {status.decode()}: {body[:200]!r}")
    return body
