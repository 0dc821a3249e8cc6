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
from gateway.facade.base import Caller, Client, ClientRefused, Refused, Retry
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

_progress = msgspec.json.Decoder(dict[str, Any])
_required = msgspec.json.Decoder(dict[str, msgspec.Raw])
_requests = msgspec.json.Decoder(dict[str, dict[str, Any]])


class Relay:
    """The client of one request as an upstream's connector sees it (:class:`gateway.upstreams.base.Beside`)."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.capabilities = client.capabilities
        self.log_level = client.log_level
        self.wants_progress = client.wants_progress

    async def notified(self, method: str, params: bytes) -> None:
        """Progress goes on under the client's own token, everything else as it is."""
        if method != PROGRESS:
            if self._client.log_level is not None:
                await self._client.notify(method, params)
            return
        try:
            report = _progress.decode(params)
        except msgspec.DecodeError:
            return
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
            if client.retries:
                return self._passed_on(raw)
            extra = await self._answers(client, raw)
        raise GatewayError(ErrorClass.TOOL_ERROR, f"the upstream asked for input more than {MAX_ROUNDS} times")

    def _passed_on(self, raw: bytes) -> Asked:
        result: dict[str, Any] = _required.decode(raw)
        if "requestState" in result:
            state = msgspec.json.decode(result["requestState"], type=str)
            result["requestState"] = self._seals.seal(self._purpose, self._owner, state.encode(), STATE_S)
        return Asked(result)

    async def _answers(self, client: Client, raw: bytes) -> dict[str, Any]:
        """Ask a client of the older era for everything, one request after another."""
        result = _required.decode(raw)
        requests = _requests.decode(result["inputRequests"]) if "inputRequests" in result else {}
        responses: dict[str, Any] = {}
        for key, request in requests.items():
            method = str(request.get("method"))
            if not client.can_be_asked or ASKS_FOR.get(method) not in client.capabilities:
                raise GatewayError(
                    ErrorClass.TOOL_ERROR,
                    f"the tool wants input ({method[:64]}) that this client did not declare it can give",
                )
            try:
                responses[key] = msgspec.Raw(await client.ask(method, msgspec.json.encode(request.get("params", {}))))
            except ClientRefused as refused:
                raise GatewayError(
                    ErrorClass.TOOL_ERROR, f"the client refused {method[:64]}: {refused.message}"
                ) from None
        extra: dict[str, Any] = {"inputResponses": responses}
        if "requestState" in result:
            extra["requestState"] = result["requestState"]
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
    """The result itself when it asks for input, else None."""
    if b"input_required" not in raw:
        return None
    kind = _required.decode(raw).get("resultType")
    return raw if kind is not None and bytes(kind) == b'"input_required"' else None
