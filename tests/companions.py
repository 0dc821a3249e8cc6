"""Small companions of the faulty upstream: a raw client, a recorder, and ways to start and await things.

* :func:`faulty_command` → command and arguments of a stdio entry in gateway.yaml; :func:`faulty_http` starts one that
  is reached over HTTP; :class:`Control` changes either while it runs.
* :class:`RawClient` sends exact bytes over a socket and reads what comes back.
* :class:`Recorder` is a plain HTTP server that records each request and answers as told.
* :func:`free_port`, :func:`eventually`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from tests.faulty.http1 import HttpConnection, HttpRequest, head

T = TypeVar("T")

FAULTY = str(Path(__file__).resolve().parent / "faulty")
DEADLINE_S = 10.0
"""For everything here that waits for another process or for bytes."""


def free_port() -> int:
    """A port on loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@overload
async def eventually(
    condition: Callable[[], Coroutine[Any, Any, T]], within_s: float = 5.0, every_s: float = 0.01
) -> T: ...
@overload
async def eventually(condition: Callable[[], T], within_s: float = 5.0, every_s: float = 0.01) -> T: ...
async def eventually(condition: Callable[[], Any], within_s: float = 5.0, every_s: float = 0.01) -> Any:
    """Poll until ``condition()`` (which may be async) is truthy, and return its value.

    Raises:
        AssertionError: it never was; the text holds the last value.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + within_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if loop.time() > ends:
            raise AssertionError(f"not within {within_s:g} s: {_source(condition)}; last: {value!r}")
        await asyncio.sleep(every_s)


def _source(condition: Callable[[], Any]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):  # a built-in one
        return repr(condition)


# ---------------------------------------------------------------- the faulty upstream


def faulty_command(*switches: str) -> tuple[str, list[str]]:
    """Command and arguments that start a faulty upstream on stdio, from any working directory.

    Isolated and without site-packages: it needs neither, and starts faster.
    """
    return sys.executable, ["-I", "-S", FAULTY, *switches]


class Control:
    """The control port of a faulty upstream that was started with ``--control PORT``."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def set(self, **switches: Any) -> None:
        """Set switches, ``call_delay="1"`` for ``--call-delay 1``; None takes one back, a list gives it several times.

        Raises:
            AssertionError: the faulty upstream refused; the text says why.
        """
        await self._ask("POST", "/set", {name.replace("_", "-"): value for name, value in switches.items()})

    async def now(self, **order: Any) -> dict[str, Any]:
        """Do something at once: ``notify="list_changed"``, ``reset="connections"``, ``exit=1``."""
        answer = await self._ask("POST", "/now", order)
        assert isinstance(answer, dict)
        return answer

    async def state(self) -> dict[str, Any]:
        """All counters, see :meth:`tests.faulty.recording.Record.state`."""
        answer = await self._ask("GET", "/state", None)
        assert isinstance(answer, dict)
        return answer

    async def _ask(self, method: str, path: str, body: Any) -> Any:
        async with RawClient(self.port) as client:
            await client.request(method, path, b"" if body is None else json.dumps(body).encode())
            response = await client.response()
        assert response.status == 200, response.body.decode()
        return response.json()


@dataclass(frozen=True)
class FaultyHttp:
    """A faulty upstream that serves HTTP."""

    url: str
    port: int
    process: asyncio.subprocess.Process
    control: Control


