"""Streamable HTTP: sessions, JSON answers, event streams, and connections that break."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Iterable, Mapping

from tests.faulty import era, rpc
from tests.faulty.channel import Stream
from tests.faulty.http1 import HttpConnection, HttpRequest, head
from tests.faulty.pacing import paced
from tests.faulty.recording import Request, Session
from tests.faulty.results import file_bytes
from tests.faulty.rpc import INVALID_REQUEST, Body, Incoming, Message, Refusal
from tests.faulty.server import Server

JSON = "application/json"
EVENTS = "text/event-stream"
CHUNKED_FROM = 1 << 20
"""Bytes of a JSON answer from which it is sent in chunks, without a length."""


class HttpWire:
    """The endpoint and all connections to it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connections: dict[HttpConnection, Request | None] = {}  # and what each is busy with
        self._sessions_made = 0

    async def start(self, port: int) -> int:
        """Listen on loopback; returns the port."""
        listener = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=512)
        return int(listener.sockets[0].getsockname()[1])

    def reset(self, what: str, tool: str | None = None) -> int:
        """Break connections with RST: all (``connections``), or those busy at one point; returns how many."""
        chosen = [
            connection
            for connection, busy in self._connections.items()
            if what == "connections"
            or (busy is not None and busy.point == what and (tool is None or busy.tool == tool))
        ]
        for connection in chosen:
            connection.reset()
        return len(chosen)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        switches, record = self._server.switches, self._server.record
        connection = HttpConnection(reader, writer, switches.read_slowly)
        self._connections[connection] = None
        record.connections_opened += 1
        record.connections = len(self._connections)
        try:
            while http := await connection.read_request(self._server.switches.close_idle):
                if not await self._exchange(connection, http):
                    break
                self._connections[connection] = None
        except ConnectionError:
            pass  # the peer has gone, or we have cut it off
        finally:
            self._gone(connection)
            connection.close()

    def _gone(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)
        self._server.record.connections = len(self._connections)

    async def _exchange(self, connection: HttpConnection, http: HttpRequest) -> bool:
        """One request and its answer; whether the connection is still good for another."""
        switches = self._server.switches
        if http.path != switches.path:
            await connection.respond(404)
            return True
        if http.method not in ("POST", "GET", "DELETE"):
            await connection.respond(405, {"Allow": "POST, GET, DELETE"})
            return True
        message = rpc.read(http.body) if http.method == "POST" else Incoming()
        session_id = http.header("mcp-session-id")
        session = self._server.record.sessions.get(session_id or "")
        point = None if http.method == "POST" else http.method.lower()
        request = self._server.arrive(message, http.headers, session, point)
        self._connections[connection] = request
        if switches.require_auth is not None and http.header("authorization") != switches.require_auth:
            await connection.respond(401, {"WWW-Authenticate": "Bearer"})
            return True
        if await _instead(connection, request):
            return True
        refused = self._refuse(request, http)
        if refused is not None:
            status, refusal = refused
            await connection.respond(status, {"Content-Type": JSON}, b"".join(rpc.error(message.id, refusal).chunks()))
            return True
        if http.method == "GET":
            return await self._get(connection, request)
        if http.method == "DELETE":
            self._server.record.sessions.pop(session_id or "", None)
            await connection.respond(200)
            return True
        if not (message.is_request or message.problem):
            self._server.notice(request)
            await connection.respond(202)
            return True
        return await self._post(connection, request)

    def _refuse(self, request: Request, http: HttpRequest) -> tuple[int, Refusal] | None:
        """What HTTP and sessions demand, beyond what :func:`tests.faulty.era.check` looks at."""

        def refused(status: int, text: str) -> tuple[int, Refusal]:
            return status, Refusal(INVALID_REQUEST, text)

        switches, session_id = self._server.switches, http.header("mcp-session-id")
        accepted = http.header("accept") or ""
        if http.method == "POST":
            if (http.header("content-type") or "").partition(";")[0].strip().lower() != JSON:
                return refused(415, "Content-Type must be application/json")
            if "*/*" not in accepted and not (JSON in accepted and EVENTS in accepted):
                return refused(406, "Accept must cover application/json and text/event-stream")
        if request.modern:
            if http.method != "POST":
                return refused(405, "This era has no GET and no DELETE")
            return None
        if http.method == "GET" and EVENTS not in accepted:
            return refused(406, "Accept must cover text/event-stream")
        version = http.header(era.VERSION_HEADER)
        expected = {*era.LEGACY, switches.protocol}
        if request.plan.first("discover") is None and version is not None and version not in expected:
            return refused(400, f"Bad Request: Unsupported protocol version: {version}")
        if not switches.sessions or request.message.method == "initialize" or request.plan.first("discover"):
            return None
        if session_id is None:
            return refused(400, "Bad Request: Missing session ID")
        session = request.session
        if session is not None and switches.session_ttl is not None and session.calls >= switches.session_ttl:
            self._server.record.sessions.pop(session_id, None)
            session = None
        return refused(404, "Session not found") if session is None else None

    async def _post(self, connection: HttpConnection, request: Request) -> bool:
        opened: dict[str, str] = {}
        if request.message.method == "initialize" and not request.modern and self._server.switches.sessions:
            self._sessions_made += 1
            session = Session(f"faulty-{os.getpid()}-{self._sessions_made}", opened_with=request.headers)
            self._server.record.sessions[session.id or ""] = session
            opened = {"Mcp-Session-Id": session.id or ""}
        channel = _Answer(connection, request, opened)
        answering = asyncio.create_task(self._server.answer(request, channel))
        leaving = asyncio.create_task(connection.closed())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                self._gone(connection)  # in the legacy era the call goes on all the same
                if request.modern:
                    self._server.cancel(request)
            await asyncio.wait({answering})
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.wait({answering, leaving})
        if not answering.cancelled():
            answering.result()  # a connection that broke is raised here
        return channel.complete

    async def _get(self, connection: HttpConnection, request: Request) -> bool:
        channel = _Answer(connection, request, {})
        await channel.begin()
        stream = Stream("get", channel, legacy=True)
        self._server.streams.add(stream)
        try:
            await connection.closed()
        finally:
            self._server.streams.discard(stream)
        return False


