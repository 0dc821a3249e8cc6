"""The client's end of one exchange, as the facade sees it: what it declared, and how to reach it before the answer.

In the 2026-07-28 era everything about a client comes with each request, and it is asked for input by an answer. In the
``initialize`` era it declared itself once (its signed session id remembers), and a server's request travels on the
event stream of the call; the client posts its answer to the same path, where :class:`Questions` finds who waits.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.edge.eras import META_CAPABILITIES, META_LOG_LEVEL, Era
from gateway.edge.exchange import Exchange
from gateway.edge.wire import INVALID_PARAMS, Reply, Request, RequestId, WireError, notification_bytes, request_bytes
from gateway.facade.base import LOG_LEVELS, ClientRefused

ANSWER_S = 300.0
"""How long a person may take to answer what a server asked."""
_NO_CHANNEL = -32601


class Questions:
    """Requests that were sent to clients and wait for their answers.

    Mutable state: ``_open``, by (tenant, session, our request id). An answer counts only with the session that was
    asked, so nobody answers for another.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, RequestId], asyncio.Future[Reply]] = {}
        self._numbers = itertools.count(1)

    async def ask(self, tenant: str, session: str, exchange: Exchange, method: str, params: bytes) -> bytes:
        """Send a request on the call's stream; the result of the answer. Raises ClientRefused."""
        question = f"gateway-{next(self._numbers)}"
        key = (tenant, session, question)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open[key] = answer
        try:
            await exchange.say(request_bytes(question, method, params))
            async with asyncio.timeout(ANSWER_S):
                reply = await answer
        except TimeoutError:
            raise ClientRefused(_NO_CHANNEL, f"the client did not answer {method} within {ANSWER_S:.0f} s") from None
        finally:
            del self._open[key]
        if reply.result is None:
            raise ClientRefused(reply.code, reply.message)
        return reply.result

    def answered(self, tenant: str, session: str, reply: Reply) -> bool:
        """Hand an answer to who waits for it; False when nobody does (late, doubled, or not theirs)."""
        waiting = self._open.get((tenant, session, reply.id))
        if waiting is None or waiting.done():
            return False
        waiting.set_result(reply)
        return True


class ClientEnd:
    """See :class:`gateway.facade.base.Client`.

    Args:
        request: the client's request.
        era: its era.
        exchange: the response side.
        tenant, session: who it is; session "" when it has none.
        capabilities: what the session remembers, in the ``initialize`` era.
        questions: where answers are awaited.

    Raises:
        WireError: -32602 for an unknown log level.
    """

    def __init__(
        self,
        request: Request,
        era: Era,
        exchange: Exchange,
        tenant: str,
        session: str,
        capabilities: Mapping[str, Any],
        questions: Questions,
    ) -> None:
        token = request.meta.get("progressToken")
        self._token = token if isinstance(token, (str, int)) and not isinstance(token, bool) else None
        self._exchange = exchange
        self._tenant = tenant
        self._session = session
        self._questions = questions
        self.retries = era == "modern"
        self.wants_progress = self._token is not None and exchange.accepts_stream
        if era == "modern":
            declared = request.meta.get(META_CAPABILITIES)
            self.capabilities: Mapping[str, Any] = declared if isinstance(declared, Mapping) else {}
            self.can_be_asked = False
            self.log_level = _log_level(request.meta.get(META_LOG_LEVEL))
        else:
            self.can_be_asked = bool(session) and exchange.accepts_stream
            self.capabilities = capabilities if self.can_be_asked else {}
            self.log_level = "debug" if exchange.accepts_stream else None

    async def progress(self, done: float, message: str = "", total: float | None = None) -> None:
        if self._token is not None and self._exchange.accepts_stream:
            await self._exchange.progress(self._token, done, message, total)

    async def notify(self, method: str, params: bytes) -> None:
        if self._exchange.accepts_stream:
            await self._exchange.say(notification_bytes(method, msgspec.Raw(params)))

    async def ask(self, method: str, params: bytes) -> bytes:
        if not self.can_be_asked:
            raise ClientRefused(_NO_CHANNEL, "the client of this request cannot be asked for anything")
        return await self._questions.ask(self._tenant, self._session, self._exchange, method, params)


def _log_level(level: Any) -> str | None:
    if level is None or level in LOG_LEVELS:
        return level if isinstance(level, str) else None
    raise WireError(INVALID_PARAMS, f"Invalid params: the log level must be one of {', '.join(LOG_LEVELS)}")
