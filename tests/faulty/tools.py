"""What a tool does when it is called."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.faulty.catalogue import Tool
from tests.faulty.recording import Record, Request
from tests.faulty.rpc import dumps


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call: text for the content, JSON bytes for structuredContent (None: none)."""

    text: str
    structured: bytes | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its arguments as received and parsed, and where it came from."""

    text: str
    arguments: Mapping[str, Any]
    request: Request
    record: Record

    def integer(self, name: str) -> int:
        value = self.arguments.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} must be an integer")
        return value

    def string(self, name: str) -> str:
        value = self.arguments.get(name)
        if not isinstance(value, str):
            raise ValueError(f"{name} must be a string")
        return value


async def run(tool: Tool, request: Request, record: Record) -> Outcome:
    """Execute a call. Arguments that do not fit are an outcome with ``is_error``, as MCP asks."""
    record.calls[tool.name] += 1
    text = request.message.params.get("arguments", "{}")
    arguments = json.loads(text)
    if not isinstance(arguments, dict):
        return Outcome("arguments must be an object", is_error=True)
    if not tool.base:
        own = b'{"tool":%b,"arguments":%b}' % (dumps(tool.name), text.encode())
        return Outcome(tool.name, own)
    try:
        return await _BASE[tool.name](Call(text, arguments, request, record))
    except ValueError as error:
        return Outcome(str(error), is_error=True)


async def _echo(call: Call) -> Outcome:
    return Outcome(call.text, call.text.encode())


async def _add(call: Call) -> Outcome:
    total = call.integer("a") + call.integer("b")
    return Outcome(str(total), dumps({"sum": total}))


async def _sleep(call: Call) -> Outcome:
    ms = call.integer("ms")
    await asyncio.sleep(ms / 1000)
    return Outcome(str(ms), dumps({"ms": ms}))


async def _put(call: Call) -> Outcome:
    key, value = call.string("key"), call.arguments.get("value")
    call.record.stored[key] = value
    call.record.puts.append((key, value))
    return Outcome(f"stored {key}", dumps({"stored": key}))


async def _get(call: Call) -> Outcome:
    key = call.string("key")
    if key not in call.record.stored:
        raise ValueError(f"nothing is stored under {key}")
    value = call.record.stored[key]
    return Outcome(value if isinstance(value, str) else dumps(value).decode(), dumps({"value": value}))


async def _fail(call: Call) -> Outcome:
    return Outcome(call.string("message"), is_error=True)


async def _whoami(call: Call) -> Outcome:
    session, switches = call.request.session, call.request.plan.switches
    known: dict[str, Any] = {
        "pid": os.getpid(),
        "session": session.id if session else None,
        "headers": sorted({name.lower() for name, _ in call.request.headers}),
        "env": sorted(os.environ),
    }
    if switches.echo_headers:
        known["header_values"] = {name.lower(): value for name, value in call.request.headers}
        known["session_headers"] = {name.lower(): value for name, value in session.opened_with} if session else {}
    if switches.echo_env:
        known["env_values"] = dict(os.environ)
        known["argv"] = sys.argv
    return Outcome(dumps(known).decode(), dumps(known))


async def _open(call: Call) -> Outcome:
    url = call.string("url")
    if call.request.session is not None:
        call.request.session.url = url
    return Outcome(url, dumps({"url": url}))


async def _current(call: Call) -> Outcome:
    url = call.request.session.url if call.request.session else None
    return Outcome(url or "nothing is open", dumps({"url": url}))


_BASE: Mapping[str, Callable[[Call], Awaitable[Outcome]]] = {
    "echo": _echo,
    "add": _add,
    "sleep": _sleep,
    "put": _put,
    "get": _get,
    "fail": _fail,
    "whoami": _whoami,
    "open": _open,
    "current": _current,
}
