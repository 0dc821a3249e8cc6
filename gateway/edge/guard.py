"""What one connection may cost outside the application: sizes and deadlines of heads and bodies, and of taking answers.

uvicorn's protocol limits none of them. Measured without this: 8,000 small headers stop the event loop for seconds in
frameworks that index them, a header of 1 MB is accepted, and whoever sends one byte a second is kept for ever.

* Too many or too long headers: 431. A target over 8 KiB: 414. A target that is not a path: 421 (RFC 9112, 3.2.2: the
  authority in it would outrank the Host that was checked). A body on a GET, a transfer coding that is not ``chunked``
  in HTTP/1.1 (RFC 9112, 6.1), trailers, and all that the parser calls malformed: 400.
* A head or a body that is not complete in time, or a body of which nothing comes for a third of that time: 408.
* A connection on which no request begins is closed like an idle one.
* An answer of which the client takes nothing for some time: the connection is aborted. Closing it would wait for the
  client, and keep the answer in memory as long as it likes.
* ``Upgrade`` is ignored, as RFC 9110, 7.8 allows: Java's client asks for h2c with its first POST, and the parser would
  drop the body of that.
* An answer given before the request has ended closes the connection, but only after the client could read it: closing
  a socket with unread input resets it, and a reset may overtake the answer.

A request that arrives whole, which nearly all do, costs a few comparisons and no timer.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.edge.http import HttpRefused, refusal

log = logging.getLogger("gateway.edge")

MAX_TARGET_BYTES = 8 * 1024
LINGER_S = 2.0
"""How long a client that is still sending may take to read the answer that refuses it."""
_BODILESS = frozenset((b"GET", b"HEAD", b"OPTIONS", b"DELETE"))


def _check_uvicorn() -> None:
    """The names of uvicorn below are not documented: after an update that drops one, say so instead of failing later.

    Raises:
        ImportError: names what is missing.
    """
    ours: dict[Any, str] = {
        HttpToolsProtocol: "connection_made connection_lost on_message_begin on_header on_headers_complete "
        "on_message_complete on_response_complete send_400_response timeout_keep_alive_handler pause_writing "
        "_unset_keepalive_if_required",
        HttpToolsProtocol.__init__: "loop parser transport cycle pipeline server_state timeout_keep_alive "
        "timeout_keep_alive_task",
        HttpToolsProtocol.on_message_begin: "headers url expect_100_continue",
        RequestResponseCycle.__init__: "disconnected response_started response_complete message_event",
    }
    missing = [
        f"{owner.__qualname__}.{name}"
        for owner, names in ours.items()
        for name in names.split()
        if not hasattr(owner, name) and name not in getattr(getattr(owner, "__code__", None), "co_names", ())
    ]
    if missing:
        raise ImportError(f"uvicorn {uvicorn.__version__} is not supported: it has no {', '.join(missing)}")


_check_uvicorn()


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one request may cost.

    Attributes:
        headers: how many.
        head_bytes: request line and headers together.
        head_s: seconds from the first byte of a head to its last.
        body_s: seconds for a whole body; a third of it may pass without a byte.
        stall_s: seconds in which a client must take something of an answer that waits to be sent. The kernel's own
            buffer, which may be some MB, hides what it takes in smaller steps.
    """

    headers: int = 100
    head_bytes: int = 32 * 1024
    head_s: float = 5.0
    body_s: float = 30.0
    stall_s: float = 60.0


def guarded(limits: HttpLimits) -> type[HttpToolsProtocol]:
    """The protocol class for ``uvicorn.Config(http=…)``."""
    return type("GuardedProtocol", (_Guarded,), {"limits": limits})


class _Phase(Enum):
    """Of the request that is being received."""

    NONE = 0
    HEAD = 1
    BODY = 2


