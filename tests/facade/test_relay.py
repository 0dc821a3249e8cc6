"""What an upstream says during a request reaches the client in the form of its era, or is refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gateway.config.model import GatewayConfig
from gateway.errors import ErrorClass, GatewayError
from gateway.facade.base import Caller, ClientRefused, QuietClient, Refused, Retry
from gateway.facade.relay import MAX_ROUNDS, Asked, Relay, Rounds, input_wanted, subject_of
from gateway.facade.seals import Seals
from gateway.tenancy.tenant import Tenants
from gateway.upstreams.base import RpcFailed

QUESTION = {"method": "elicitation/create", "params": {"message": "Who?"}}
SEALS = Seals(b"secret")


class Person(QuietClient):
    """A client that declared elicitation; it answers with its name and remembers what it heard."""

    def __init__(self, *, retries: bool = False, can: tuple[str, ...] = ("elicitation",)) -> None:
        super().__init__()
        self.capabilities = {name: {} for name in can}
        self.retries = retries
        self.can_be_asked = not retries
        self.heard: list[Any] = []

    async def progress(self, done: float, message: str = "", total: float | None = None) -> None:
        self.heard.append((done, total, message))

    async def notify(self, method: str, params: bytes) -> None:
        self.heard.append((method, msgspec.json.decode(params)))

    async def ask(self, method: str, params: bytes) -> bytes:
        self.heard.append((method, msgspec.json.decode(params)))
        if not self.can_be_asked:
            raise ClientRefused(-32601, "it cannot be asked")
        return b'{"action":"accept","content":{"name":"Ada"}}'


TENANTS = Tenants.from_config(
    GatewayConfig.model_validate({"version": 1, "upstreams": {}, "tenants": {"acme": {"upstreams": {}}}})
)
ACME = Caller("req_1", TENANTS["acme"], "key1", frozenset(), "2026-07-28")


def rounds(client: Person, subject: str = "s", key: str = "key1") -> Rounds:
    return Rounds(SEALS, replace(ACME, client=client, key_id=key), subject)


def asking(**members: Any) -> bytes:
    return msgspec.json.encode({"resultType": "input_required", **members})


class Upstream:
    """Answers with these results, one after another, and remembers the further params it was sent."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.sent: list[Mapping[str, Any]] = []

    async def send(self, extra: Mapping[str, Any]) -> bytes:
        self.sent.append(msgspec.json.decode(msgspec.json.encode(extra)))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


DONE = b'{"content":[]}'


# ---------------------------------------------------------------- beside a request


async def test_progress_goes_on_without_the_upstreams_token() -> None:
    client = Person()
    relay = Relay(client, None)
    params = b'{"progressToken":77,"progress":1,"total":2,"message":"half"}'
    await relay.notified("notifications/progress", params)
    await relay.notified("notifications/progress", b'{"progressToken":77,"progress":"much","total":2}')
    await relay.notified("notifications/progress", b"[]")
    assert client.heard == [(1, 2, "half")]


@pytest.mark.case("PASS-03")
@pytest.mark.parametrize(
    ("wanted", "heard"),
    [(None, []), ("debug", ["debug", "info", "error", "?"]), ("info", ["info", "error", "?"]), ("alert", ["?"])],
)
async def test_log_messages_reach_only_who_wants_that_level(wanted: str | None, heard: list[str]) -> None:
    client = Person()
    for level in ("debug", "info", "error", "?"):
        params = msgspec.json.encode({"level": level, "data": "x"})
        await Relay(client, wanted).notified("notifications/message", params)
    assert [params["level"] for _, params in client.heard] == heard


async def test_other_notifications_pass_as_they_are() -> None:
    client = Person()
    await Relay(client, None).notified("notifications/elicitation/complete", b'{"elicitationId":"7"}')
    assert client.heard == [("notifications/elicitation/complete", {"elicitationId": "7"})]


async def test_a_question_is_put_to_the_client_that_declared_it() -> None:
    client = Person()
    answer = await Relay(client, None).asked("elicitation/create", b'{"message":"Who?"}')
    assert msgspec.json.decode(answer)["content"] == {"name": "Ada"}


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list", "tools/list", "x"])
async def test_a_question_that_was_not_declared_never_reaches_the_client(method: str) -> None:
    client = Person()
    with pytest.raises(RpcFailed) as refused:
        await Relay(client, None).asked(method, b"{}")
    assert refused.value.code == -32601
    assert method in refused.value.message
    assert client.heard == []


# ---------------------------------------------------------------- input_required


