"""HTTP/1.1 toward one upstream: a pool of kept-alive connections on asyncio and httptools.

Knows HTTP, no MCP. One call costs about a sixth of aiohttp's CPU time and a thirtieth of httpx's, and three rules that
matter here hold: an answer that is given up closes its connection at once (that is how a modern call is cancelled), no
request is ever sent twice by the pool, and every answer has a cap.

An idle connection is used again only while it is younger than ``idle_s`` *and* its socket has nothing to read: readable
means closed by the peer, or bytes that nobody asked for. Common servers close idle connections after 5 s, so with 2.5
s the moment at which both sides act at once is avoided rather than mended.
"""

from __future__ import annotations

import asyncio
import functools
import select
import socket
import ssl
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import httptools

from gateway.upstreams.base import MAX_MESSAGE_BYTES
from gateway.upstreams.httphead import Target

IDLE_S = 2.5
CONNECT_TIMEOUT_S = 10.0
_MAX_HEADERS = 200
_MAX_HEADER_BYTES = 64 * 1024
_READ_AHEAD = 1024 * 1024  # bytes of a stream held for a reader that is slow
_DRAIN_S = 1.0  # for the end of a stream whose answer has been read, so that its connection can be used again


class WireFailed(Exception):
    """The exchange broke off.

    Attributes:
        reason: one sentence without an address.
        connected: False when there never was a connection.
        sent: whether a byte of the request may have left.
        answered: whether a byte of the answer came.
        reused: whether it happened on a connection that had served before; then the peer may just have closed it.
    """

    def __init__(self, reason: str, *, connected: bool = True, sent: bool = True, answered: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.connected = connected
        self.sent = sent
        self.answered = answered
        self.reused = False


@functools.cache
def tls_context() -> ssl.SSLContext:
    """One context for the whole process: making one costs 50 ms of CPU time."""
    return ssl.create_default_context()


class Pool:
    """Connections to one origin.

    Args:
        target: where to.
        connections: how many requests may be under way at once; more wait.
        idle_s: how long an idle connection may be used again, seconds.
        connect_timeout_s: for name, connection and TLS together, seconds.
    """

    def __init__(
        self,
        target: Target,
        *,
        connections: int = 256,
        idle_s: float = IDLE_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._target = target
        self._idle_s = idle_s
        self._connect_timeout_s = connect_timeout_s
        self._slots = asyncio.Semaphore(connections)
        self._idle: list[_Connection] = []  # newest last; changed by _take and _put_back
        self._all: set[_Connection] = set()  # open ones, to be closed with the pool
        self._closed = False

    async def send(self, head: bytes, body: bytes = b"") -> Answer:
        """Send one request and wait for the head of its answer. The caller sets the deadline and must release.

        Args:
            head: request line and headers, up to and with the empty line.

        Raises:
            WireFailed
        """
        await self._slots.acquire()
        connection: _Connection | None = None
        try:
            connection = self._take() or await self._connect()
            connection.send(head, body)
            await connection.head_ready()
        except BaseException as error:  # cancellation too: the peer must see the connection close
            if connection is not None:
                if isinstance(error, WireFailed):
                    error.reused = connection.idle_since > 0
                connection.abort()
            self._slots.release()
            raise
        return Answer(self, connection)

    async def close(self) -> None:
        """Break everything off; whoever waits gets :class:`WireFailed`. Returns when all sockets are closed."""
        self._closed = True
        lost = [connection.lost for connection in self._all]
        for connection in list(self._all):
            connection.fail("the gateway closed the connection")
        if lost:
            await asyncio.wait(lost, timeout=2.0)

    # ------------------------------------------------------------- connections

    def _take(self) -> _Connection | None:
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > oldest and connection.is_quiet():
                return connection
            connection.abort()
        return None

    def _put_back(self, connection: _Connection) -> None:
        now = asyncio.get_running_loop().time()
        while self._idle and self._idle[0].idle_since <= now - self._idle_s:
            self._idle.pop(0).abort()
        if self._closed:
            connection.abort()
            return
        connection.idle_since = now
        self._idle.append(connection)

    def _give_back(self, connection: _Connection, *, finished: bool) -> None:
        """The caller is done with the answer. ``finished``: it has seen all it wanted, only the end may be missing."""
        self._slots.release()
        if connection.reusable():
            self._put_back(connection)
        elif finished and not connection.complete:
            connection.drain(_DRAIN_S, self._put_back)
        else:
            connection.abort()

    async def _connect(self) -> _Connection:
        target = self._target
        loop = asyncio.get_running_loop()
        if self._closed:
            raise WireFailed("the gateway closed the connection", connected=False, sent=False)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._all),
                    target.host,
                    target.port,
                    ssl=tls_context() if target.tls else None,
                    server_hostname=target.host if target.tls else None,
                )
        except (OSError, TimeoutError) as error:
            reason = _connect_reason(error, self._connect_timeout_s)
            raise WireFailed(reason, connected=False, sent=False) from None
        return connection


