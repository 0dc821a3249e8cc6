"""What passes between a server and a caller while a request runs: progress, log messages, questions to the caller.

Requests without a :class:`~gateway.upstreams.base.Beside` never come here. One that has it has a :class:`Talk`, which
hands notifications on in order, puts questions to the caller and their answers back to the server, and owns the tasks
that this takes; none outlives the request.

The deadline of such a request is one of silence: progress of its own starts it anew, and it rests while a question is
with the caller. But :data:`MOST_TIMES` the deadline is the end whatever is said.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from gateway.errors import GatewayError
from gateway.upstreams import rpc
from gateway.upstreams.base import Beside, RpcFailed

log = logging.getLogger("gateway.upstreams")

MOST_TIMES = 5
"""How many times its deadline a request may last that reports progress."""
MOST_HELD = 1024 * 1024
"""Bytes of notifications that wait for a caller who reads slowly; what comes on top of them is lost."""
MOST_QUESTIONS = 8
"""Questions of the server that are open at once; more are refused."""
LAST_WORDS_S = 1.0
"""How long an answer waits for the caller to take what was said before it, seconds."""

ANNOUNCEMENTS = frozenset(
    {rpc.LIST_CHANGED, "notifications/prompts/list_changed", "notifications/resources/list_changed"}
    | {"notifications/resources/updated"}
)
"""Notifications that concern every caller, wherever they are said."""

ASKS_FOR_INPUT = frozenset({"elicitation/create", "sampling/createMessage"})
"""Requests of a legacy server that fail the call when nobody is beside it."""
MAY_ASK = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Requests during which a server may ask for input."""

_INTERNAL = -32603

Reply = Callable[[bytes], None]
"""Sends one message to the server; never waits."""


def for_the_caller(request: rpc.Request, declared: tuple[str, ...]) -> bool:
    """Whether a request of the server is the caller's business, and not ours to answer.

    Args:
        declared: client capabilities of the handshake. Servers ask for roots without looking at them, and most callers
            have none.
    """
    return request.method != "ping" and (request.method != "roots/list" or "roots" in declared)


class Talk:
    """One request and the one beside it.

    Use as ``async with Talk(…) as talk, talk.deadline:`` around sending it and waiting for its answer. Leaving it waits
    until the caller has taken what was said (at most :data:`LAST_WORDS_S`), and takes back questions that are open.

    Args:
        beside: whom to tell and to ask.
        token: for progress, unique among the connection's requests.
        timeout_s: how long the server may say nothing, seconds.

    Attributes:
        token: to send with the request; None when no progress is wanted.
        deadline: raises TimeoutError in the block.
    """

    def __init__(self, beside: Beside, token: int, timeout_s: float) -> None:
        self.beside = beside
        self.token = token if beside.wants_progress else None
        self.deadline = asyncio.timeout(timeout_s)
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._latest = self._loop.time() + MOST_TIMES * timeout_s
        self._over = False
        self._untold: deque[rpc.Notification] = deque()
        self._held = 0  # bytes in _untold
        self._telling: asyncio.Task[None] | None = None  # runs while there is something untold
        self._questions: dict[rpc.MessageId, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        try:
            if self._telling is not None and kind is None:
                await asyncio.wait({self._telling}, timeout=LAST_WORDS_S)
        finally:
            left = {*self._questions.values()} | ({self._telling} if self._telling is not None else set())
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)

    def take(self, message: rpc.Request | rpc.Notification, reply: Reply) -> None:
        """One message of the server. Progress and withdrawals that belong to another request are none of ours."""
        if self._over:
            return
        match message:
            case rpc.Request():
                self._put(message, reply)
            case rpc.Notification(method=rpc.PROGRESS):
                if self.token is not None and rpc.same_id(_named(message.params).token, self.token):
                    self._extend()
                    self._tell(message)
            case rpc.Notification(method=rpc.CANCELLED):
                withdrawn = _named(message.params).request
                if withdrawn is not None and withdrawn in self._questions:
                    self._questions[withdrawn].cancel()
            case _:
                self._tell(message)

    # ------------------------------------------------------------------ telling

    def _tell(self, notification: rpc.Notification) -> None:
        self._held += len(notification.params)
        if self._held > MOST_HELD:
            self._held -= len(notification.params)
            return
        self._untold.append(notification)
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell_all(), name="telling a caller what its upstream says")

    async def _tell_all(self) -> None:
        while self._untold:
            notification = self._untold.popleft()
            self._held -= len(notification.params)
            try:
                await self.beside.notified(notification.method, notification.params)
            except Exception:  # the border to the caller: its faults must not fail the call
                log.exception("whoever was told of %s has failed", notification.method)
        self._telling = None

    # ------------------------------------------------------------------- asking

    def _put(self, request: rpc.Request, reply: Reply) -> None:
        if request.id in self._questions or len(self._questions) >= MOST_QUESTIONS:
            reply(rpc.refusal(request, _INTERNAL, "too many requests at once, or one id twice"))
            return
        question = asyncio.create_task(self._ask(request, reply), name="asking a caller what its upstream wants")
        self._questions[request.id] = question
        question.add_done_callback(lambda _: self._settled(request.id))
        self._extend()

    async def _ask(self, request: rpc.Request, reply: Reply) -> None:
        try:
            result = await self.beside.asked(request.method, request.params)
        except RpcFailed as refused:
            reply(rpc.refusal(request, refused.code, refused.message))
        except GatewayError:
            reply(rpc.refusal(request, _INTERNAL, "the caller could not be asked"))
        except Exception:  # the border to the caller: the server must not wait for an answer that never comes
            log.exception("whoever was asked for %s has failed", request.method)
            reply(rpc.refusal(request, _INTERNAL, "the caller could not be asked"))
        else:
            reply(rpc.result(request, result))

    def _settled(self, request_id: rpc.MessageId) -> None:
        del self._questions[request_id]
        self._extend()

    # ----------------------------------------------------------------- deadline

    def _extend(self) -> None:
        if not self._over and not self.deadline.expired():
            silent = self._latest if self._questions else self._loop.time() + self._timeout_s
            self.deadline.reschedule(min(silent, self._latest))


class _Named(msgspec.Struct):
    """What a notification may point at."""

    token: int | str | None = msgspec.field(default=None, name="progressToken")
    request: int | str | None = msgspec.field(default=None, name="requestId")


_decoder = msgspec.json.Decoder(_Named)
_NOTHING = _Named()


def _named(params: bytes) -> _Named:
    try:
        return _decoder.decode(params)
    except (msgspec.DecodeError, RecursionError):
        return _NOTHING
