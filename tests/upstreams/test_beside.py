"""What passes beside a call: progress, log messages, questions; and what of it never reaches a caller."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.config.model import HttpUpstream
from gateway.errors import ErrorClass
from gateway.upstreams import beside as beside_module
from gateway.upstreams import child as child_module
from gateway.upstreams import rpc
from gateway.upstreams.base import CALLER, InputRequired, RpcFailed, UpstreamFailed, UpstreamTimedOut
from gateway.upstreams.beside import MOST_QUESTIONS, MOST_TIMES, Talk
from gateway.upstreams.dialogue import Dialogue, Waiting
from gateway.upstreams.redact import Redactor
from tests.companions import eventually, faulty_http
from tests.upstreams.listener import ADA, Listener
from tests.upstreams.support import AnyConnector, called, connected, reached, running, stdio

TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "http"])
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
PROGRESS = "notifications/progress"
MESSAGE = "notifications/message"


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "GRACE_S", 0.3)


@asynccontextmanager
async def faulty(transport: str, *switches: str) -> AsyncIterator[AnyConnector]:
    if transport == "stdio":
        async with connected(stdio(*switches)) as connector:
            yield connector
        return
    async with faulty_http(*switches) as fu, connected(HttpUpstream(url=fu.url)) as connector:
        yield connector


async def heard_by(listener: Listener, connector: AnyConnector, tool: str, **arguments: Any) -> Any:
    raw = await connector.request("tools/call", {"name": tool, "arguments": arguments}, 15, listener)
    return json.loads(raw)


# ------------------------------------------------------------------ progress


@TRANSPORTS
@ERAS
async def test_progress_reaches_the_caller_in_order_and_before_the_answer(transport: str, era: str) -> None:
    listeners = [Listener(wants_progress=True) for _ in range(5)]
    async with faulty(transport, "--era", era, "--sse", "progress:3") as connector:
        await asyncio.gather(*(heard_by(listener, connector, "echo") for listener in listeners))

    tokens = set()
    for listener in listeners:
        told = listener.told(PROGRESS)
        assert [params["progress"] for params in told] == [1, 2, 3]
        (token,) = {params["progressToken"] for params in told}
        tokens.add(token)
    assert len(tokens) == 5, "each request has a token of its own"


@TRANSPORTS
async def test_whoever_wants_no_progress_hears_none(transport: str) -> None:
    listener = Listener()
    async with faulty(transport, "--sse", "progress:3") as connector:
        await heard_by(listener, connector, "echo")
        await called(connector, "echo")
    assert listener.heard == []


def progress(token: int | str) -> rpc.Notification:
    return rpc.Notification(PROGRESS, json.dumps({"progressToken": token, "progress": 1}).encode())


def no_reply(message: bytes) -> None:
    raise AssertionError(f"a notification was answered: {message!r}")


async def lasts_s(talk: Talk, said: Sequence[rpc.Notification | rpc.Request], times: int = 1000) -> float:
    """How long a request lives that is never answered, while the server says this so many times."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with contextlib.suppress(TimeoutError):
        async with talk, talk.deadline:
            for _ in range(times):
                for message in said:
                    talk.take(message, no_reply)
                await asyncio.sleep(0.02)
            await asyncio.Event().wait()
    return loop.time() - began


async def test_progress_keeps_a_request_alive_but_not_for_ever() -> None:
    lasted_s = await lasts_s(Talk(Listener(wants_progress=True), 7, 0.1), [progress(7)])
    assert 0.1 * MOST_TIMES <= lasted_s < 0.1 * (MOST_TIMES + 2)


async def test_the_progress_of_another_request_keeps_nothing_alive() -> None:
    listener = Listener(wants_progress=True)
    others = progress(8), progress("x"), rpc.Notification(PROGRESS, b"[]")
    assert await lasts_s(Talk(listener, 7, 0.1), others) < 0.3
    assert listener.heard == []


async def test_a_caller_that_reads_nothing_costs_its_messages_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_module, "LAST_WORDS_S", 0.05)

    class Stuck(Listener):
        async def notified(self, method: str, params: bytes) -> None:
            await super().notified(method, params)
            await asyncio.Event().wait()

    listener = Stuck()
    big = rpc.Notification(MESSAGE, json.dumps({"data": "x" * 300_000}).encode())
    async with asyncio.timeout(5), Talk(listener, 7, 3) as talk, talk.deadline:
        for _ in range(1000):
            talk.take(big, no_reply)
        await eventually(lambda: listener.heard)
        assert talk._held < 2 * beside_module.MOST_HELD
    assert len(listener.heard) == 1


