"""What a script printed, kept up to a cap; the rest is only counted."""

from __future__ import annotations

from gateway.kernels.base import MAX_LOG_CHARS


class LogBuffer:
    """Keeps the first ``limit`` characters of all streams together, in order, and counts the others.

    Written by one thread of the engine at a time, read after the script has ended.
    """

    def __init__(self, limit: int = MAX_LOG_CHARS) -> None:
        self._chunks: list[str] = []
        self._left = limit
        self.dropped = 0

    def write(self, stream: str, text: str) -> None:
        """Take what a script wrote to ``stream`` (``stdout`` or ``stderr``; both land in the same text)."""
        kept = text[: self._left]
        if kept:
            self._chunks.append(kept)
            self._left -= len(kept)
        self.dropped += len(text) - len(kept)

    def text(self) -> str:
        return "".join(self._chunks)
