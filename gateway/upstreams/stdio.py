"""The stdio connector: a server that we start, one JSON-RPC message per line over its standard input and output.

Theory of operation: answers are matched to requests by id in one table, ``_waiting``. Whatever ends the process answers
everything in that table at once with the same typed failure. A line that cannot be read fails the one request that it
names, and no other. The era is found by probing (facts in :mod:`gateway.upstreams.era`): silence is weak evidence,
since most silent servers were only slow to start, so after a short wait the handshake is sent *and* a late answer to
the probe still counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config.model import StdioUpstream
from gateway.upstreams import era, rpc
from gateway.upstreams.base import MODERN_VERSION, Era, RpcFailed, ServerInfo, UpstreamFailed, UpstreamTimedOut
from gateway.upstreams.child import Child
from gateway.upstreams.environment import CommandNotFound, child_environment, find_command, secrets_of
from gateway.upstreams.framer import LineFramer, LineTooLong
from gateway.upstreams.redact import Redactor

log = logging.getLogger("gateway.upstreams")

PROBE_S = 3.0
"""How long ``server/discover`` may stay unanswered before ``initialize`` is sent too, seconds."""


SUSPICION_S = 0.5
"""How long after a line that may have been meant as the answer the true answer may still come, seconds."""


@dataclass(slots=True)
class Noise:
    """What a server sent that nobody could use; counted, logged once per connection.

    Attributes:
        garbage: lines that are no JSON-RPC.
        stray: answers to requests that nobody waits for (late, doubled, never asked).
    """

    garbage: int = 0
    stray: int = 0


class StdioConnector:
    """One started server.

    Args:
        name: of the upstream, for errors.
        config: command, arguments, environment, folder.
        folder: what a relative ``cwd`` is relative to, and the default of ``cwd``.
        known_era: the verdict of an earlier connection: ``legacy`` spares the probe.
        on_list_changed: called when the server says that its tools have changed.
    """

    def __init__(
        self,
        name: str,
        config: StdioUpstream,
        folder: Path,
        *,
        known_era: Era | None = None,
        on_list_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.noise = Noise()
        self._name = name
        self._config = config
        self._cwd = folder / config.cwd if config.cwd else folder
        self._known_era = known_era
        self._on_list_changed = on_list_changed
        self._environment = child_environment(config.env)
        self._redactor = Redactor(secrets_of(self._environment, config.env, config.args))
        self._framer = LineFramer()
        self._child: Child | None = None
        self._era: Era = "legacy"
        # request id → who waits for its answer; set by _expect, taken away by _take_waiter
        self._waiting: dict[int, asyncio.Future[rpc.Response]] = {}
        self._last_id = 0
        self._logs_json = False  # it writes JSON that is no JSON-RPC to stdout now and then
        self._suspected: int | None = None  # the request that such a line may have been meant for
        self._closed: asyncio.Future[UpstreamFailed] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def stderr_tail(self) -> list[str]:
        """The last lines that the server wrote to stderr, cleaned; for the operator."""
        return self._child.stderr.lines() if self._child else []

    # -------------------------------------------------------------- Connector

    async def open(self, timeout_s: float) -> ServerInfo:
        """See :class:`gateway.upstreams.base.Connector`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._spawn()
                info = await self._handshake()
                if self._child is not None:
                    await self._child.take_stock()
        except TimeoutError:
            raise UpstreamTimedOut(self._name, "the handshake", timeout_s) from None
        except UpstreamFailed as failure:
            raise self._failure(failure, delivered=False) from None
        self._era = info.era
        self._waiting.clear()  # of two handshakes one may still be unanswered
        if info.era == "legacy":
            self._send(rpc.notification("notifications/initialized"))
        elif era.announces_list_changes(info):
            # Its answer comes when the stream ends, and nobody waits for that.
            listen = rpc.modern_params({"notifications": {"toolsListChanged": True}})
            self._send(rpc.request(self._next_id(), "subscriptions/listen", listen))
        return info

    async def request(self, method: str, params: Mapping[str, Any] | bytes, timeout_s: float) -> bytes:
        """See :class:`gateway.upstreams.base.Connector`."""
        full = rpc.modern_params(params) if self._era == "modern" else rpc.legacy_params(params)
        message_id = self._next_id()
        message = rpc.request(message_id, method, full)
        sent = False
        try:
            async with asyncio.timeout(timeout_s):
                await self._writable()
                answer = self._expect(message_id)
                self._send(message)
                sent = True
                response = await answer
        except TimeoutError:
            if sent:
                self._send(rpc.cancelled(message_id))
                raise UpstreamTimedOut(self._name, method, timeout_s) from None
            raise UpstreamFailed(self._name, "call", f"it has read nothing for {timeout_s:g} s") from None
        except asyncio.CancelledError:
            if sent:
                self._send(rpc.cancelled(message_id))
            raise
        finally:
            self._waiting.pop(message_id, None)
        if response.error is not None:
            if era.doubts_era(self._era, method, response) == "yes":
                raise self._lose("handshake", "it no longer speaks the protocol version it began with")
            raise RpcFailed(self._name, response.error.code, response.error.message, response.error.data)
        return response.result or b"null"

    @property
    def closed(self) -> bool:
        """See :class:`gateway.upstreams.base.Connector`."""
        return self._closed.done()

    async def wait_closed(self) -> UpstreamFailed:
        """See :class:`gateway.upstreams.base.Connector`."""
        return await asyncio.shield(self._closed)

    async def close(self) -> None:
        """See :class:`gateway.upstreams.base.Connector`. Takes about six seconds at the very most."""
        self._lose("closed", "the gateway closed the connection")
        if self._child is not None:
            await self._child.stop()
        if self.noise.garbage or self.noise.stray:
            log.info(
                "upstream %s: %d unreadable lines, %d stray answers", self._name, self.noise.garbage, self.noise.stray
            )

    # ------------------------------------------------------------------ start

    async def _spawn(self) -> None:
        try:
            command = find_command(self._config.command, self._environment, self._cwd)
            self._child = Child(self._receive, self._ended, self._redactor)
            await self._child.spawn([command, *self._config.args], self._environment, self._cwd)
        except CommandNotFound as error:
            raise self._lose("spawn", str(error)) from None
        except OSError as error:
            raise self._lose("spawn", f"the command could not be started: {error.strerror}") from None
        except ValueError:  # a NUL byte in an argument or a variable
            raise self._lose("spawn", "the command, an argument or a variable holds a NUL character") from None

    async def _handshake(self) -> ServerInfo:
        probe: asyncio.Future[rpc.Response] | None = None
        if self._known_era != "legacy":
            probe = self._ask("server/discover", rpc.modern_params({}))
            await asyncio.wait({probe}, timeout=PROBE_S)
            if probe.done():
                info = await self._judged(probe.result())
                if info is not None:
                    return info
                probe = None
        hello = self._ask("initialize", rpc.initialize_params())
        while not hello.done():
            await asyncio.wait({hello, probe} if probe else {hello}, return_when=asyncio.FIRST_COMPLETED)
            if probe is not None and probe.done():  # late, but it counts
                info = await self._judged(probe.result())
                if info is not None:
                    return info
                probe = None
        if probe is not None and hello.result().error is not None:
            await asyncio.wait({probe}, timeout=2 * PROBE_S)
            info = await self._judged(probe.result()) if probe.done() else None
            if info is not None:
                return info
        return await self._greeted(hello.result())

    async def _greeted(self, hello: rpc.Response) -> ServerInfo:
        """What the answer to ``initialize`` means."""
        if hello.error is None:
            info = era.info_from_initialize(hello.result or b"")
            if info is None:
                raise self._lose("handshake", "it answered initialize without a protocol version that we speak")
            return info
        if self._known_era == "legacy" or era.was_modern_after_all(hello.error):
            # What an earlier connection learnt may be out of date, and a silent probe may have been lost.
            info = await self._judged(await self._ask("server/discover", rpc.modern_params({})))
            if info is not None:
                return info
        text = self._redactor.one_line(hello.error.message, 200)
        raise self._lose("handshake", f"it refused initialize with error {hello.error.code}", detail=text)

    async def _judged(self, answer: rpc.Response, *, again: bool = True) -> ServerInfo | None:
        """The server's information when the probe says modern, None when it says legacy."""
        verdict = era.judge_probe(answer)
        if verdict.kind == "again" and again:
            return await self._judged(await self._ask("server/discover", rpc.modern_params({})), again=False)
        if verdict.kind == "incompatible":
            raise self._lose("handshake", verdict.reason)
        if verdict.kind == "modern":
            return verdict.info or ServerInfo("modern", MODERN_VERSION)
        return None

    # ----------------------------------------------------------------- sending

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _expect(self, message_id: int) -> asyncio.Future[rpc.Response]:
        if self._closed.done():
            raise self._failure(self._closed.result(), delivered=False)
        answer: asyncio.Future[rpc.Response] = asyncio.get_running_loop().create_future()
        self._waiting[message_id] = answer
        return answer

    def _ask(self, method: str, params: Mapping[str, Any]) -> asyncio.Future[rpc.Response]:
        message_id = self._next_id()
        answer = self._expect(message_id)
        self._send(rpc.request(message_id, method, params))
        return answer

    def _send(self, message: bytes) -> None:
        # Raw arguments may be pretty-printed JSON, and a line end is the end of a message. Inside of strings JSON has
        # none.
        if b"\n" in message or b"\r" in message:
            message = message.replace(b"\n", b" ").replace(b"\r", b" ")
        if self._child is not None:
            self._child.write(message + b"\n")

    async def _writable(self) -> None:
        if self._child is not None and not self._child.can_write():
            await self._child.writable()

    # --------------------------------------------------------------- receiving

    def _receive(self, chunk: bytes) -> None:
        if self._closed.done():
            return
        try:
            lines = self._framer.feed(chunk)
        except LineTooLong as error:
            self._lose("closed", str(error))
            return
        for line in lines:
            self._take(rpc.classify(line) if line.startswith(b"{") else rpc.Garbage("it is no JSON object"))

    def _take(self, message: rpc.Incoming) -> None:
        match message:
            case rpc.Response():
                self._answer(message)
            case rpc.Request():
                if self._child is not None and self._child.can_write():
                    self._send(rpc.answer_to(message))
            case rpc.Notification(method=method):
                if method == rpc.LIST_CHANGED:
                    self._on_list_changed()
            case rpc.Garbage():
                self.noise.garbage += 1
                if self.noise.garbage == 1:
                    log.warning("upstream %s wrote a line that is no message: %s", self._name, message.reason)
                waiting = self._take_waiter(message.id)
                if waiting is not None:
                    self._fail(waiting, self._malformed(message.reason))
                elif message.is_json and message.id is None:
                    self._suspect(message.reason)

    def _suspect(self, reason: str) -> None:
        """A JSON object that is no JSON-RPC: a log line, or the answer to the only open request?

        Servers that log JSON to stdout do so at other times too, and then they answer. So only when that has never
        been seen, and no answer follows, the request is failed rather than left to its deadline.
        """
        if self._logs_json or len(self._waiting) != 1:
            self._logs_json = True
            return
        (message_id,) = self._waiting
        self._suspected = message_id

        def decide() -> None:
            if not self._logs_json and (waiting := self._take_waiter(message_id)) is not None:
                self._fail(waiting, self._malformed(reason))

        asyncio.get_running_loop().call_later(SUSPICION_S, decide)

    def _answer(self, response: rpc.Response) -> None:
        if self._suspected is not None and rpc.same_id(response.id, self._suspected):
            self._logs_json = True  # so the line was no answer
        waiting = self._take_waiter(response.id)
        if waiting is not None:
            waiting.set_result(response)
            return
        self.noise.stray += 1
        if response.id in (None, 0, "0") and len(self._waiting) == 1:
            # It lost the id on the way, or could not read our request. With one request open it can mean no other.
            (only,) = self._waiting.values()
            self._fail(only, self._malformed("it names no request"))

    def _take_waiter(self, message_id: rpc.MessageId | None) -> asyncio.Future[rpc.Response] | None:
        if isinstance(message_id, str):
            message_id = int(message_id) if message_id.isdecimal() and len(message_id) < 19 else None
        waiting = self._waiting.pop(message_id, None) if message_id is not None else None
        return waiting if waiting is not None and not waiting.done() else None

    # --------------------------------------------------------------------- end

    def _ended(self, reason: str) -> None:
        self._lose("exit", reason)

    def _lose(self, stage: Any, reason: str, *, detail: str = "") -> UpstreamFailed:
        """Mark the connection as unusable and answer everything that waits. The first reason stays."""
        if not self._closed.done():
            if stage in ("exit", "handshake") and not detail:
                detail = " | ".join(self.stderr_tail()[-5:])[-1000:]
            self._closed.set_result(UpstreamFailed(self._name, stage, reason, detail=detail))
        failure = self._closed.result()
        for waiting in self._waiting.values():
            self._fail(waiting, self._failure(failure, delivered=True))
        return failure

    def _failure(self, why: UpstreamFailed, *, delivered: bool) -> UpstreamFailed:
        return UpstreamFailed(self._name, why.stage, why.reason, detail=why.detail, delivered=delivered)

    def _malformed(self, reason: str) -> UpstreamFailed:
        return UpstreamFailed(self._name, "call", f"its answer was malformed: {reason}", delivered=True)

    @staticmethod
    def _fail(waiting: asyncio.Future[rpc.Response], failure: UpstreamFailed) -> None:
        if not waiting.done():
            waiting.set_exception(failure)
            with contextlib.suppress(UpstreamFailed):
                waiting.result()  # somebody may have stopped waiting; then asyncio must not complain
