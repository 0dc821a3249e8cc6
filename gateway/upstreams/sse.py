"""Reading ``text/event-stream``, incrementally (WHATWG HTML, section 9.2).

Chunks go in as they arrive, complete events come out. Lines may end in LF, CRLF or CR, and a chunk may end anywhere,
inside a CRLF or a UTF-8 sequence too: everything stays bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.upstreams.base import MAX_MESSAGE_BYTES

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """One event outgrew the cap."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its type (``message`` unless named) and its data lines, joined by LF."""

    type: str
    data: bytes


class SseParser:
    """Collects chunks, gives events.

    Attributes:
        last_id: the id to resume after, or None when none was sent.
        retry_ms: the pause that the server asked for before a reconnect, or None.

    Args:
        cap: the largest event, bytes.
    """

    def __init__(self, cap: int = MAX_MESSAGE_BYTES) -> None:
        self.last_id: bytes | None = None
        self.retry_ms: int | None = None
        self._cap = cap
        self._line = bytearray()  # the line whose end has not come yet
        self._data: list[bytes] = []
        self._size = 0
        self._type = ""
        self._after_cr = False  # the last chunk ended in CR: a LF at the start of the next one belongs to it
        self._first = True

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that ``chunk`` completes.

        Raises:
            EventTooLarge
        """
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        events: list[Event] = []
        start = 0
        for end in _LINE_END.finditer(chunk):
            self._line += chunk[start : end.start()]
            start = end.end()
            line = bytes(self._line)
            self._line.clear()
            event = self._take(line)
            if event is not None:
                events.append(event)
        self._line += chunk[start:]
        if len(self._line) + self._size > self._cap:
            raise EventTooLarge
        return events

    def _take(self, line: bytes) -> Event | None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1  # empty data lines weigh too
            if self._size > self._cap:
                raise EventTooLarge
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self.last_id = value
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self.retry_ms = int(value)
        return None  # comments and unknown fields are ignored

    def _dispatch(self) -> Event | None:
        event = Event(self._type or "message", b"\n".join(self._data)) if self._data else None
        self._data.clear()
        self._size = 0
        self._type = ""
        return event