@contextlib.asynccontextmanager
async def faulty_http(*switches: str, port: int = 0) -> AsyncIterator[FaultyHttp]:
    """Start a faulty upstream over HTTP, with a control port; it is ended with the block."""
    command, arguments = faulty_command("--http", str(port), "--control", "0", *switches)
    ours, theirs = os.pipe()  # not subprocess.PIPE: its children may hold it open long after it has ended
    stderr = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stderr), os.fdopen(ours, "rb")
    )
    process = await asyncio.create_subprocess_exec(command, *arguments, stdin=asyncio.subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    draining: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            address = await _announced(stderr, "http")
            control = await _announced(stderr, "control")
        draining = asyncio.create_task(_drain(stderr))  # nobody else reads it, and a full pipe would block
        number = int(address.partition("/")[0].rpartition(":")[2])
        yield FaultyHttp(f"http://{address}", number, process, Control(int(control.rpartition(":")[2])))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        transport.close()
        if draining is not None:
            draining.cancel()
            await asyncio.wait({draining})


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass


async def _announced(stderr: asyncio.StreamReader, what: str) -> str:
    line = (await stderr.readline()).decode()
    word, _, value = line.strip().partition(" ")
    assert word == what, f"the faulty upstream did not start: {line}"
    return value


# ---------------------------------------------------------------- the raw client


@dataclass(frozen=True)
class RawResponse:
    """One HTTP response; ``body`` is without chunk frames, but still compressed if it was."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The JSON messages of an event stream."""
        lines = self.body.replace(b"\r\n", b"\n").split(b"\n")
        return events("\n".join(line.decode() for line in lines))


def events(text: str) -> list[Any]:
    """The JSON messages in the text of an event stream (any line ends)."""
    messages = []
    for event in text.replace("\r\n", "\n").split("\n\n"):
        data = [line.removeprefix("data:").removeprefix(" ") for line in event.split("\n") if line.startswith("data:")]
        if data:
            messages.append(json.loads("\n".join(data)))
    return messages


class RawClient:
    """One connection over which exact bytes are sent; header names in responses are lower-case."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self.host = host
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(DEADLINE_S):
            self._reader, self._writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(DEADLINE_S):
            await self._writer.drain()

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send one well-formed request with the headers given, besides Host and Content-Length."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def read(self, limit: int = 1 << 16) -> bytes:
        """Whatever comes next; empty when the peer has closed."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.read(limit)

    async def read_until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.readuntil(mark)

    async def read_all(self) -> bytes:
        """All bytes until the peer closes.

        Raises:
            ConnectionResetError: it did not close, it reset.
        """
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.read(-1)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of a response whose body is then read with the other methods."""
        first, *lines = (await self.read_until(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split(" ")[1]), headers

    async def response(self) -> RawResponse:
        """A whole response: by its length, its chunks, or up to the end of the connection."""
        status, headers = await self.head()
        if "chunked" in headers.get("transfer-encoding", ""):
            body = b"".join([chunk async for chunk in self.chunks()])
        elif "content-length" in headers or status in (204, 304):
            async with asyncio.timeout(DEADLINE_S):
                body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        else:
            body = await self.read_all()
        return RawResponse(status, headers, body)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks of a chunked body, as they were framed."""
        while size := int((await self.read_until(b"\r\n")).strip(), 16):
            async with asyncio.timeout(DEADLINE_S):
                yield (await self._reader.readexactly(size + 2))[:size]
        await self.read_until(b"\r\n")

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Go away without a word."""
        self._writer.transport.abort()


# ---------------------------------------------------------------- the recorder


@dataclass(frozen=True)
class Answer:
    """What the recorder answers. ``delay_s`` before it; ``piece_s`` between single bytes of the body (a drip)."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/plain"})
    body: bytes = b"ok"
    delay_s: float = 0.0
    piece_s: float = 0.0


class Recorder:
    """A plain HTTP server on loopback. ``requests`` holds what came; ``answer`` may be replaced at any time.

    Args:
        answer: the same for all, or a function of the request.
    """

    def __init__(self, answer: Answer | Callable[[HttpRequest], Answer] | None = None) -> None:
        self.answer = answer or Answer()
        self.requests: list[HttpRequest] = []
        self.port = 0
        self._open: dict[asyncio.Task[None], None] = {}
        self._listener: asyncio.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._listener.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._listener.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._open[task] = None
        task.add_done_callback(self._open.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = HttpConnection(reader, writer)
        try:
            while request := await connection.read_request():
                self.requests.append(request)
                answer = self.answer if isinstance(self.answer, Answer) else self.answer(request)
                await asyncio.sleep(answer.delay_s)
                if not answer.piece_s:
                    await connection.respond(answer.status, answer.headers, answer.body)
                    continue
                await connection.write(head(answer.status, {**answer.headers, "Content-Length": str(len(answer.body))}))
                for position in range(len(answer.body)):
                    await connection.write(answer.body[position : position + 1])
                    await asyncio.sleep(answer.piece_s)
        except ConnectionError:
            pass  # the client has gone
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
