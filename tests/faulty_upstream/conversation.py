"""Talking to a faulty upstream in raw bytes: over stdio as :class:`Conversation`, over HTTP with :func:`post`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.companions import DEADLINE_S, Control, RawClient, RawResponse, eventually, faulty_command

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
ACCEPT = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


def modern(method: str, params: dict[str, Any] | None = None, identity: Any = 1, **meta: Any) -> bytes:
    """One request of the modern era, without its line end."""
    params = {**(params or {}), "_meta": {**META, **meta}}
    return json.dumps({"jsonrpc": "2.0", "id": identity, "method": method, "params": params}).encode()


def legacy(method: str, params: dict[str, Any] | None = None, identity: Any = 1) -> bytes:
    """One request of the legacy era, or a notification when ``identity`` is None."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": identity, "method": method, "params": params or {}}
    if identity is None:
        del message["id"]
    return json.dumps(message).encode()


def call(tool: str, identity: Any = 1, **arguments: Any) -> bytes:
    return modern("tools/call", {"name": tool, "arguments": arguments}, identity)


class Conversation:
    """One process on stdio."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.stderr = bytearray()
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    async def send(self, *lines: bytes) -> None:
        self._stdin.write(b"".join(line + b"\n" for line in lines))
        async with asyncio.timeout(DEADLINE_S):
            await self._stdin.drain()

    async def line(self) -> bytes:
        """The next line, raw, with its end; empty at the end of stdout."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._stdout.readline()

    async def ask(self, line: bytes) -> Any:
        """Send one line and parse the next one that comes."""
        await self.send(line)
        return json.loads(await self.line())

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self._stdout.readexactly(count)

    async def initialize(self, version: str = "2025-11-25") -> Any:
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        answer = await self.ask(legacy("initialize", params, "init"))
        await self.send(legacy("notifications/initialized", identity=None))
        return answer

    async def ended(self) -> int:
        """The exit code, once it has ended by itself."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.process.wait()

    def close_stdin(self) -> None:
        self._stdin.close()


@contextlib.asynccontextmanager
async def stdio(*switches: str) -> AsyncIterator[Conversation]:
    command, arguments = faulty_command(*switches)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        command, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 24
    )
    conversation = Conversation(process)
    draining = asyncio.create_task(_collect(process, conversation.stderr))
    try:
        yield conversation
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
        await draining


async def _collect(process: asyncio.subprocess.Process, into: bytearray) -> None:
    stderr, process.stderr = process.stderr, None
    assert stderr is not None
    while data := await stderr.read(1 << 16):
        into += data


async def post(client: RawClient, body: bytes, path: str = "/mcp", **headers: str) -> None:
    """Send one message with the headers its era wants; ``Some_Header="x"`` adds or replaces one."""
    message = json.loads(body)
    params = message.get("params", {})
    sent = dict(ACCEPT)
    if "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {}):
        sent |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": message["method"]}
        if "name" in params:
            sent["Mcp-Name"] = params["name"]
    await client.request("POST", path, body, {**sent, **{name.replace("_", "-"): v for name, v in headers.items()}})


async def exchange(port: int, body: bytes, path: str = "/mcp", **headers: str) -> RawResponse:
    """One request on a connection of its own."""
    async with RawClient(port) as client:
        await post(client, body, path, **headers)
        return await client.response()


async def open_session(port: int) -> dict[str, str]:
    """A legacy session; returns the headers that its requests carry."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    response = await exchange(port, legacy("initialize", params))
    session = {"Mcp_Session_Id": response.headers["mcp-session-id"], "MCP_Protocol_Version": "2025-11-25"}
    await exchange(port, legacy("notifications/initialized", identity=None), **session)
    return session


async def state_with(control: Control, **expected: Any) -> dict[str, Any]:
    """Wait until ``GET /state`` shows these values."""

    async def reached() -> dict[str, Any]:
        state = await control.state()
        return state if all(state[key] == value for key, value in expected.items()) else {}

    return await eventually(reached)
