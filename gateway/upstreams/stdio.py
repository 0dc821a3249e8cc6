"""The stdio connector: a server that we start, one JSON-RPC message per line over its standard input and output.

Requests and answers are matched by :mod:`gateway.upstreams.dialogue`. The era is found by probing (facts in
:mod:`gateway.upstreams.era`): silence is weak evidence, since most silent servers were only slow to start, so after a
short wait the handshake is sent *and* a late answer to the probe still counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.config.model import StdioUpstream
from gateway.upstreams import era, rpc
from gateway.upstreams.base import (
    MODERN_VERSION,
    Beside,
    Era,
    ServerInfo,
    UpstreamFailed,
    UpstreamTimedOut,
)
from gateway.upstreams.child import Child
from gateway.upstreams.dialogue import ByDialogue, Dialogue, Noise, Waiting
from gateway.upstreams.environment import CommandNotFound, child_environment, find_command, secrets_of
from gateway.upstreams.framer import LineFramer, LineTooLong
from gateway.upstreams.redact import Redactor

log = logging.getLogger("gateway.upstreams")

PROBE_S = 3.0
"""How long ``server/discover`` may stay unanswered before ``initialize`` is sent too, seconds."""


class StdioConnector(ByDialogue):
    """One started server.

    Args:
        name: of the upstream, for errors.
        config: command, arguments, environment, folder.
        folder: what a relative ``cwd`` is relative to, and the default of ``cwd``.
        known_era: the verdict of an earlier connection: ``legacy`` spares the probe.
        on_list_changed: called when the server says that its tools have changed.
        on_announced: called with method and params (JSON bytes) of each announcement, that one included.
    """

    def __init__(
        self,
        name: str,
        config: StdioUpstream,
        folder: Path,
        *,
        known_era: Era | None = None,
        on_list_changed: Callable[[], None] = lambda: None,
        on_announced: Callable[[str, bytes], None] = lambda method, params: None,
    ) -> None:
        self._name = name
        self._config = config
        self._cwd = folder / config.cwd if config.cwd else folder
        self._known_era = known_era
        self._environment = child_environment(config.env)
        self._redactor = Redactor(secrets_of(self._environment, config.env, config.args))
        self._framer = LineFramer()
        self._child: Child | None = None
        self._dialogue = Dialogue(
            name,
            self._send,
            self._answer_courteously,
            self._writable,
            declared=config.client_capabilities,
            redactor=self._redactor,
            on_list_changed=on_list_changed,
            on_announced=on_announced,
        )

    @property
    def noise(self) -> Noise:
        """What the server wrote that nobody could use."""
        return self._dialogue.noise

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
        self._dialogue.era = info.era
        self._dialogue.forget_all()
        if info.era == "legacy":
            self._send(rpc.notification("notifications/initialized"))
        elif lists := era.announced_lists(info):
            # Its answer comes when the stream ends, and nobody waits for that.
            listen = rpc.modern_params(era.listen_params(lists))
            self._send(rpc.request(self._dialogue.next_id(), "subscriptions/listen", listen))
        return info

    async def request(
        self, method: str, params: Mapping[str, Any] | bytes, timeout_s: float, beside: Beside | None = None
    ) -> bytes:
        """See :class:`gateway.upstreams.base.Connector`."""
        response = await self._dialogue.request(method, params, timeout_s, beside)
        if response.error is not None and era.doubts_era(self._dialogue.era, method, response) == "yes":
            raise self._lose("handshake", "it no longer speaks the protocol version it began with")
        return self._dialogue.result(response)

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
            probe = self._dialogue.ask("server/discover", rpc.modern_params({}))
            await asyncio.wait({probe}, timeout=PROBE_S)
            if probe.done():
                info = await self._judged(probe.result())
                if info is not None:
                    return info
                probe = None
        hello = self._dialogue.ask("initialize", rpc.initialize_params(self._config.client_capabilities))
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
            info = await self._judged(await self._dialogue.ask("server/discover", rpc.modern_params({})))
            if info is not None:
                return info
        text = self._redactor.one_line(hello.error.message, 200)
        raise self._lose("handshake", f"it refused initialize with error {hello.error.code}", detail=text)

    async def _judged(self, answer: rpc.Response, *, again: bool = True) -> ServerInfo | None:
        """The server's information when the probe says modern, None when it says legacy."""
        verdict = era.judge_probe(answer)
        if verdict.kind == "again" and again:
            return await self._judged(await self._dialogue.ask("server/discover", rpc.modern_params({})), again=False)
        if verdict.kind == "incompatible":
            raise self._lose("handshake", verdict.reason)
        if verdict.kind == "modern":
            return verdict.info or ServerInfo("modern", MODERN_VERSION)
        return None

    # ------------------------------------------------------------------- lines

    def _send(self, message: bytes, waiting: Waiting | None = None) -> None:
        # Raw arguments may be pretty-printed JSON, and a line end is the end of a message. Inside of strings JSON has
        # none.
        if b"\n" in message or b"\r" in message:
            message = message.replace(b"\n", b" ").replace(b"\r", b" ")
        if self._child is not None:
            self._child.write(message + b"\n")

    async def _writable(self) -> None:
        if self._child is not None and not self._child.can_write():
            await self._child.writable()

    def _answer_courteously(self, message: bytes) -> None:
        """A server that asks faster than it reads gets no answer to the rest."""
        if self._child is not None and self._child.can_write():
            self._send(message)

    def _receive(self, chunk: bytes) -> None:
        if self.closed:
            return
        try:
            lines = self._framer.feed(chunk)
        except LineTooLong as error:
            self._lose("closed", str(error))
            return
        for line in lines:
            self._dialogue.take(rpc.classify(line) if line.startswith(b"{") else rpc.Garbage("it is no JSON object"))

    # --------------------------------------------------------------------- end

    def _ended(self, reason: str) -> None:
        self._lose("exit", reason)

    def _lose(self, stage: Any, reason: str, *, detail: str = "") -> UpstreamFailed:
        """Mark the connection as unusable and answer everything that waits. The first reason stays."""
        if stage in ("exit", "handshake") and not detail:
            detail = " | ".join(self.stderr_tail()[-5:])[-1000:]
        return self._dialogue.end(UpstreamFailed(self._name, stage, reason, detail=detail))

    def _failure(self, why: UpstreamFailed, *, delivered: bool) -> UpstreamFailed:
        return UpstreamFailed(self._name, why.stage, why.reason, detail=why.detail, delivered=delivered)
