"""Reading what the gateway says on event streams while they are open, in either era; for black-box tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.client.streamable_http import streamable_http_client

from tests.companions import eventually
from tests.running import META, MODERN, Running

LEGACY = "2025-11-25"
DIRECT = "/mcp/direct"
WITHIN_S = 10.0
REPOSITORY = str(Path(__file__).parents[2])

Message = dict[str, Any]


def everything(*switches: str, **options: Any) -> dict[str, Any]:
    """The reference server on the official SDK, as an entry of ``upstreams``."""
    arguments = ["-m", "tests.conformance.everything", *switches]
    return {"command": sys.executable, "args": arguments, "cwd": REPOSITORY, **options}


@dataclass
class Stream:
    """One response, read while it comes: its head (status 0 before it is there), and the messages so far with the time
    of their arrival."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ended: bool = False

    async def begun(self) -> Stream:
        """Wait for the head."""
        await eventually(lambda: self.status, within_s=WITHIN_S)
        return self

    async def until(self, wanted: Callable[[Message], object], within_s: float = WITHIN_S) -> Message:
        """The first message of this kind, waited for."""

        def found() -> Message | None:
            return next((message for message in self.messages if wanted(message)), None)

        message = await eventually(found, within_s=within_s)
        assert message is not None
        return message

    async def answer(self) -> Message:
        """The response at the end."""
        return await self.until(lambda message: "result" in message or "error" in message)

    def of(self, method: str) -> list[Message]:
        """The params of all messages with this method."""
        return [message.get("params", {}) for message in self.messages if message.get("method") == method]

    async def read(self, sending: contextlib.AbstractAsyncContextManager[httpx2.Response]) -> None:
        async with sending as response:
            self.status, self.headers = response.status_code, response.headers
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                self._took((await response.aread()).decode())
            else:
                async for line in response.aiter_lines():
                    if line.startswith("data:"):
                        self._took(line[5:])
        self.ended = True

    def _took(self, text: str) -> None:
        if text.strip():
            self.messages.append(json.loads(text))
            self.times.append(time.monotonic())


@dataclass
class Talker:
    """A raw client of one tenant and era; with a session in the older era, once it has said :meth:`hello`."""

    running: Running
    tenant: str = "acme"
    path: str = DIRECT
    version: str = MODERN
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    session: str = ""
    welcome: Message = field(default_factory=dict)

    async def hello(self) -> Talker:
        """``initialize``."""
        info = {"name": "raw", "version": "1"}
        params = {"protocolVersion": LEGACY, "capabilities": dict(self.capabilities), "clientInfo": info}
        body = {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params}
        response = await self.running.post(body, tenant=self.tenant, path=self.path)
        self.version, self.session = LEGACY, response.headers["mcp-session-id"]
        self.welcome = response.json()["result"]
        return self

    def headers(self, method: str = "", params: Mapping[str, Any] | None = None) -> dict[str, str]:
        found = {"MCP-Protocol-Version": self.version}
        if self.version == MODERN and method:
            found["Mcp-Method"] = method
            mirrored = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}.get(method)
            if mirrored is not None:
                found["Mcp-Name"] = str((params or {}).get(mirrored))
        if self.session:
            found["Mcp-Session-Id"] = self.session
        return found

    def body(
        self, method: str, params: Mapping[str, Any] | None, request_id: int | str, meta: Mapping[str, Any]
    ) -> Message:
        base: dict[str, Any] = {}
        if self.version == MODERN:
            base = {META + "protocolVersion": MODERN, META + "clientCapabilities": dict(self.capabilities)}
        whole = {**(params or {}), "_meta": {**base, **meta}}
        return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": whole}

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        request_id: int | str = 1,
        meta: Mapping[str, Any] | None = None,
    ) -> Message:
        """One request; its response, whatever form it has."""
        async with self.open(method, params, request_id=request_id, meta=meta) as stream:
            return await stream.answer()

    async def result(self, method: str, params: Mapping[str, Any] | None = None, **meta: Any) -> Message:
        response = await self.ask(method, params, meta=meta)
        assert "result" in response, response
        result: Message = response["result"]
        return result

    async def code(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """The code of the error that answers a request."""
        response = await self.ask(method, params)
        assert "error" in response, response
        return int(response["error"]["code"])

    async def post(self, body: Message) -> int:
        """A notification or an answer; the HTTP status."""
        headers = self.headers(str(body.get("method", "")))
        return (await self.running.post(body, tenant=self.tenant, path=self.path, headers=headers)).status_code

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        request_id: int | str = 1,
        meta: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Stream]:
        """One request whose response is read while it comes; leaving the block closes the connection."""
        body = self.body(method, params, request_id, meta or {})
        async with self._stream("POST", json.dumps(body).encode(), self.headers(method, params)) as stream:
            yield stream

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[Stream]:
        """The session's GET stream."""
        async with self._stream("GET", None, self.headers()) as stream:
            yield await stream.begun()

    @contextlib.asynccontextmanager
    async def listen(self, **notifications: Any) -> AsyncIterator[Stream]:
        """``subscriptions/listen``, acknowledged when the block begins."""
        async with self.open("subscriptions/listen", {"notifications": notifications}, request_id="listen") as stream:
            await stream.until(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")
            yield stream

    @contextlib.asynccontextmanager
    async def _stream(self, verb: str, body: bytes | None, headers: Mapping[str, str]) -> AsyncIterator[Stream]:
        sent = {
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {self.running.keys[self.tenant]}",
            **({"Content-Type": "application/json"} if body is not None else {}),
            **headers,
        }
        stream = Stream()
        sending = self.running.client.stream(verb, self.running.url + self.path, content=body, headers=sent)
        reading = asyncio.create_task(stream.read(sending))
        try:
            yield stream
        finally:
            reading.cancel()
            await asyncio.wait({reading})


@contextlib.asynccontextmanager
async def official(
    running: Running, mode: ConnectMode, *, tenant: str = "acme", path: str = DIRECT, **callbacks: Any
) -> AsyncIterator[Client]:
    """The Python SDK's own client; ``mode`` ``legacy`` or ``auto``, which is the modern era here."""
    headers = {"Authorization": f"Bearer {running.keys[tenant]}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30, verify=False) as http,  # plain HTTP: no certificates to load
        Client(streamable_http_client(running.url + path, http_client=http), mode=mode, **callbacks) as client,
    ):
        yield client