def _connect_reason(error: OSError | TimeoutError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"no connection within {timeout_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its TLS certificate was not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {error.reason or 'unknown reason'}"
    if isinstance(error, socket.gaierror):
        return "its host name could not be resolved"
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return "the connection was refused"
    return f"no connection: {error.strerror or type(error).__name__}"


class Answer:
    """One answer whose head has come. Must be released; what was not read by then is given up."""

    def __init__(self, pool: Pool, connection: _Connection) -> None:
        self._pool = pool
        self._connection: _Connection | None = connection
        self.status = connection.status
        self.headers = connection.headers
        self.finished = False  # the caller has seen all it wants, and the connection may live on
        encoding = self.header("content-encoding").lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            self.release()
            raise WireFailed("its answer is compressed in a way that was not asked for", answered=True)
        self._unpack = None if encoding in ("", "identity") else zlib.decompressobj(wbits=47)

    def header(self, name: str) -> str:
        """The value of a header by its lower-case name, "" when absent."""
        return self.headers.get(name.encode(), b"").decode("latin-1").strip()

    async def read(self, cap: int = MAX_MESSAGE_BYTES) -> bytes:
        """The whole body, decoded.

        Raises:
            WireFailed: it broke off, or it is larger than ``cap`` bytes.
        """
        length = self.header("content-length")
        if length.isdecimal() and len(length) < 16 and int(length) > cap:
            raise WireFailed(_too_large(cap), answered=True)
        parts: list[bytes] = []
        size = 0
        while (pieces := await self.more()) is not None:
            for piece in pieces:
                size += len(piece)
                if size > cap:
                    raise WireFailed(_too_large(cap), answered=True)
                parts.append(piece)
        self.finished = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def more(self) -> Iterable[bytes] | None:
        """The pieces of the body that have come since the last call, decoded; waits for some. None at its end.

        Raises:
            WireFailed: it broke off, or it is compressed in a way that was not asked for.
        """
        connection = self._connection
        if connection is None:
            raise RuntimeError("the answer has been released")
        chunks = await connection.more()
        if not chunks:
            return None
        return chunks if self._unpack is None else _unpacked(self._unpack, chunks)

    def release(self) -> None:
        """Give the connection back, or close it when the answer was not read to its end. Idempotent."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._pool._give_back(connection, finished=self.finished)


def _too_large(cap: int) -> str:
    return f"its answer is larger than {cap >> 20} MiB" if cap >= 1 << 20 else f"its answer is larger than {cap} bytes"


def _unpacked(unpack: zlib._Decompress, chunks: list[bytes]) -> Iterator[bytes]:
    """Compressed chunks in pieces of bounded size, so that the reader's cap stops a bomb before it is unpacked."""
    for chunk in chunks:
        rest = chunk
        while rest:
            try:
                piece = unpack.decompress(rest, _READ_AHEAD)
            except zlib.error:
                raise WireFailed("its compressed answer is damaged", answered=True) from None
            rest = unpack.unconsumed_tail
            if piece:
                yield piece


class _Connection(asyncio.Protocol):
    """One socket, and the one exchange that is under way on it."""

    def __init__(self, registry: set[_Connection]) -> None:
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._poll: select.poll | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.idle_since = 0.0
        self._on_drained: tuple[asyncio.TimerHandle, Callable[[_Connection], None]] | None = None
        self._busy = False
        self._reset()

    def _reset(self) -> None:
        """Everything that belongs to one exchange."""
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.complete = False
        self._header_count = 0
        self._header_bytes = 0
        self._head_done = False
        self._chunks: list[bytes] = []
        self._held = 0  # bytes in _chunks
        self._paused = False
        self._drop_body = False
        self._keep = False
        self._error: WireFailed | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._answered = False

    # ------------------------------------------------------------ for the pool

    def send(self, head: bytes, body: bytes) -> None:
        self._reset()
        self._busy = True
        self._parser = httptools.HttpResponseParser(self)
        if len(body) > 65536:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)

    async def head_ready(self) -> None:
        while not self._head_done:
            await self._wait()

    async def more(self) -> list[bytes]:
        """The chunks of the body that have come since the last time; waits for some. Empty at its end."""
        while not self._chunks and not self.complete:
            await self._wait()
        return self._taken()

    def _taken(self) -> list[bytes]:
        chunks, self._chunks, self._held = self._chunks, [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return chunks

    def reusable(self) -> bool:
        return self.complete and self._keep and not self._transport.is_closing()

    def is_quiet(self) -> bool:
        """Whether the idle socket is open and has nothing to read."""
        if self._transport.is_closing():
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not self._poll.poll(0)

    def drain(self, timeout_s: float, then: Callable[[_Connection], None]) -> None:
        """Read the rest away; call ``then`` with this connection if it can be used again afterwards."""
        self._drop_body = True
        self._taken()
        self._on_drained = (self._loop.call_later(timeout_s, self.abort), then)

    def abort(self) -> None:
        self.fail("the exchange was given up")

    def fail(self, reason: str) -> None:
        self._finish(WireFailed(reason, answered=self._answered))
        self._transport.abort()

    # ------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._registry.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if not self._busy or self.complete:  # bytes that nobody asked for
            self.abort()
            return
        self._answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self.fail(str(cause) if isinstance(cause, _Refused) else "its answer could not be read")
        except httptools.HttpParserUpgrade:
            self.fail("it switched protocols unasked")
        except httptools.HttpParserError:
            self.fail("its answer is not valid HTTP")
        if self._held > _READ_AHEAD and not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.discard(self)
        if self._head_done and exc is None and not self.complete and self._ends_with_connection():
            self.complete = True  # a body without length ends where the connection ends
        reason = "the connection was closed before the answer was complete"
        self._finish(None if self.complete else WireFailed(reason, answered=self._answered))
        if not self.lost.done():
            self.lost.set_result(None)

    def _ends_with_connection(self) -> bool:
        return b"content-length" not in self.headers and b"transfer-encoding" not in self.headers

    # ---------------------------------------------------- what httptools calls

    def on_message_begin(self) -> None:
        if self.complete:
            raise _Refused("it sent a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_count > _MAX_HEADERS or self._header_bytes > _MAX_HEADER_BYTES:
            raise _Refused("the head of its answer is too large")
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:  # 100, 103: the real head follows
            self.headers = {}
            return
        self._head_done = True
        self._wake()

    def on_body(self, chunk: bytes) -> None:
        if not self._drop_body:
            self._chunks.append(chunk)
            self._held += len(chunk)
            self._wake()

    def on_message_complete(self) -> None:
        if self.status < 200:
            return
        self._keep = self._parser.should_keep_alive()
        self.complete = True
        self._finish(None)

    # ---------------------------------------------------------------- waking up

    async def _wait(self) -> None:
        """Waits for anything to happen. What came before an error is read before the error is raised."""
        if self._error is None:
            self._wakeup = self._loop.create_future()
            await self._wakeup
        if self._error is not None and not self._chunks:
            raise self._error

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _finish(self, error: WireFailed | None) -> None:
        if error is not None and not self.complete and self._error is None:
            self._error = error
        if self._on_drained is not None:
            timer, then = self._on_drained
            self._on_drained = None
            timer.cancel()
            if self.reusable():
                then(self)
            else:
                self._transport.abort()
        self._wake()


class _Refused(Exception):
    """Raised inside a parser callback."""
