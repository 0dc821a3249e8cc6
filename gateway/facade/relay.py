"""What passes between an upstream and the client of the direct endpoint while a request runs, in both eras' forms.

An upstream may want input (elicitation, sampling, roots), report progress and write log messages. A client of
2026-07-28 is asked by an answer and retries; one of the older era is asked on its event stream. Both kinds of upstream
meet both kinds of client here:

| upstream asks by | client retries (2026-07-28) | client can be asked on its stream | neither |
|---|---|---|---|
| an ``input_required`` answer | passed on, its state sealed | asked, then the upstream is asked again | typed error |
| a request during the call | refused: the call cannot be kept open between two requests | passed on | refused |
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from gateway.errors import ErrorClass, GatewayError
from gateway.facade.base import LOG_LEVELS, Caller, Client, ClientRefused, Refused, Retry
from gateway.facade.seals import Broken, Seals
from gateway.upstreams.base import RpcFailed

T = TypeVar("T")

MAX_ROUNDS = 16
"""How often one request may ask for input; a server that asks for ever is wrong."""
STATE_S = 900.0
"""How long a person may take to answer before the state of a request expires."""
ASKS_FOR = {"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots"}
"""Request of a server → the client capability it needs."""
PROGRESS = "notifications/progress"
LOG = "notifications/message"

_object = msgspec.json.Decoder(dict[str, Any])


class Relay:
    """The client of one request as an upstream's connector sees it (:class:`gateway.upstreams.base.Beside`).

    Args:
        client: the client.
        log_level: the least level of log messages that it wants; None: none.
    """

    def __init__(self, client: Client, log_level: str | None) -> None:
        self._client = client
        self.capabilities = client.capabilities
        self.log_level = log_level
        self.wants_progress = client.wants_progress

    async def notified(self, method: str, params: bytes) -> None:
        """Progress goes on under the client's own token, log messages if it wants them, everything else as it is."""
        try:
            if method == PROGRESS:
                await self._progressed(_object.decode(params))
            elif method != LOG or self._wants(_object.decode(params)):
                await self._client.notify(method, params)
        except (msgspec.DecodeError, RecursionError):
            return

    def _wants(self, message: Mapping[str, Any]) -> bool:
        """A legacy upstream has one level for everybody, and some ignore it. An unknown level counts as the highest."""
        level = message.get("level")
        rank = LOG_LEVELS.index(level) if level in LOG_LEVELS else len(LOG_LEVELS)
        return self.log_level is not None and rank >= LOG_LEVELS.index(self.log_level)

    async def _progressed(self, report: Mapping[str, Any]) -> None:
        done, total, message = report.get("progress"), report.get("total"), report.get("message")
        if isinstance(done, (int, float)):
            await self._client.progress(
                done,
                message if isinstance(message, str) else "",
                total if isinstance(total, (int, float)) else None,
            )

    async def asked(self, method: str, params: bytes) -> bytes:
        """Raises RpcFailed when the client cannot or will not answer."""
        needs = ASKS_FOR.get(method)
        if needs is None or needs not in self._client.capabilities:
            raise RpcFailed("client", -32601, f"the client did not declare that it can be asked for {method[:64]}")
        try:
            return await self._client.ask(method, params)
        except ClientRefused as refused:
            raise RpcFailed("client", refused.code, refused.message) from None