async def test_a_caller_that_fails_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Listener):
        async def notified(self, method: str, params: bytes) -> None:
            await super().notified(method, params)
            raise RuntimeError("a fault of somebody else")

    listener = Broken()
    async with faulty("stdio", "--sse", "progress:2") as connector:
        listener.wants_progress = True
        assert (await heard_by(listener, connector, "echo", a=1))["structuredContent"] == {"a": 1}
    assert len(listener.heard) == 2
    assert "has failed" in caplog.text


# ------------------------------------------------------------------ log messages


@TRANSPORTS
async def test_log_messages_reach_the_caller(transport: str) -> None:
    listener = Listener()
    async with faulty(transport, "--era", "legacy", "--notify", "log:every=0.05") as connector:
        await heard_by(listener, connector, "sleep", ms=400)
    assert listener.told(MESSAGE)[0] == {"level": "info", "data": "a line of the log"}


async def test_what_a_modern_caller_can_do_and_wants_is_said_with_its_request() -> None:
    listener = Listener(capabilities={"elicitation": {}}, log_level="warning", wants_progress=True)
    params = rpc.modern_params(
        {"name": "t", "_meta": {"traceparent": "00-1", "progressToken": "the caller's"}}, listener, 5
    )

    meta = params["_meta"]
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {"elicitation": {}}
    assert meta["io.modelcontextprotocol/logLevel"] == "warning"
    assert (meta["progressToken"], meta["traceparent"]) == (5, "00-1")


def test_without_anybody_beside_it_a_request_asks_for_nothing() -> None:
    meta = rpc.modern_params({})["_meta"]

    assert meta["io.modelcontextprotocol/clientCapabilities"] == {}
    assert not {"io.modelcontextprotocol/logLevel", "progressToken"} & set(meta)
    assert rpc.legacy_params(b'{"name":"t"}').keys() == {"name"}


# ------------------------------------------------------------------ one stream for all


