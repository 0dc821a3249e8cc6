"""One answer on its way out: a JSON body, or an event stream once something must be said before the end.

The server chooses per request (transport section, all revisions since 2025-03-26). JSON is the default; the answer
becomes a stream when progress is reported to a client that asked for it, or when a call has been silent for
:data:`KEEPALIVE_S` so that no proxy in between cuts it off.
"""

from __future__ import annotations

import math
from typing import Any

from gateway.edge.http import Send, send_response
from gateway.edge.wire import notification_bytes

KEEPALIVE_S = 15.0
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


def event(message: bytes) -> bytes:
    """One JSON-RPC message as a server-sent event; compact JSON has no line breaks."""
    return b"event: message\r\ndata: " + message + b"\r\n\r\n"


class Exchange:
    """The response side of one HTTP exchange. Before the stream begins an error may still choose its HTTP status.

    Attributes:
        accepts_stream: the client accepts ``text/event-stream``.
        streaming: the response head has been sent as a stream.
        gone: the client has closed the connection; nothing is sent any more.
    """

    def __init__(self, send: Send, accepts_stream: bool, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self._send = send
        self._headers = headers
        self.accepts_stream = accepts_stream
        self.streaming = False
        self.gone = False
        self._finished = False
        self._last_progress = -math.inf

    async def begin_stream(self) -> None:
        """Send the head of an event stream, once."""
        if not self.streaming and not self.gone:
            self.streaming = True
            head = [*STREAM_HEADERS, *self._headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": head})

    async def say(self, message: bytes) -> None:
        """One message before the end; begins the stream."""
        await self.begin_stream()
        await self._chunk(event(message))

    async def keep_alive(self) -> None:
        """A comment line, which clients ignore and proxies count as life."""
        await self.begin_stream()
        await self._chunk(b": ping\r\n\r\n")

    async def progress(self, token: Any, done: float, message: str = "", total: float | None = None) -> None:
        """``notifications/progress``; values that do not grow are dropped, as the specification demands."""
        if done > self._last_progress and self.accepts_stream:
            self._last_progress = done
            params: dict[str, Any] = {"progressToken": token, "progress": done}
            if message:
                params["message"] = message
            if total is not None:
                params["total"] = total
            await self.say(notification_bytes("notifications/progress", params))

    async def finish(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """The response itself; ends the exchange, once: a second answer is dropped.

        ``status`` and ``headers`` count only when no stream has begun.
        """
        if self.gone or self._finished:
            return
        self._finished = True
        if self.streaming:
            await self._send({"type": "http.response.body", "body": event(body) if body else b""})
        else:
            await send_response(self._send, status, body, (*self._headers, *headers))

    async def _chunk(self, data: bytes) -> None:
        if not self.gone:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
