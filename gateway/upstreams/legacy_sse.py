"""The HTTP+SSE connector of 2024-11-05: one event stream for everything the server says, one POST for each message.

The stream is opened first; its ``endpoint`` event names where to POST, on the same origin only. POSTs are answered with
202, and what they asked for comes as a ``message`` event, matched by :mod:`gateway.upstreams.dialogue`. So the stream
is the connection: when it ends, everything in flight has failed and the connector with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urljoin

from gateway.config.model import HttpUpstream
from gateway.errors import GatewayError
from gateway.upstreams import era, rpc
from gateway.upstreams.base import (
    MAX_MESSAGE_BYTES,
    Beside,
    ServerInfo,
    Stage,
    UpstreamFailed,
    UpstreamTimedOut,
)
from gateway.upstreams.dialogue import ByDialogue, Dialogue, Waiting
from gateway.upstreams.errands import Errands, send_off
from gateway.upstreams.httphead import BadTarget, Target, parse_target, request_head
from gateway.upstreams.httpreply import Reply, ReplyReader, media_type
from gateway.upstreams.httpwire import Answer, Pool, WireFailed
from gateway.upstreams.redact import Redactor
from gateway.upstreams.sse import Event, EventTooLarge, SseParser

POST_S = 10.0
"""How long the server may take to say that it has a request, seconds."""
_GONE = (404, 410)  # to a POST: the server knows the stream no longer


class OldTransport(UpstreamFailed):
    """A server that was taken for streamable HTTP speaks HTTP+SSE: connect again with :class:`LegacySseConnector`."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream, "handshake", "it speaks the HTTP+SSE transport of 2024-11-05")


async def begins_with_endpoint(answer: Answer) -> bool:
    """Whether the answer to a GET is an event stream that names where to POST. The caller sets the deadline."""
    if answer.status != 200 or media_type(answer) != "text/event-stream":
        return False
    try:
        async for event in _events(answer):
            return event.type == "endpoint"
    except (WireFailed, EventTooLarge):
        pass
    return False