class Line:
    """A dialogue over nothing: what was sent is kept, and what is received is said by the test."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.announced: list[str] = []
        self.dialogue = Dialogue(
            "u",
            self.send,
            lambda message: self.send(message, None),
            self.writable,
            declared=(),
            redactor=Redactor(["hunter2-token"]),
            on_list_changed=lambda: self.announced.append("tools"),
            on_announced=lambda method, params: self.announced.append(method),
        )

    def send(self, message: bytes, waiting: Waiting | None) -> None:
        self.sent.append(json.loads(message))

    async def writable(self) -> None:
        return

    def receive(self, **message: Any) -> None:
        self.dialogue.take(rpc.classify(json.dumps({"jsonrpc": "2.0", **message}).encode()))

    def call(self, listener: Listener | None, method: str = "tools/call") -> asyncio.Task[rpc.Response]:
        return asyncio.create_task(self.dialogue.request(method, {}, 5, listener))

    async def in_flight(self, count: int) -> None:
        await eventually(lambda: len([message for message in self.sent if "method" in message]) == count)

    def reply(self) -> dict[str, Any]:
        """The only answer that the server got."""
        (only,) = [message for message in self.sent if "method" not in message]
        return only


def asks(method: str = "elicitation/create", **params: Any) -> dict[str, Any]:
    return {"id": "q1", "method": method, "params": params}


async def test_what_could_be_about_anothers_call_is_told_to_nobody() -> None:
    line, listener = Line(), Listener(answer=ADA)
    calls = [line.call(listener), line.call(None)]
    await line.in_flight(2)
    line.receive(method=MESSAGE, params={"data": "a secret of the other tenant"})
    line.receive(**asks(message="May the other tenant's file be deleted?"))
    for number in (1, 2):
        line.receive(id=number, result={})
    await asyncio.gather(*calls)

    assert (listener.heard, listener.questions) == ([], [])
    assert line.reply()["error"]["code"] == -32601


@pytest.mark.parametrize("given_up", ["cancelled", "timed out"])
async def test_what_could_be_about_a_call_that_was_given_up_is_told_to_nobody(given_up: str) -> None:
    """A server that ignores the cancellation goes on asking; the next caller may be another tenant."""
    line, listener = Line(), Listener(answer=ADA)
    CALLER.set("one")
    first = asyncio.create_task(line.dialogue.request("tools/call", {}, 0.05 if given_up == "timed out" else 5, None))
    await line.in_flight(1)
    if given_up == "cancelled":
        first.cancel()
    await asyncio.wait({first})
    CALLER.set("another")
    second = line.call(listener)
    await line.in_flight(3)  # the first, its cancellation, the second
    line.receive(method=MESSAGE, params={"data": "a secret of the first caller"})
    line.receive(**asks(message="May the first caller's file be deleted?"))
    assert line.reply()["error"]["code"] == -32601
    assert not second.done()
    assert (listener.heard, listener.questions) == ([], [])

    line.receive(id=1, result={})  # a late answer: the server is done with the first call
    line.receive(method=MESSAGE, params={"data": "about the second"})
    line.receive(id=2, result={})
    await second
    assert [method for method, _ in listener.heard] == [MESSAGE]


async def test_a_call_that_was_given_up_stands_in_nobodys_way_but_of_others() -> None:
    line, listener = Line(), Listener(answer=ADA)
    first = line.call(None)
    await line.in_flight(1)
    first.cancel()
    await asyncio.wait({first})
    second = line.call(listener)
    await line.in_flight(3)
    line.receive(method=MESSAGE, params={"data": "for the same caller"})
    line.receive(id=2, result={})
    await second
    assert [method for method, _ in listener.heard] == [MESSAGE]


async def test_an_error_holds_no_secret_of_the_configuration() -> None:
    line = Line()
    call = line.call(None)
    await line.in_flight(1)
    error = {"code": -1, "message": "login with hunter2-token failed", "data": {"tried": ["hunter2-token"]}}
    line.receive(id=1, error=error)
    with pytest.raises(RpcFailed) as failed:
        line.dialogue.result(await call)
    assert "hunter2" not in failed.value.message + json.dumps(failed.value.data)
    assert failed.value.code == -1


async def test_the_only_call_in_flight_is_told_and_asked() -> None:
    line, listener = Line(), Listener(answer=ADA)
    call = line.call(listener)
    await line.in_flight(1)
    line.receive(method=MESSAGE, params={"data": "hello"})
    line.receive(method="notifications/elicitation/complete", params={"elicitationId": "e"})
    line.receive(**asks(message="Who?"))
    await eventually(lambda: len(line.sent) == 2)
    line.receive(id=1, result={})
    await call

    assert [method for method, _ in listener.heard] == [MESSAGE, "notifications/elicitation/complete"]
    assert listener.questions == [("elicitation/create", {"message": "Who?"})]
    assert line.reply() == {"jsonrpc": "2.0", "id": "q1", "result": ADA}


async def test_a_question_that_the_server_takes_back_is_taken_from_the_caller() -> None:
    line, listener = Line(), Listener()
    call = line.call(listener)
    await line.in_flight(1)
    line.receive(**asks())
    await eventually(lambda: listener.questions)
    line.receive(method="notifications/cancelled", params={"requestId": "q1"})
    await eventually(lambda: listener.withdrawn)
    line.receive(id=1, result={})
    await call
    assert len(line.sent) == 1, "a cancelled request is not answered"


async def test_a_question_ends_with_its_call() -> None:
    line, listener = Line(), Listener()
    call = line.call(listener)
    await line.in_flight(1)
    line.receive(**asks())
    await eventually(lambda: listener.questions)
    line.receive(id=1, result={})
    await call
    assert listener.withdrawn == 1


async def test_while_the_caller_thinks_the_deadline_rests() -> None:
    question = rpc.Request("q", "elicitation/create")
    assert await lasts_s(Talk(Listener(), 7, 0.1), [question], times=1) >= 0.1 * MOST_TIMES


async def test_questions_are_bounded() -> None:
    replies: list[bytes] = []
    listener = Listener()
    async with Talk(listener, 7, 5) as talk, talk.deadline:
        for number in range(MOST_QUESTIONS + 3):
            talk.take(rpc.Request(number, "sampling/createMessage"), replies.append)
        talk.take(rpc.Request(0, "sampling/createMessage"), replies.append)
        await eventually(lambda: len(listener.questions) == MOST_QUESTIONS)
    assert len(replies) == 4
    assert listener.withdrawn == MOST_QUESTIONS


@pytest.mark.parametrize(("method", "result"), [("ping", {}), ("roots/list", {"roots": []})])
async def test_what_the_gateway_knows_itself_nobody_is_asked(method: str, result: dict[str, Any]) -> None:
    line, listener = Line(), Listener(answer=ADA)
    call = line.call(listener)
    await line.in_flight(1)
    line.receive(**asks(method))
    line.receive(id=1, result={})
    await call
    assert listener.questions == []
    assert line.reply()["result"] == result


@pytest.mark.parametrize("method", ["tools/list", "completion/complete"])
async def test_a_question_fails_only_requests_that_may_ask(method: str) -> None:
    line = Line()
    call = line.call(None, method)
    await line.in_flight(1)
    line.receive(**asks())
    line.receive(id=1, result={"ok": 1})
    assert (await call).result == b'{"ok": 1}'


async def test_announcements_are_everybodys() -> None:
    line, listener = Line(), Listener()
    call = line.call(listener)
    await line.in_flight(1)
    methods = [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
    methods.append("notifications/resources/updated")
    for method in methods:
        line.receive(method=method)
    line.receive(id=1, result={})
    await call
    assert line.announced == ["tools", *methods]
    assert listener.heard == []


# ------------------------------------------------------------------ questions over the wire


@TRANSPORTS
@pytest.mark.parametrize(
    ("ask", "method"), [("elicitation", "elicitation/create"), ("sampling", "sampling/createMessage")]
)
async def test_what_a_legacy_server_asks_the_caller_answers(transport: str, ask: str, method: str) -> None:
    listener = Listener(answer=ADA)
    async with faulty(transport, "--era", "legacy", "--ask", ask) as connector:
        result = await heard_by(listener, connector, "echo", a=1)
    assert result["structuredContent"] == {"a": 1}
    assert [name for name, _ in listener.questions] == [method]


@TRANSPORTS
@pytest.mark.parametrize(
    ("ask", "text"),
    [
        ("elicitation", "elicitation/create: What is your name?"),
        ("sampling", "sampling/createMessage: Say hello."),
    ],
)
async def test_without_anybody_to_ask_the_call_fails_at_once_and_says_what_was_asked(
    transport: str, ask: str, text: str
) -> None:
    async with faulty(transport, "--era", "legacy", "--ask", f"{ask}:times=1") as connector, asyncio.timeout(5):
        with pytest.raises(InputRequired) as caught:
            await called(connector, "echo", 30)
        assert await called(connector, "echo", a=1) == {"a": 1}
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (caught.value.error_class, caught.value.raw) == (ErrorClass.TOOL_ERROR, b"")


async def test_the_server_is_told_that_nobody_answers() -> None:
    async with (
        faulty_http("--era", "legacy", "--ask", "elicitation") as fu,
        connected(HttpUpstream(url=fu.url)) as connector,
    ):
        with pytest.raises(InputRequired):
            await called(connector, "echo")
        await reached(fu, lambda state: state["replies"])


@pytest.mark.parametrize(
    "refusal", [RpcFailed("client", -1, "I do not want to"), UpstreamFailed("x", "closed", "gone")]
)
async def test_a_refusal_goes_back_to_the_server(refusal: RpcFailed | UpstreamFailed) -> None:
    line, listener = Line(), Listener(answer=refusal)
    call = line.call(listener)
    await line.in_flight(1)
    line.receive(**asks())
    await eventually(lambda: len(line.sent) == 2)
    line.receive(id=1, result={})
    await call
    error = line.reply()["error"]
    own = isinstance(refusal, RpcFailed)
    assert error == (
        {"code": -1, "message": "I do not want to"}
        if own
        else {"code": -32603, "message": "the caller could not be asked"}
    )


@TRANSPORTS
async def test_what_a_modern_server_asks_comes_back_whole_and_is_answered_with_the_next_call(transport: str) -> None:
    switches = ("--era", "modern", "--ask", "elicitation")
    async with faulty_http(*switches) as fu:
        config = stdio(*switches) if transport == "stdio" else HttpUpstream(url=fu.url)
        async with running({"u": config}) as ups:
            with pytest.raises(InputRequired, match=r"ask \(elicitation/create: What is your name\?\)") as caught:
                await ups["u"].call_tool("echo", b'{"a":1}')
            asked = json.loads(caught.value.raw)
            as_it_is = await ups["u"].request("tools/call", {"name": "echo", "arguments": {}})
            extra = {"requestState": asked["requestState"], "inputResponses": {"ask": ADA}}
            result = await ups["u"].call_tool("echo", b'{"a":1}', extra=extra)
    assert asked["inputRequests"]["ask"]["method"] == "elicitation/create"
    assert json.loads(as_it_is)["resultType"] == "input_required"
    assert result.structured == b'{"a":1}'


# ------------------------------------------------------------------ the end


@TRANSPORTS
@pytest.mark.parametrize("leave", ["cancel", "deadline"])
async def test_nothing_outlives_a_request_that_is_given_up(transport: str, leave: str) -> None:
    """``connected`` sees that no task is left."""
    listener = Listener(wants_progress=True)
    async with faulty(transport, "--era", "legacy", "--ask", "elicitation") as connector:
        deadline_s = 30 if leave == "cancel" else 0.1
        params = {"name": "echo", "arguments": {}}
        call = asyncio.create_task(connector.request("tools/call", params, deadline_s, listener))
        await eventually(lambda: listener.questions)
        if leave == "cancel":
            call.cancel()
        (failure,) = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(failure, asyncio.CancelledError if leave == "cancel" else UpstreamTimedOut)
        assert listener.withdrawn == 1