class Rounds:
    """The rounds of one request that may be answered with ``input_required``.

    Args:
        seals: protect the state that a client carries.
        caller: who asks.
        subject: what the state is bound to: method, name and a digest of the arguments.
    """

    def __init__(self, seals: Seals, caller: Caller, subject: str) -> None:
        self._seals = seals
        self._caller = caller
        self._owner = f"{caller.tenant.name}/{caller.key_id}"
        self._purpose = f"request state of {subject}"

    def extra(self, retry: Retry) -> dict[str, Any]:
        """Further members of the params that go upstream for a client's retry. Raises Refused for a broken state."""
        members: dict[str, Any] = {}
        if retry.answers is not None:
            members["inputResponses"] = msgspec.Raw(retry.answers)
        if retry.state is not None:
            try:
                members["requestState"] = self._seals.open(self._purpose, self._owner, retry.state).decode()
            except (Broken, UnicodeDecodeError):
                raise Refused(
                    "invalid_params", "Invalid params: requestState was not given out for this request"
                ) from None
        return members

    async def run(self, send: Callable[[Mapping[str, Any]], Awaitable[T]], retry: Retry, wants: Wants[T]) -> T | Asked:
        """Send, and as long as the upstream wants input get it from the client.

        Args:
            send: sends the request with further params.
            retry: what the client sent.
            wants: the ``input_required`` result in an answer, or None.

        Returns:
            the answer, or the result that asks the client to retry.
        """
        client, extra = self._caller.client, self.extra(retry)
        for _ in range(MAX_ROUNDS):
            answer = await send(extra)
            raw = wants(answer)
            if raw is None:
                return answer
            wanted = _decoded(_wanted, raw)
            for request in wanted.requests.values():
                if ASKS_FOR.get(request.method) not in client.capabilities:
                    raise GatewayError(
                        ErrorClass.TOOL_ERROR,
                        f"the tool wants input ({request.method[:64]}) that this client did not declare it can give",
                    )
            if client.retries:
                return self._passed_on(raw, wanted)
            extra = await self._answers(client, wanted)
        raise GatewayError(ErrorClass.TOOL_ERROR, f"the upstream asked for input more than {MAX_ROUNDS} times")

    def _passed_on(self, raw: bytes, wanted: _Wanted) -> Asked:
        result: dict[str, Any] = _members(raw)
        if wanted.state is not None:
            result["requestState"] = self._seals.seal(self._purpose, self._owner, wanted.state.encode(), STATE_S)
        return Asked(result)

    async def _answers(self, client: Client, wanted: _Wanted) -> dict[str, Any]:
        """Ask a client of the older era for everything, one request after another."""
        responses: dict[str, Any] = {}
        for key, request in wanted.requests.items():
            try:
                responses[key] = msgspec.Raw(await client.ask(request.method, bytes(request.params)))
            except ClientRefused as refused:
                raise GatewayError(
                    ErrorClass.TOOL_ERROR, f"the client refused {request.method}: {refused.message}"
                ) from None
        extra: dict[str, Any] = {"inputResponses": responses}
        if wanted.state is not None:
            extra["requestState"] = wanted.state
        return extra


Wants = Callable[[T], bytes | None]


class Asked:
    """A result that asks the client for input; it goes out as it is."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result


def subject_of(method: str, name: str, arguments: bytes) -> str:
    """What a request's state is bound to: another request cannot use it."""
    return f"{method}\0{name}\0{hashlib.sha256(arguments).hexdigest()}"


def input_wanted(raw: bytes) -> bytes | None:
    """The result itself when it asks for input, else None.

    Raises:
        GatewayError: it is no result.
    """
    return raw if b"input_required" in raw and _decoded(_kind, raw).type == "input_required" else None


class _Kind(msgspec.Struct):
    type: Any = msgspec.field(name="resultType", default=None)


class _Request(msgspec.Struct):
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Wanted(msgspec.Struct):
    """An ``input_required`` result: what is asked for, and the state that the upstream wants back."""

    requests: dict[str, _Request] = msgspec.field(name="inputRequests", default_factory=dict)
    state: str | None = msgspec.field(name="requestState", default=None)


_kind = msgspec.json.Decoder(_Kind)
_wanted = msgspec.json.Decoder(_Wanted)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _decoded(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise GatewayError(
            ErrorClass.UPSTREAM_UNAVAILABLE, "the upstream's answer was malformed: it is no result that can be read"
        ) from None
