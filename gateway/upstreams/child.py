"""One child process: bytes in, bytes out, the end of its stderr, and an end that leaves nothing behind.

Knows processes and pipes, no MCP. Its own :class:`asyncio.SubprocessProtocol` costs a third of the stream API per
message and gives backpressure and the order of events (data, end of file, exit) in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from gateway.upstreams import proctree
from gateway.upstreams.redact import Redactor

STDERR_BYTES = 8 * 1024
STDERR_LINES = 50
GRACE_S = 2.0  # between closing stdin, SIGTERM and SIGKILL
_WRITE_HIGH = 4 * 1024 * 1024  # bytes waiting for a child that does not read; beyond it writers wait
_LINGER_S = 0.25  # for the rest of the output after the exit, or for the exit after the end of the output
_POLL_S = 0.02


class StderrTail:
    """The last 8 kB or 50 lines of what a child wrote to stderr."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._bytes = bytearray()
        self._cut = False

    def add(self, chunk: bytes) -> None:
        self._bytes += chunk
        # twice the size, so that most chunks are appended without moving anything
        if len(self._bytes) > 2 * STDERR_BYTES:
            del self._bytes[:-STDERR_BYTES]
            self._cut = True

    def lines(self) -> list[str]:
        """What is kept, cleaned of secrets and control characters, without blank lines.

        Only whole lines: the rest of a line that has lost its beginning may be the half of a secret.
        """
        text = self._bytes.decode("utf-8", "replace")
        if self._cut:
            text = text.partition("\n")[2]
        lines = [self._redactor.one_line(line, 1000) for line in text.split("\n")]
        return [line for line in lines if line][-STDERR_LINES:]


class Child(asyncio.SubprocessProtocol):
    """A running process in a session of its own.

    Args:
        on_output: gets each chunk of stdout.
        on_end: called once when the process is gone or has closed its stdout, with one sentence that says which.
        redactor: cleans its stderr.
    """

    def __init__(self, on_output: Callable[[bytes], None], on_end: Callable[[str], None], redactor: Redactor) -> None:
        self.stderr = StderrTail(redactor)
        self._on_output = on_output
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited = asyncio.Event()
        self._ended = False
        self._linger: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._stop: asyncio.Task[None] | None = None
        self._family: set[proctree.Process] = set()  # it and all that it has started, as far as seen; grows only

    async def spawn(self, argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        """Start it. Raises OSError."""
        await self._loop.subprocess_exec(
            lambda: self,
            *argv,
            env=dict(environment),
            cwd=str(cwd),
            start_new_session=True,  # its own process group and session: signals reach all of it, Ctrl-C none of it
        )

    @property
    def pid(self) -> int | None:
        return self._transport.get_pid() if self._transport else None

    def exit_reason(self) -> str:
        """How it ended, as one sentence."""
        code = self._transport.get_returncode() if self._transport else None
        if code is None:
            return "it closed its standard output"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"it was killed by {signal.Signals(-code).name}"
        return f"it exited with code {code}"

    # -------------------------------------------------------------- writing

    def write(self, data: bytes) -> None:
        """Queue bytes for its stdin; without effect when it is gone. Await :meth:`writable` before long ones."""
        stdin = self._stdin()
        if stdin is not None:
            stdin.write(data)

    async def writable(self) -> None:
        """Waits while the child does not read and too much is queued. The caller sets the deadline."""
        await self._writable.wait()

    def can_write(self) -> bool:
        return self._writable.is_set()

    def _stdin(self) -> asyncio.WriteTransport | None:
        """None when it is closed: uvloop raises on everything that is asked of a closed pipe."""
        transport = self._transport.get_pipe_transport(0) if self._transport else None
        if transport is None or transport.is_closing():
            return None
        return cast(asyncio.WriteTransport, transport)

    # ------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        stdin = self._stdin()
        if stdin is not None:
            stdin.set_write_buffer_limits(high=_WRITE_HIGH)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        chunk = cast(bytes, data)
        if fd == 2:
            self.stderr.add(chunk)
        else:
            self._on_output(chunk)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._end_soon()

    def process_exited(self) -> None:
        self._exited.set()
        self._end_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has exited and every pipe is read to its end."""
        self._end()

    def _end_soon(self) -> None:
        if self._linger is None and not self._ended:
            self._linger = self._loop.call_later(_LINGER_S, self._end)

    def _end(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        if not self._ended:
            self._ended = True
            self._writable.set()
            self._on_end(self.exit_reason())

    # ----------------------------------------------------------------- the end

    async def stop(self) -> None:
        """Close stdin, wait; SIGTERM, wait; SIGKILL, wait; reap. Nothing that it started is left. Idempotent.

        Takes at most about three times :data:`GRACE_S`, no time when the child ends with its stdin. It goes on when the
        caller is cancelled: a process that outlives the gateway is worse than a late cancellation.
        """
        if self._transport is None:
            return
        if self._stop is None:
            self._stop = asyncio.create_task(self._end_tree(self._transport), name=f"stop process {self.pid}")
        cancelled: asyncio.CancelledError | None = None
        while not self._stop.done():
            try:
                await asyncio.shield(self._stop)
            except asyncio.CancelledError as error:
                if self._stop.cancelled():
                    break
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def take_stock(self) -> None:
        """Remember what it has started so far.

        While it lives its descendants can be told by their parents; once it has died, only those of its session can.
        A side-car that left the session is found after a crash only if it was seen before.
        """
        if self._transport is not None:
            self._family |= await asyncio.to_thread(proctree.started_by, self._transport.get_pid())

    async def _end_tree(self, transport: asyncio.SubprocessTransport) -> None:
        leader = transport.get_pid()
        try:
            await self.take_stock()
            stdin = self._stdin()
            if stdin is not None:
                # A child that does not read would never let the queued bytes out, nor see the end of its input.
                stdin.abort() if stdin.get_write_buffer_size() else stdin.close()
            await self._wait(self._exited.wait(), GRACE_S)
            await self.take_stock()
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not self._left():
                    break
                proctree.send(number, leader, self._family)
                await self._wait(self._until_gone(), GRACE_S)
                await self.take_stock()
        except asyncio.CancelledError:  # the loop itself is ending: no more time for manners
            if self._left():
                proctree.send(signal.SIGKILL, leader, self._family)
            raise
        finally:
            transport.close()
        await self._wait(self._exited.wait(), GRACE_S)
        proctree.reap(process for process in self._family if process.pid != leader)  # the leader is asyncio's
        self._end()

    def _left(self) -> bool:
        if not self._exited.is_set():
            return True
        if proctree.HAS_PROC:
            return bool(proctree.alive(self._family))
        return self.pid is not None and proctree.group_exists(self.pid)

    async def _until_gone(self) -> None:
        while self._left():  # noqa: ASYNC110 - processes that are not our children tell nobody
            await asyncio.sleep(_POLL_S)

    @staticmethod
    async def _wait(what: Awaitable[object], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(what, timeout_s)