async def test_a_client_on_a_stream_is_asked_and_the_upstream_asked_again() -> None:
    client = Person()
    upstream = Upstream(asking(inputRequests={"who": QUESTION}, requestState="mine"), DONE)
    assert await rounds(client).run(upstream.send, Retry(), input_wanted) == DONE
    accepted = {"action": "accept", "content": {"name": "Ada"}}
    assert upstream.sent == [{}, {"inputResponses": {"who": accepted}, "requestState": "mine"}]
    assert client.heard == [("elicitation/create", {"message": "Who?"})]


async def test_a_client_that_retries_gets_the_question_and_a_sealed_state() -> None:
    upstream = Upstream(asking(inputRequests={"who": QUESTION}, requestState="mine", other=[1]), DONE)
    client = Person(retries=True)
    asked = await rounds(client).run(upstream.send, Retry(), input_wanted)
    assert isinstance(asked, Asked)
    result = msgspec.json.decode(msgspec.json.encode(asked.result))
    state = result.pop("requestState")
    assert "mine" not in state
    assert result == {"resultType": "input_required", "inputRequests": {"who": QUESTION}, "other": [1]}
    assert await rounds(client).run(upstream.send, Retry(b'{"who":{}}', state), input_wanted) == DONE
    assert upstream.sent[-1] == {"inputResponses": {"who": {}}, "requestState": "mine"}


@pytest.mark.parametrize("fault", ["tampered", "subject", "key", "absent seal"])
async def test_a_state_of_another_request_key_or_making_is_refused_before_anything_is_sent(fault: str) -> None:
    client = Person(retries=True)
    upstream = Upstream(asking(requestState="mine"))
    asked = await rounds(client).run(upstream.send, Retry(), input_wanted)
    assert isinstance(asked, Asked)
    state = asked.result["requestState"]
    other = {
        "tampered": (rounds(client), ("B" if state[0] == "A" else "A") + state[1:]),
        "subject": (rounds(client, subject="t"), state),
        "key": (rounds(client, key="key2"), state),
        "absent seal": (rounds(client), "mine"),
    }
    again, changed = other[fault]
    with pytest.raises(Refused):
        await again.run(upstream.send, Retry(b"{}", changed), input_wanted)
    assert len(upstream.sent) == 1


@pytest.mark.parametrize("retries", [True, False])
@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list", "x"])
async def test_what_a_client_did_not_declare_is_an_error_that_names_it(method: str, retries: bool) -> None:
    client = Person(retries=retries)
    upstream = Upstream(asking(inputRequests={"who": QUESTION, "more": {"method": method}}))
    with pytest.raises(GatewayError, match=method) as failed:
        await rounds(client).run(upstream.send, Retry(), input_wanted)
    assert failed.value.error_class is ErrorClass.TOOL_ERROR
    assert client.heard == []


async def test_an_upstream_that_asks_for_ever_is_stopped() -> None:
    upstream = Upstream(asking(inputRequests={"who": QUESTION}))
    with pytest.raises(GatewayError, match=str(MAX_ROUNDS)):
        await rounds(Person()).run(upstream.send, Retry(), input_wanted)
    assert len(upstream.sent) == MAX_ROUNDS


@pytest.mark.parametrize(
    "raw",
    [
        b'"input_required"',
        b'{"resultType":"input_required","inputRequests":7}',
        b'{"resultType":"input_required","inputRequests":{"a":{}}}',
        b'{"resultType":"input_required","requestState":7}',
        b'{"resultType":"input_required",',
    ],
)
async def test_a_malformed_wish_is_the_upstreams_fault(raw: bytes) -> None:
    for client in (Person(), Person(retries=True)):
        with pytest.raises(GatewayError, match="malformed"):
            await rounds(client).run(Upstream(raw).send, Retry(), input_wanted)


@pytest.mark.parametrize(
    "raw", [DONE, b'{"content":["input_required"]}', b'{"resultType":"complete","x":"input_required"}']
)
def test_an_ordinary_result_asks_for_nothing(raw: bytes) -> None:
    assert input_wanted(raw) is None


def test_a_subject_is_one_method_name_and_argument_only() -> None:
    subjects = {
        subject_of(*request) for request in (("m", "n", b"1"), ("m", "n", b"2"), ("m", "o", b"1"), ("k", "n", b"1"))
    }
    assert len(subjects) == 4


async def test_a_cancelled_question_ends_with_its_request() -> None:
    class Slow(Person):
        async def ask(self, method: str, params: bytes) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

    upstream = Upstream(asking(inputRequests={"who": QUESTION}))
    running = rounds(Slow()).run(upstream.send, Retry(), input_wanted)
    task: asyncio.Task[bytes | Asked] = asyncio.create_task(running)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await task
    assert task.cancelled()
