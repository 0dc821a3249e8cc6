"""The border: whatever happens to an exchange of whatever kind, the client gets one answer and none of our texts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.edge.eras import META_CAPABILITIES, META_VERSION
from gateway.edge.http import Authorities
from gateway.edge.mcp import McpEndpoint
from gateway.edge.sessions import SessionIds
from gateway.facade.base import Caller
from gateway.facade.changes import TOOLS_CHANGED, Subscription, Wanted
from gateway.metering.metrics import Metrics
from gateway.tenancy.authenticator import Principal

SECRET = "postgres://admin:hunter2@db"
SESSIONS = SessionIds(b"secret")


class BrokenFacade:
    """Fails wherever it is told to, with a text that nobody outside may see."""

    endpoint = "/mcp"

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def _break(self, where: str) -> None:
        if where == self.broken:
            raise RuntimeError(SECRET)

    def announces(self, caller: Caller) -> frozenset[str]:
        self._break("announces")
        return frozenset({TOOLS_CHANGED})

    @asynccontextmanager
    async def subscribed(
        self, caller: Caller, methods: frozenset[str], uris: Sequence[str] = ()
    ) -> AsyncIterator[Subscription]:
        self._break("subscribed")
        yield Subscription(Wanted(methods))

    async def request(self, caller: Caller, method: str, params: bytes) -> Mapping[str, Any]:
        self._break("request")
        return {}


class Exchanged:
    """One HTTP exchange with the endpoint, driven by hand."""

    def __init__(self, facade: BrokenFacade, method: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        principal = Principal("acme", "key", frozenset())
        endpoint = McpEndpoint(
            cast(Any, facade),
            authenticator=cast(Any, SimpleNamespace(authenticate=lambda _: principal, is_live=lambda _: True)),
            tenant_of=lambda name: cast(Any, SimpleNamespace(name=name)),
            authorities=lambda: Authorities(frozenset({"here"}), frozenset()),
            sessions=SESSIONS,
            metrics=Metrics(),
            server_info={"name": "gateway", "version": "1"},
            max_body=1_000,
            stopping=asyncio.Event(),
        )
        given = {"host": "here", "content-type": "application/json", "accept": "application/json, text/event-stream"}
        raw = [(name.encode(), value.encode()) for name, value in {**given, **headers}.items()]
        self.sent: list[Any] = []
        self.begun = asyncio.Event()
        self.gone = asyncio.Event()
        self._body: list[bytes] = [body]
        self.task = asyncio.ensure_future(endpoint({"method": method, "headers": raw}, self._receive, self._send))

    async def _receive(self) -> Any:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        self.begun.set()
        await asyncio.sleep(0)

    @property
    def statuses(self) -> list[int]:
        return [message["status"] for message in self.sent if message["type"] == "http.response.start"]

    @property
    def ends(self) -> int:
        return sum(m["type"] == "http.response.body" and not m.get("more_body") for m in self.sent)

    @property
    def text(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def session() -> dict[str, str]:
    return {"mcp-session-id": SESSIONS.mint("acme", "key", {}), "mcp-protocol-version": "2025-11-25"}


def message(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


@pytest.mark.parametrize("where", ["announces", "subscribed"])
async def test_a_fault_behind_a_get_is_one_answer_without_its_text(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    visit = Exchanged(BrokenFacade(where), "GET", session())
    await visit.task
    assert visit.statuses == [500]
    assert visit.ends == 1
    assert b"hunter2" not in visit.text
    assert b"Internal error (request req_" in visit.text
    assert "hunter2" in caplog.text


async def test_a_fault_behind_a_request_keeps_its_id() -> None:
    visit = Exchanged(BrokenFacade("request"), "POST", {}, message(id=7, method="prompts/list"))
    await visit.task
    assert visit.ends == 1
    answer = json.loads(visit.text)
    assert answer["id"] == 7
    assert answer["error"]["code"] == -32603
    assert b"hunter2" not in visit.text


@pytest.mark.parametrize(
    "body",
    [message(method="notifications/cancelled", params={"requestId": 1}), message(id="gateway-1", result={})],
    ids=["notification", "reply"],
)
async def test_a_fault_behind_what_is_no_request_is_one_answer_too(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr("gateway.edge.running.Running.cancel", broken)
    monkeypatch.setattr("gateway.edge.client.Questions.answered", broken)
    visit = Exchanged(BrokenFacade(), "POST", session(), body)
    await visit.task
    assert visit.statuses == [500]
    assert visit.ends == 1
    assert b"hunter2" not in visit.text


async def test_an_open_stream_that_the_server_cancels_ends_and_does_not_begin_again() -> None:
    visit = Exchanged(BrokenFacade(), "GET", session())
    await visit.begun.wait()
    visit.task.cancel()
    await visit.task
    assert visit.statuses == [200]
    assert visit.ends == 1


async def test_an_answer_that_is_being_sent_when_the_server_cancels_is_not_followed_by_another() -> None:
    visit = Exchanged(BrokenFacade(), "POST", session(), message(id=7, method="ping"))
    await visit.begun.wait()
    visit.task.cancel()
    await visit.task
    assert visit.statuses == [200]


async def test_a_subscription_that_the_server_cancels_ends() -> None:
    meta = {META_VERSION: "2026-07-28", META_CAPABILITIES: {}}
    body = message(id=7, method="subscriptions/listen", params={"_meta": meta, "notifications": {}})
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "subscriptions/listen"}
    visit = Exchanged(BrokenFacade(), "POST", headers, body)
    await visit.begun.wait()
    visit.task.cancel()
    await visit.task
    assert visit.statuses == [200]
    assert visit.ends == 1


async def test_a_client_that_leaves_a_stream_gets_no_answer() -> None:
    visit = Exchanged(BrokenFacade(), "GET", session())
    await visit.begun.wait()
    visit.gone.set()
    await visit.task
    assert visit.statuses == [200]
