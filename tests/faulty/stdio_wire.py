"""Lines on stdin and stdout, and what stands between them."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterable

from tests.faulty import rpc
from tests.faulty.channel import Stream
from tests.faulty.faults import size
from tests.faulty.pacing import paced
from tests.faulty.recording import Plan, Request, Session
from tests.faulty.rpc import CHUNK, Body, Message
from tests.faulty.server import Server
from tests.faulty.switches import BadSwitch, Switches

GRACE_S = 0.1
"""After stdin has closed, for answers that are ready."""

_BOM = b"\xef\xbb\xbf"
_NOISE = (
    b"Starting server, please wait ...",
    b"",
    b'{"level":"info","message":"JSON, but no JSON-RPC"}',
    b"\x1b[32mready\x1b[0m {not json}",
    b"[1,2,3]",
)


class StdioWire:
    """The one client of a process: its parent."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session = Session(None)
        self._lock = asyncio.Lock()
        self._output: asyncio.StreamWriter
        self._spoken = False

    async def serve(self) -> None:
        """Read and answer until stdin closes.

        Raises:
            BadSwitch: stdin and stdout are not pipes; asyncio could not wait for a file or /dev/null.
        """
        for stream in (sys.stdin, sys.stdout):
            mode = os.fstat(stream.fileno()).st_mode
            if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stream.isatty()):
                raise BadSwitch("stdin and stdout must be pipes; or give --http PORT")
        loop = asyncio.get_running_loop()
        input_ = asyncio.StreamReader(limit=CHUNK)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(input_), sys.stdin.buffer)
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout.buffer)
        transport.set_write_buffer_limits(0)  # so that drain() means: written
        self._output = asyncio.StreamWriter(transport, protocol, None, loop)
        try:
            switches = self._server.switches
            at_once = tuple(fault for fault in switches.stdout_garbage if fault.fires(1))
            await self._noise(Plan({"stdout_garbage": at_once}, switches))
            await self._converse(input_)
        except ConnectionError:
            pass  # nobody reads stdout any more: the same as a closed stdin

    async def _converse(self, input_: asyncio.StreamReader) -> None:
        answering: set[asyncio.Task[None]] = set()
        process = Stream("process", _Answer(self, Plan({}, self._server.switches)), legacy=True)
        async for line in _lines(input_, self._server.switches):
            request = self._server.arrive(rpc.read(line), session=self._session)
            if request.message.is_request or request.message.problem:
                task = asyncio.create_task(self._answer(request))
                answering.add(task)
                task.add_done_callback(answering.discard)
            else:
                self._server.notice(request)
                if request.message.method == "notifications/initialized":
                    self._server.streams.add(process)
        if answering:
            await asyncio.wait(answering, timeout=GRACE_S)
        for task in answering:
            task.cancel()

    async def _answer(self, request: Request) -> None:
        try:
            await self._server.answer(request, _Answer(self, request.plan))
        except ConnectionError:
            os._exit(0)

    async def write(self, message: Message, plan: Plan) -> None:
        """One message as one line; real newlines in it become spaces, for they would end the line."""
        async with self._lock:
            garbage = plan.first("stdout_garbage")
            body = message.body.replaced(b"\n", b" ").wrapped(b"", b"\r\n" if garbage else b"\n")
            if garbage and not self._spoken:
                body = body.wrapped(_BOM, b"")
            self._spoken = True
            long_line = plan.first("stdout_long_line") if message.final else None
            if long_line is not None:
                await self._send_long_line(body, long_line.kind)
                return
            if message.final and plan.first("die_on", "mid-answer") is not None:
                await self._send(body.chunks(len(body) // 2))
                os._exit(plan.switches.exit_code)
            async for piece in paced(body.chunks(), plan):
                await self._send([piece])
            await self._noise(plan)

    async def write_raw(self, data: bytes) -> None:
        async with self._lock:
            await self._send([data])

    async def _send(self, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            self._output.write(chunk)
            await self._output.drain()

    async def _noise(self, plan: Plan) -> None:
        garbage = plan.first("stdout_garbage")
        if garbage is not None:
            count = int(garbage.kind or len(_NOISE))
            first = plan.switches.seed
            for number in range(count):
                await self._send([_NOISE[(first + number) % len(_NOISE)] + b"\r\n"])

    async def _send_long_line(self, true: Body, amount: str) -> None:
        """It begins as the answer does, with the id, and goes on and on."""
        begin = bytes(true.head[: true.head.index(b'"result":')]) + b'"result":{"content":[{"type":"text","text":"'
        end = b'"}]}}\n'
        if amount == "endless":
            await self._send([begin])
            while True:
                await self._send([b"x" * CHUNK])
        fill = size(amount) - len(begin) - len(end)
        await self._send(Body(begin, max(0, fill), end).chunks())


class _Answer:
    """The channel of one request."""

    def __init__(self, wire: StdioWire, plan: Plan) -> None:
        self._wire = wire
        self._plan = plan

    async def send(self, message: Message) -> None:
        await self._wire.write(message, self._plan)

    async def send_raw(self, data: bytes) -> None:
        await self._wire.write_raw(data)

    async def close(self) -> None:
        os._exit(0)


async def _lines(input_: asyncio.StreamReader, switches: Switches) -> AsyncIterator[bytes]:
    """Lines without their end; as slowly as ``--read-slowly`` says."""
    rate = switches.read_slowly
    begun: list[bytes] = []
    while data := await input_.read(CHUNK if rate is None else max(1, rate // 20)):
        if rate is not None:
            await asyncio.sleep(len(data) / rate)
        *ended, rest = data.split(b"\n")
        for line in ended:
            yield b"".join([*begun, line])
            begun = []
        begun.append(rest)