async def _instead(connection: HttpConnection, request: Request) -> bool:
    """What ``--status`` and ``--body`` send in place of any answer."""
    status = request.plan.first("status")
    if status is not None:
        retry = {} if status.retry_after is None else {"Retry-After": status.retry_after}
        text = f"status {status.kind}, as told\n".encode()
        await connection.respond(int(status.kind), {"Content-Type": "text/plain", **retry}, text)
        return True
    body = request.plan.first("body")
    if body is not None:
        media = request.plan.first("content_type")
        await connection.respond(200, {"Content-Type": media.kind if media else "text/html"}, file_bytes(body.kind))
        return True
    return False


class _Answer:
    """The channel of one HTTP request: one JSON body, or an event stream as soon as there is more to say."""

    def __init__(self, connection: HttpConnection, request: Request, headers: Mapping[str, str]) -> None:
        self.complete = False
        """The answer has been sent to its regular end; the connection may be used again."""
        self._connection = connection
        self._plan = request.plan
        self._headers = headers
        self._lock = asyncio.Lock()
        self._streaming = False
        self._over = False
        self._spoken = request.plan.switches.answers == "sse" or bool(request.plan.all("sse"))
        gzip = request.plan.first("sse", "gzip") is not None
        self._compressor = zlib.compressobj(wbits=31) if gzip else None
        self._seed = request.plan.switches.seed

    async def send(self, message: Message) -> None:
        async with self._lock:
            if self._over:
                return  # an announcement that comes after the answer
            self._over = message.final
            if not self._streaming and message.final and (not self._spoken or message.status >= 400):
                await self._send_json(message)
                return
            await self.begin()
            if not message.final:
                await self._send_event(message.body)
            elif self._plan.first("sse", "no-final") is None:
                await self._send_ending(self._event(message.body), len(message.body))
            if message.final:
                if self._compressor is not None:
                    await self._raw_chunk(self._compressor.flush())
                await self._connection.write(b"0\r\n\r\n")
                self.complete = True

    async def begin(self) -> None:
        """Begin the event stream."""
        if self._streaming:
            return
        self._streaming = True
        encoding = {"Content-Encoding": "gzip"} if self._compressor else {}
        headers = {"Content-Type": self._media(EVENTS), "Cache-Control": "no-cache, no-transform", **encoding}
        await self._connection.write(head(200, {**headers, **self._headers, "Transfer-Encoding": "chunked"}))

    async def send_raw(self, data: bytes) -> None:
        await self._connection.write(data)
        self.complete = True

    async def close(self) -> None:
        self._connection.close()
        raise ConnectionAbortedError

    def _media(self, usual: str) -> str:
        fault = self._plan.first("content_type")
        return fault.kind if fault else usual

    async def _send_json(self, message: Message) -> None:
        body = message.body
        chunked = len(body) > CHUNKED_FROM
        length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
        headers = {"Content-Type": self._media(JSON), **self._headers, **length}
        if self._plan.first("cut", "reset") is None:
            await self._connection.write(head(message.status, headers))
        await self._send_ending(body.chunks(), len(body), in_chunks=chunked)
        if chunked:
            await self._connection.write(b"0\r\n\r\n")
        self.complete = True

    async def _send_ending(self, pieces: Iterable[bytes], length: int, *, in_chunks: bool = True) -> None:
        """The pieces of the final message, or what ``--cut`` and ``--die-on mid-answer`` leave of them."""
        cut, dies = self._plan.first("cut"), self._plan.first("die_on", "mid-answer") is not None
        left = length // 2 if dies or (cut and cut.kind == "mid-body") else (0 if cut else None)
        async for piece in paced(_limited(pieces, left), self._plan):
            await (self._chunk(piece) if in_chunks else self._connection.write(piece))
        if dies:
            os._exit(self._plan.switches.exit_code)
        if cut:
            await self._break(cut.kind)

    async def _break(self, how: str) -> None:
        if how == "reset":
            self._connection.reset()
        else:
            self._connection.close()
        raise ConnectionAbortedError

    async def _send_event(self, body: Body) -> None:
        for piece in self._event(body):
            await self._chunk(piece)

    def _event(self, body: Body) -> Iterable[bytes]:
        """One message as a server-sent event, in the pieces it is written in."""
        splits = self._plan.first("sse", "split-events") is not None
        end = b"\r\n" if self._plan.first("sse", "crlf") is not None else b"\n"
        begin = b"event: message" + end + b"data: "
        if splits:  # an id, a comment, and the data in two lines: a client joins them with a newline
            begin = b": comment" + end + b"id: 1" + end + begin
            if body.head.startswith(b"{"):
                body = Body(b"{" + end + b"data: " + body.head[1:].replace(b"\n", b" "), body.fill, body.tail)
        else:
            body = body.replaced(b"\n", end + b"data: ")
        whole = body.wrapped(begin, end + end)
        return _in_small_pieces(whole.chunks(), self._seed) if splits else whole.chunks()

    async def _chunk(self, data: bytes) -> None:
        if self._compressor is not None and self._streaming:
            data = self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        await self._raw_chunk(data)

    async def _raw_chunk(self, data: bytes) -> None:
        if data:
            await self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))


def _limited(pieces: Iterable[bytes], limit: int | None) -> Iterable[bytes]:
    left = limit
    for piece in pieces:
        if left is None:
            yield piece
        elif left > 0:
            yield piece[:left]
            left -= len(piece)


def _in_small_pieces(chunks: Iterable[bytes], seed: int) -> Iterable[bytes]:
    """The first bytes a few at a time, across the borders of lines and characters; what is long, at last in one."""
    for number, chunk in enumerate(chunks):
        position = 0
        while number == 0 and position < min(len(chunk), 400):
            step = 1 + (position * 3 + seed) % 7
            yield chunk[position : position + step]
            position += step
        yield chunk[position:]
