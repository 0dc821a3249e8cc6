"""Cutting a byte stream into lines, at linear cost and with a cap.

One JSON-RPC message is one line (stdio transport). A line is held once, in one growing buffer, until its end arrives; a
line beyond the cap ends the stream, because nothing after it can be trusted to begin at a boundary.
"""

from __future__ import annotations

from gateway.upstreams.base import MAX_MESSAGE_BYTES

BOM = b"\xef\xbb\xbf"


class LineTooLong(Exception):
    """A line outgrew the cap. Attribute ``cap``: bytes."""

    def __init__(self, cap: int) -> None:
        super().__init__(
            f"a message is larger than {cap >> 20} MiB" if cap >= 1 << 20 else f"a line exceeds {cap} bytes"
        )
        self.cap = cap


class LineFramer:
    """Collects chunks, gives lines.

    Args:
        cap: the longest line, bytes without its end.
    """

    def __init__(self, cap: int = MAX_MESSAGE_BYTES) -> None:
        self._cap = cap
        self._held = bytearray()  # the beginning of the line whose end has not come yet

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that ``chunk`` completes, without line ends, byte order marks and blank lines.

        Raises:
            LineTooLong: the framer must not be used any more.
        """
        *lines, rest = chunk.split(b"\n")
        if lines and self._held:
            self._held += lines[0]
            lines[0] = bytes(self._held)
            self._held.clear()
        self._held += rest
        if len(self._held) > self._cap or any(len(line) > self._cap for line in lines):
            self._held.clear()
            raise LineTooLong(self._cap)
        return [line for line in map(_trimmed, lines) if line]


def _trimmed(line: bytes) -> bytes:
    return line.removeprefix(BOM).strip(b" \t\r")
