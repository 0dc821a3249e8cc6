"""The control port: a test changes faults, breaks connections and looks at counters while the server runs.

* ``POST /set {"switch": value or null, …}``: a switch without its dashes; true for one that takes no value, a list for
  one that is given several times; null takes it back
* ``POST /now {"notify": "list_changed" | "log" | "ping"}``
* ``POST /now {"reset": "connections" | POINT, "tool": NAME?}``: RST for all connections, or those busy at that point
* ``POST /now {"reset": "sessions"}``: forgets all sessions · ``{"exit": CODE}``: ends the process at once
* ``GET /state``: :meth:`tests.faulty.recording.Record.state`
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from tests.faulty.http1 import HttpConnection, HttpRequest
from tests.faulty.http_wire import HttpWire
from tests.faulty.rpc import dumps
from tests.faulty.server import Server
from tests.faulty.switches import BadSwitch


class ControlPort:
    def __init__(self, server: Server, wire: HttpWire | None) -> None:
        self._server = server
        self._wire = wire

    async def start(self, port: int) -> int:
        """Listen on loopback; returns the port."""
        listener = await asyncio.start_server(self._serve, "127.0.0.1", port)
        return int(listener.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = HttpConnection(reader, writer)
        try:
            while request := await connection.read_request():
                try:
                    answer = await self._answer(request)
                    await connection.respond(200, {"Content-Type": "application/json"}, dumps(answer))
                except (BadSwitch, OSError, ValueError, KeyError) as error:
                    await connection.respond(400, {"Content-Type": "text/plain"}, f"{error}\n".encode())
        except ConnectionError:
            pass  # the test has gone
        finally:
            connection.close()

    async def _answer(self, request: HttpRequest) -> Any:
        match request.method, request.path:
            case "GET", "/state":
                return self._server.record.state()
            case "POST", "/set":
                for switch, value in json.loads(request.body).items():
                    self._set(switch, value)
                return {}
            case "POST", "/now":
                return await self._now(json.loads(request.body))
        raise ValueError("POST /set, POST /now, GET /state")

    def _set(self, switch: str, value: Any) -> None:
        values = value if isinstance(value, list) else [value]
        self._server.change(switch, None)
        for number, one in enumerate(values):
            if one is None or one is False:
                continue
            self._server.change(switch, "" if one is True else str(one), add=number > 0)

    async def _now(self, order: dict[str, Any]) -> Any:
        match order:
            case {"notify": str(kind)}:
                await self._server.announce(kind)
                return {}
            case {"reset": "sessions"}:
                self._server.record.sessions.clear()
                return {}
            case {"reset": str(what)} if self._wire is not None:
                return {"reset": self._wire.reset(what, order.get("tool"))}
            case {"exit": int(code)}:
                os._exit(code)
        raise ValueError("notify, reset or exit")
