"""Requests and answers over one shared stream of messages, matched by id: what stdio and HTTP+SSE have in common.

Theory of operation: everybody who waits for an answer stands in one table, ``_waiting``. Whatever ends the stream
answers everything in that table at once with the same typed failure. A message that cannot be read fails the one
request that it names, and no other.

What a server says beside answers names no request here, except progress. So log messages and questions are given to a
caller only while one request is in flight and it is that caller's: an upstream is shared, and another tenant's call
may be what they are about. Otherwise log messages are dropped, and questions get the answer of a client that has no
user.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import GatewayError
from gateway.upstreams import era, rpc
from gateway.upstreams.base import CALLER, Beside, Era, RpcFailed, UpstreamFailed, UpstreamTimedOut
from gateway.upstreams.beside import ANNOUNCEMENTS, ASKS_FOR_INPUT, MAY_ASK, Talk, for_the_caller
from gateway.upstreams.errors import rpc_failed
from gateway.upstreams.redact import Redactor
from gateway.upstreams.results import input_required

log = logging.getLogger("gateway.upstreams")

SUSPICION_S = 0.5
"""How long after a message that may have been meant as the answer the true answer may still come, seconds."""

ABANDONED_S = 600.0
"""How long a request that nobody waits for any more may still be at work in the server, seconds."""
_MOST_ABANDONED = 10_000

_OF_OUR_SUBSCRIPTION = "notifications/subscriptions/"


@dataclass(slots=True)
class Noise:
    """What a server sent that nobody could use; counted, logged once per connection.

    Attributes:
        garbage: messages that are no JSON-RPC.
        stray: answers to requests that nobody waits for (late, doubled, never asked).
    """

    garbage: int = 0
    stray: int = 0


@dataclass(slots=True, eq=False)
class Waiting:
    """One request that is not answered yet.

    Attributes:
        answer: None until it is sent.
        talk: with whoever is beside it.
        over: the server has answered, however badly: it says nothing more of this request.
        caller: for whom it was sent, see :data:`gateway.upstreams.base.CALLER`.
    """

    id: int
    method: str
    talk: Talk | None = None
    over: bool = False
    caller: str = field(default_factory=CALLER.get)
    answer: asyncio.Future[rpc.Response] | None = None


class Dialogue:
    """One connection's requests, from their sending to their answers.

    Args:
        upstream: for the errors.
        send: takes one message on its way; never waits. With a :class:`Waiting` it is a request, and whoever cannot
            send it calls :meth:`fail`.
        courtesy: the same for answers to requests of the server; may drop them.
        writable: returns when a further request can be taken on its way.
        declared: the client capabilities of the handshake.
        redactor: takes the upstream's secrets out of its errors.
        on_list_changed, on_announced: as for the connector.

    Attributes:
        era: what the connection speaks; set by the connector.
        noise: what could not be used.
        closed: why the stream ended; set by :meth:`end`.
    """

    def __init__(
        self,
        upstream: str,
        send: Callable[[bytes, Waiting | None], None],
        courtesy: Callable[[bytes], None],
        writable: Callable[[], Awaitable[None]],
        *,
        declared: tuple[str, ...],
        redactor: Redactor,
        on_list_changed: Callable[[], None],
        on_announced: Callable[[str, bytes], None],
    ) -> None:
        self.era: Era = "legacy"
        self.noise = Noise()
        self.closed: asyncio.Future[UpstreamFailed] = asyncio.get_running_loop().create_future()
        self._upstream = upstream
        self._send = send
        self._courtesy = courtesy
        self._writable = writable
        self._declared = declared
        self._redactor = redactor
        self._on_list_changed = on_list_changed
        self._on_announced = on_announced
        # request id → who waits for its answer; set by _expect, taken away by _take_waiter
        self._waiting: dict[int, Waiting] = {}
        # request id → when it was given up (cancelled, timed out, failed), and whose it was. The server may not have
        # stopped, and what it says meanwhile may be meant for that caller. Taken away by a late answer.
        self._abandoned: dict[int, tuple[float, str]] = {}
        self._last_id = 0
        self._followed: set[str] = set()  # resources that a legacy server was asked to tell of; by follow() only
        self._updates: int | None = None  # the request of the modern stream that tells of them; by follow() only
        self._acknowledged: asyncio.Future[None] | None = None  # that the server has read it; by follow() only
        self._logs_json = False  # it sends JSON that is no JSON-RPC now and then
        self._suspected: int | None = None  # the request that such a message may have been meant for

    # ----------------------------------------------------------------- sending

    async def request(
        self, method: str, params: Mapping[str, Any] | bytes, timeout_s: float, beside: Beside | None = None
    ) -> rpc.Response:
        """One request of a caller.

        Raises:
            UpstreamFailed, UpstreamTimedOut, InputRequired
        """
        waiting = Waiting(self.next_id(), method)
        try:
            if beside is None:
                async with asyncio.timeout(timeout_s):
                    return await self._exchange(waiting, params)
            async with Talk(beside, waiting.id, timeout_s) as talk, talk.deadline:
                waiting.talk = talk
                return await self._exchange(waiting, params)
        except TimeoutError:
            if waiting.answer is not None:
                raise UpstreamTimedOut(self._upstream, method, timeout_s) from None
            raise UpstreamFailed(self._upstream, "call", f"it has read nothing for {timeout_s:g} s") from None

    async def _exchange(self, waiting: Waiting, params: Mapping[str, Any] | bytes) -> rpc.Response:
        talk = waiting.talk
        token = talk.token if talk is not None else None
        if self.era == "modern":
            full = rpc.modern_params(params, talk.beside if talk is not None else None, token)
        else:
            full = rpc.legacy_params(params, token)
        message = rpc.request(waiting.id, waiting.method, full)
        await self._writable()
        answer = self._expect(waiting)
        try:
            self._send(message, waiting)
            response = await answer
            waiting.over = True
            return response
        except asyncio.CancelledError:
            self._send(rpc.cancelled(waiting.id), None)
            raise
        finally:
            self._waiting.pop(waiting.id, None)
            if not waiting.over and not self.closed.done():
                self._abandoned[waiting.id] = (asyncio.get_running_loop().time(), waiting.caller)
                if len(self._abandoned) > _MOST_ABANDONED:
                    self._abandoned.pop(next(iter(self._abandoned)))

    def ask(self, method: str, params: Mapping[str, Any]) -> asyncio.Future[rpc.Response]:
        """One request of the handshake. The caller sets the deadline."""
        waiting = Waiting(self.next_id(), method)
        answer = self._expect(waiting)
        self._send(rpc.request(waiting.id, method, params), waiting)
        return answer

    async def follow(self, uris: Collection[str], timeout_s: float) -> Mapping[str, RpcFailed]:
        """See :class:`gateway.upstreams.base.Connector`. What a legacy server goes on telling besides is nobody's."""
        refused: dict[str, RpcFailed] = {}
        if self.era == "legacy":
            for uri in set(uris) - self._followed:
                try:
                    self.result(await self.request("resources/subscribe", {"uri": uri}, timeout_s))
                    self._followed.add(uri)
                except RpcFailed as refusal:
                    refused[uri] = refusal
            return refused
        last, self._updates = self._updates, self.next_id()
        acknowledged = self._acknowledged = asyncio.get_running_loop().create_future()
        # its answer comes when the stream ends, and nobody waits for that
        listen = rpc.modern_params(era.listen_params((), uris))
        self._send(rpc.request(self._updates, "subscriptions/listen", listen), None)
        await asyncio.wait({acknowledged, self.closed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if last is not None:
            self._send(rpc.cancelled(last), None)
        return refused

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def forget_all(self) -> None:
        """Of two handshakes one may still be unanswered; nobody waits for it any more."""
        self._waiting.clear()

    def _expect(self, waiting: Waiting) -> asyncio.Future[rpc.Response]:
        if self.closed.done():
            raise self._failure(self.closed.result(), delivered=False)
        waiting.answer = asyncio.get_running_loop().create_future()
        self._waiting[waiting.id] = waiting
        return waiting.answer

    def result(self, response: rpc.Response) -> bytes:
        """JSON bytes of the ``result``.

        Raises:
            RpcFailed
        """
        if response.error is not None:
            raise rpc_failed(self._upstream, response.error, self._redactor)
        return response.result or b"null"

    # --------------------------------------------------------------- receiving

    def take(self, message: rpc.Incoming) -> None:
        """One message of the server."""
        match message:
            case rpc.Response():
                self._answer(message)
            case rpc.Request():
                self._asked(message)
            case rpc.Notification():
                self._told(message)
            case rpc.Garbage():
                self.noise.garbage += 1
                if self.noise.garbage == 1:
                    log.warning("upstream %s wrote a line that is no message: %s", self._upstream, message.reason)
                waiting = self._take_waiter(message.id)
                if waiting is not None:
                    waiting.over = True
                    _fail(waiting, self._malformed(message.reason))
                elif message.is_json and message.id is None:
                    self._suspect(message.reason)

    def _told(self, news: rpc.Notification) -> None:
        if news.method in ANNOUNCEMENTS:
            if news.method == rpc.LIST_CHANGED:
                self._on_list_changed()
            self._on_announced(news.method, news.params)
        elif news.method in (rpc.PROGRESS, rpc.CANCELLED):
            for waiting in self._waiting.values():
                if waiting.talk is not None:
                    waiting.talk.take(news, self._reply)  # each knows its own
        elif news.method == rpc.ACKNOWLEDGED:
            awaited = self._acknowledged
            if awaited is not None and not awaited.done() and self._is_of_updates(news):
                awaited.set_result(None)
        elif not news.method.startswith(_OF_OUR_SUBSCRIPTION):
            only = self._only()
            if only is not None and only.talk is not None:
                only.talk.take(news, self._reply)

    def _is_of_updates(self, news: rpc.Notification) -> bool:
        return self._updates is not None and rpc.same_id(rpc.subscription_of(news.params), self._updates)

    def _asked(self, request: rpc.Request) -> None:
        only = self._only()
        if only is not None and only.talk is not None and for_the_caller(request, self._declared):
            only.talk.take(request, self._reply)
            return
        self._courtesy(rpc.answer_to(request))
        if only is not None and request.method in ASKS_FOR_INPUT and only.method in MAY_ASK:
            _fail(only, input_required(self._upstream, request.method, request.params))

    def _only(self) -> Waiting | None:
        """The one request that the server can be speaking of; None when it could be one of another caller's."""
        if len(self._waiting) != 1:
            return None
        only = next(iter(self._waiting.values()))
        since = asyncio.get_running_loop().time() - ABANDONED_S
        for message_id in [message_id for message_id, (given_up, _) in self._abandoned.items() if given_up < since]:
            del self._abandoned[message_id]
        return only if all(caller == only.caller for _, caller in self._abandoned.values()) else None

    def _reply(self, message: bytes) -> None:
        self._send(message, None)

    def _suspect(self, reason: str) -> None:
        """A JSON object that is no JSON-RPC: a log line, or the answer to the only open request?

        Servers that log JSON to stdout do so at other times too, and then they answer. So only when that has never
        been seen, and no answer follows, the request is failed rather than left to its deadline.
        """
        only = self._only()
        if self._logs_json or only is None:
            self._logs_json = True
            return
        message_id = self._suspected = only.id

        def decide() -> None:
            if not self._logs_json and (waiting := self._take_waiter(message_id)) is not None:
                _fail(waiting, self._malformed(reason))

        asyncio.get_running_loop().call_later(SUSPICION_S, decide)

    def _answer(self, response: rpc.Response) -> None:
        if self._suspected is not None and rpc.same_id(response.id, self._suspected):
            self._logs_json = True  # so the message was no answer
        waiting = self._take_waiter(response.id)
        if waiting is not None and waiting.answer is not None:
            waiting.answer.set_result(response)
            return
        self.noise.stray += 1
        only = self._only()
        if response.id in (None, 0, "0") and only is not None:
            # It lost the id on the way, or could not read our request. With one request open it can mean no other.
            _fail(only, self._malformed("it names no request"))

    def _take_waiter(self, message_id: rpc.MessageId | None) -> Waiting | None:
        if isinstance(message_id, str):
            message_id = int(message_id) if message_id.isdecimal() and len(message_id) < 19 else None
        if message_id is None:
            return None
        self._abandoned.pop(message_id, None)  # a late answer: the server is done with it
        waiting = self._waiting.pop(message_id, None)
        return None if waiting is None or waiting.answer is None or waiting.answer.done() else waiting

    # --------------------------------------------------------------------- end

    def fail(self, waiting: Waiting, failure: GatewayError) -> None:
        """End one request that could not be sent, or not be answered."""
        _fail(waiting, failure)

    def end(self, failure: UpstreamFailed) -> UpstreamFailed:
        """Mark the connection as unusable and answer everything that waits. The first reason stays; it is returned."""
        if not self.closed.done():
            self.closed.set_result(failure)
        first = self.closed.result()
        for waiting in self._waiting.values():
            _fail(waiting, self._failure(first, delivered=True))
        return first

    def _failure(self, why: UpstreamFailed, *, delivered: bool) -> UpstreamFailed:
        return UpstreamFailed(self._upstream, why.stage, why.reason, detail=why.detail, delivered=delivered)

    def _malformed(self, reason: str) -> UpstreamFailed:
        return UpstreamFailed(self._upstream, "call", f"its answer was malformed: {reason}", delivered=True)


class ByDialogue:
    """What connectors over one stream share of :class:`gateway.upstreams.base.Connector`; they set ``_dialogue``."""

    _dialogue: Dialogue

    async def follow(self, uris: Collection[str], timeout_s: float) -> Mapping[str, RpcFailed]:
        """See :class:`gateway.upstreams.base.Connector`."""
        return await self._dialogue.follow(uris, timeout_s)

    def plan_calls(self, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
        """See :class:`gateway.upstreams.base.Connector`. Here every tool can be called."""
        return {}

    @property
    def closed(self) -> bool:
        """See :class:`gateway.upstreams.base.Connector`."""
        return self._dialogue.closed.done()

    async def wait_closed(self) -> UpstreamFailed:
        """See :class:`gateway.upstreams.base.Connector`."""
        return await asyncio.shield(self._dialogue.closed)


def _fail(waiting: Waiting, failure: GatewayError) -> None:
    answer = waiting.answer
    if answer is not None and not answer.done():
        answer.set_exception(failure)
        with contextlib.suppress(GatewayError):
            answer.result()  # somebody may have stopped waiting; then asyncio must not complain