class LegacySseConnector(ByDialogue):
    """One server that is reached over HTTP+SSE.

    Args:
        name: of the upstream, for errors.
        config: URL of the stream, and headers, which the POSTs carry too.
        on_list_changed: called when the server says that its tools have changed.
        on_announced: called with method and params (JSON bytes) of each announcement, that one included.

    Raises:
        UpstreamFailed: the URL or a header cannot be used.
    """

    def __init__(
        self,
        name: str,
        config: HttpUpstream,
        *,
        on_list_changed: Callable[[], None] = lambda: None,
        on_announced: Callable[[str, bytes], None] = lambda method, params: None,
    ) -> None:
        self._name = name
        self._config = config
        try:
            self._target = parse_target(config.url, config.headers)
        except BadTarget as error:
            raise UpstreamFailed(name, "connect", str(error)) from None
        self._post_to = self._target  # replaced by the endpoint event
        self._redactor = Redactor(self._target.secrets)
        self._reader = ReplyReader(name, self._redactor)
        self._pool = Pool(self._target)
        self._requests = Errands(name, most=10_000)
        self._courtesies = Errands(name)
        self._reading: asyncio.Task[None] | None = None
        self._endpoint_known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dialogue = Dialogue(
            name,
            self._send,
            self._answer_courteously,
            _always,
            declared=config.client_capabilities,
            redactor=self._redactor,
            on_list_changed=on_list_changed,
            on_announced=on_announced,
        )

    # -------------------------------------------------------------- Connector

    async def open(self, timeout_s: float) -> ServerInfo:
        """See :class:`gateway.upstreams.base.Connector`."""
        self._reading = asyncio.create_task(self._read(), name=f"upstream {self._name}: event stream")
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_endpoint()
                hello = await self._dialogue.ask("initialize", rpc.initialize_params(self._config.client_capabilities))
        except TimeoutError:
            raise UpstreamTimedOut(self._name, "the handshake", timeout_s) from None
        if hello.error is not None:
            reason = f"it refused initialize with error {hello.error.code}"
            detail = self._redactor.one_line(hello.error.message, 200)
            raise UpstreamFailed(self._name, "handshake", reason, detail=detail)
        info = era.info_from_initialize(hello.result or b"")
        if info is None:
            reason = "it answered initialize without a protocol version that we speak"
            raise UpstreamFailed(self._name, "handshake", reason)
        self._send(rpc.notification("notifications/initialized"), None)
        return info

    async def request(
        self, method: str, params: Mapping[str, Any] | bytes, timeout_s: float, beside: Beside | None = None
    ) -> bytes:
        """See :class:`gateway.upstreams.base.Connector`."""
        return self._dialogue.result(await self._dialogue.request(method, params, timeout_s, beside))

    async def close(self) -> None:
        """See :class:`gateway.upstreams.base.Connector`. Takes some seconds at the very most."""
        self._dialogue.end(UpstreamFailed(self._name, "closed", "the gateway closed the connection"))
        await self._courtesies.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._pool.close()  # ends the requests that are still being sent
        await self._requests.close()

    # -------------------------------------------------------------- the stream

    async def _read(self) -> None:
        """Owns the stream from its request to its end, which is the end of the connection.

        Without a deadline on reading: silence is what it is for. A dead peer is noticed by TCP keep-alive.
        """
        try:
            answer = await self._pool.send(request_head(self._target, "GET", {}, None))
            try:
                await self._follow(answer)
            finally:
                answer.release()
            failure = UpstreamFailed(self._name, "closed", "its event stream has ended")
        except EventTooLarge:
            failure = UpstreamFailed(self._name, "closed", f"a message is larger than {MAX_MESSAGE_BYTES >> 20} MiB")
        except WireFailed as error:
            failure = self._broken(error)
        except GatewayError as error:
            failure = error if isinstance(error, UpstreamFailed) else self._no_stream()
        self._dialogue.end(failure)

    async def _follow(self, answer: Answer) -> None:
        if answer.status != 200:
            reply = await self._reader.read(answer, 0, _nobody_hears)
            raise self._reader.refusal(reply, "GET")
        if media_type(answer) != "text/event-stream":
            raise self._no_stream()
        async for event in _events(answer):
            if event.type == "message":
                self._dialogue.take(rpc.classify(event.data))
            elif event.type == "endpoint" and not self._endpoint_known.done():
                self._post_to = self._endpoint(event.data.decode("utf-8", "replace").strip())
                self._endpoint_known.set_result(None)

    def _no_stream(self) -> UpstreamFailed:
        return UpstreamFailed(self._name, "handshake", "it answered GET with something that is no event stream")

    def _endpoint(self, said: str) -> Target:
        """Where to POST. Credentials go along, so only to where the stream is."""
        try:
            named = parse_target(urljoin(self._config.url, said), {})
        except (BadTarget, ValueError):
            reason = "its endpoint event names no address that can be used"
            raise UpstreamFailed(self._name, "handshake", reason) from None
        own = self._target
        if (named.tls, named.host, named.port) != (own.tls, own.host, own.port):
            raise UpstreamFailed(self._name, "handshake", "its endpoint event points to another origin")
        return replace(own, path=named.path)

    async def _until_endpoint(self) -> None:
        """Raises UpstreamFailed when the stream ends before it."""
        either: set[asyncio.Future[Any]] = {self._endpoint_known, self._dialogue.closed}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self.closed:
            raise self._dialogue.closed.result()

    # ----------------------------------------------------------------- sending

    def _send(self, message: bytes, waiting: Waiting | None) -> None:
        if waiting is None:
            self._courtesies.start(send_off(self._pool, self._head(message), message))
        elif not self._requests.start(self._post(message, waiting)):
            self._dialogue.fail(waiting, UpstreamFailed(self._name, "call", "too many requests are on their way"))

    def _answer_courteously(self, message: bytes) -> None:
        self._send(message, None)

    def _head(self, body: bytes) -> bytes:
        return request_head(self._post_to, "POST", {}, len(body))

    async def _post(self, message: bytes, waiting: Waiting) -> None:
        """Hand one request over; the answer comes on the stream, perhaps before this has ended."""
        try:
            async with asyncio.timeout(POST_S):
                answer = await self._pool.send(self._head(message), message)
                try:
                    if answer.status < 300:
                        answer.finished = True
                        return
                    reply = await self._reader.read(answer, waiting.id, _nobody_hears)
                finally:
                    answer.release()
        except WireFailed as error:
            self._dialogue.fail(waiting, self._broken(error))
        except TimeoutError:
            reason = f"it did not take the request within {POST_S:g} s"
            self._dialogue.fail(waiting, UpstreamFailed(self._name, "call", reason, delivered=True))
        else:
            self._dialogue.fail(waiting, self._refusal(reply, waiting.method))
            if reply.status in _GONE:
                self._dialogue.end(UpstreamFailed(self._name, "closed", "it has forgotten the event stream"))

    def _refusal(self, reply: Reply, method: str) -> GatewayError:
        try:
            self._reader.result(reply, method)
        except GatewayError as refusal:
            return refusal
        return self._reader.refusal(reply, method)

    def _broken(self, error: WireFailed) -> UpstreamFailed:
        stage: Stage = "closed" if error.connected else "connect"
        return UpstreamFailed(
            self._name, stage, error.reason, detail=self._target.authority, delivered=error.sent and error.connected
        )


async def _events(answer: Answer) -> AsyncIterator[Event]:
    """The events of a stream as they come. Raises WireFailed, EventTooLarge."""
    parser = SseParser()
    while (pieces := await answer.more()) is not None:
        for piece in pieces:
            for event in parser.feed(piece):
                yield event


async def _always() -> None:
    """Every request can be taken on its way: each has a connection of its own."""


def _nobody_hears(message: rpc.Request | rpc.Notification) -> None:
    """The body of a refusal says nothing else."""