class _Guarded(HttpToolsProtocol):
    """One connection.

    Mutable state: how much of a request has come and since when; ``_timer``, while one has not come whole; ``_over``,
    once nothing that still comes counts; ``_untaken`` and ``_taking``, while an answer waits for the client.
    """

    limits: HttpLimits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = _Phase.NONE
        self._upgrading = False
        self._chunk = 0  # bytes in the piece that is being parsed
        self._overhead = 0  # bytes since the head began, or since the last of the body
        self._since = 0.0  # when the head, or then the body, was first seen incomplete; 0: it was not
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._untaken = 0  # bytes of answers that waited when it was last looked
        self._taking: asyncio.TimerHandle | None = None
        self._socket: _Lingering
        self.url = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = _Lingering(transport, self)
        super().connection_made(cast(asyncio.Transport, self._socket))
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._taking is not None:
            self._taking.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._socket.closed()

    # ---- input ------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._unset_keepalive_if_required()
        self._chunk = len(data)
        self._overhead += self._chunk
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, HttpRefused) else HttpRefused(400, "malformed HTTP request"))
            return
        except httptools.HttpParserUpgrade as upgrade:
            self._read_again_without_upgrade(data[upgrade.args[0] :])
            return
        if self._phase is not _Phase.NONE or not self._answering():
            self._wait_for_more()

    def on_message_begin(self) -> None:
        self._phase = _Phase.HEAD
        self._overhead = self._chunk
        self._since = 0.0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"transfer-encoding":
            if value.strip(b" \t").lower() != b"chunked" or self.parser.get_http_version() != "1.1":
                raise HttpRefused(400, "Transfer-Encoding can only be chunked, in HTTP/1.1")
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        if self._phase is _Phase.BODY:
            raise HttpRefused(400, "trailers are not accepted")
        self.headers.append((name, value))
        if len(self.headers) > self.limits.headers:
            raise HttpRefused(431, f"more than {self.limits.headers} headers")

    def on_headers_complete(self) -> None:
        if self._overhead > self.limits.head_bytes:  # perhaps with a body or the end of another request
            self._check_head(len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers))
        elif len(self.url) > MAX_TARGET_BYTES:
            self._check_head(0)
        if not self.url.startswith(b"/"):
            raise HttpRefused(421, "the request target must be a path")
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise HttpRefused(421, "this is no proxy")
            self._upgrading = True
            return
        super().on_headers_complete()
        self._phase = _Phase.BODY
        self._since = 0.0

    def on_body(self, body: bytes) -> None:
        if self.parser.get_method() in _BODILESS:
            raise HttpRefused(400, "a body is only accepted with POST")
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._upgrading:
            self._phase = _Phase.NONE
            self._overhead = 0
            self._since = 0.0
            super().on_message_complete()

    def _read_again_without_upgrade(self, rest: bytes) -> None:
        self._upgrading = False
        kept = [(name, value) for name, value in self.headers if name != b"upgrade"]
        head = b"".join(name + b": " + value + b"\r\n" for name, value in kept)
        start = self.parser.get_method() + b" " + self.url + b" HTTP/1.1\r\n"
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(start + head + b"\r\n" + rest)

    def on_response_complete(self) -> None:
        if self._phase is _Phase.BODY and not self.pipeline:
            self.transport.close()
        super().on_response_complete()

    # ---- limits -----------------------------------------------------------------------------------------------------

    def _check_head(self, size: int) -> None:
        """Raises HttpRefused: 414 or 431."""
        if len(self.url) > MAX_TARGET_BYTES:
            raise HttpRefused(414, f"the target is longer than {MAX_TARGET_BYTES} bytes")
        if size > self.limits.head_bytes:
            raise HttpRefused(431, f"the headers are larger than {self.limits.head_bytes} bytes")

    def _wait_for_more(self) -> None:
        """A request is not complete, or bytes came that begin none: they may not be too many, nor take too long."""
        try:
            self._check_head(self._overhead)
        except HttpRefused as refused:
            self._refuse(refused)
            return
        self._last = self.loop.time()
        if not self._since:
            self._since = self._last
        if self._timer is None:
            self._timer = self.loop.call_at(self._due(), self._check_time)

    def _due(self) -> float:
        if self._phase is not _Phase.BODY:
            return self._since + self.limits.head_s
        return min(self._since + self.limits.body_s, self._last + self.limits.body_s / 3)

    def _check_time(self) -> None:
        """One timer serves all requests of a connection: cheaper than one that is moved with each piece."""
        self._timer = None
        if self._over or not self._since or (self._phase is _Phase.NONE and self._answering()):
            return
        if self.loop.time() < self._due():
            self._timer = self.loop.call_at(self._due(), self._check_time)
            return
        what = "body" if self._phase is _Phase.BODY else "head"
        self._refuse(HttpRefused(408, f"the {what} of the request took too long"))

    # ---- output -----------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch_taking()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking is not None and not self._socket.is_closing():
            self._taking.cancel()
            self._taking = None

    def watch_taking(self) -> None:
        """Answers wait for the client from here on: it must go on taking them."""
        if self._taking is None:
            self._untaken = self._socket.get_write_buffer_size()
            self._taking = self.loop.call_later(self.limits.stall_s, self._check_taking)

    def _check_taking(self) -> None:
        """Progress counts and not a deadline: a large answer may take long on a thin line."""
        self._taking = None
        waiting = self._socket.get_write_buffer_size()
        if waiting and waiting >= self._untaken:
            log.info("connection aborted: the client takes nothing of its answer", extra={"bytes": waiting})
            self._over = True
            self._socket.abort()
        elif waiting:
            self.watch_taking()

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _answering(self) -> bool:
        """Whether the answer to the latest request is still to come."""
        return self.cycle is not None and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        self._refuse(HttpRefused(400, msg))

    def _refuse(self, refused: HttpRefused) -> None:
        """Answer in place of the application and close; only close when another answer is due or under way."""
        log.info("request refused", extra={"status": refused.status, "reason": refused.message})
        receiving = self._phase is _Phase.BODY
        if (self._answering() and not receiving) or (receiving and (self.pipeline or self.cycle.response_started)):
            self._over = True
            self._socket.abort()
            return
        body, headers = refusal(refused)
        head = [*self.server_state.default_headers, *headers, (b"connection", b"close")]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in head)
        self.transport.write(STATUS_LINE[refused.status] + lines + b"\r\n" + body)
        if receiving:
            # the application waits for the body: to it, the client has gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._socket.linger()

    def closing(self) -> bool:
        """Nothing that still comes counts. Returns whether the client is in the middle of sending a request."""
        unread = self._phase is _Phase.BODY and not self._over
        self._over = True
        return unread


class _Lingering:
    """A transport that lets a client which is still sending read its answer before the connection is closed."""

    def __init__(self, transport: asyncio.Transport, connection: _Guarded) -> None:
        self._transport = transport
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self.write = transport.write

    def close(self) -> None:
        if self._timer is not None:
            return  # it lingers
        if self._connection.closing():
            self.linger()
        else:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._connection.watch_taking()

    def linger(self) -> None:
        """Send the end of our side and drop what still comes, until the client closes or its time is over."""
        if self._transport.is_closing():
            return
        self._connection.closing()
        self._timer = self._connection.loop.call_later(LINGER_S, self._transport.abort)
        self._transport.resume_reading()
        self._transport.write_eof()

    def closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def is_closing(self) -> bool:
        return self._timer is not None or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
