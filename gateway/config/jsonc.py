"""JSON as editors keep it: with ``//`` and ``/* */`` comments and trailing commas. Positions stay exact."""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.config.document import MAX_DEPTH, Mark, mark_at

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\.)*") | (?P<comment>//[^\n\r]*|/\*.*?(?:\*/|\Z)) | (?P<open>[\[{]) | (?P<close>[\]}])
      | (?P<comma>,) | (?P<space>\s+) | (?P<other>[^\s"/\[\]{},]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_NO_NUMBER = re.compile(r"-?(?:NaN|Infinity)|[0-9]{400,}")


class JsoncError(ValueError):
    """The text is no JSON, not even with comments. ``mark`` is where; the message holds nothing of the text."""

    def __init__(self, message: str, mark: Mark) -> None:
        super().__init__(message)
        self.mark = mark


def parse(text: str) -> tuple[Any, tuple[str, ...]]:
    """Read the text.

    Returns:
        the value, and the keys that an object holds twice (the last one counts, as in every JSON reader).

    Raises:
        JsoncError
    """
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        twice.extend(sorted({name for name in names if names.count(name) > 1}))
        return dict(items)

    text = _plain(text.removeprefix("\ufeff"))
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise JsoncError(f"not valid JSON: {error.msg}", mark_at(text, error.pos)) from None
    return value, tuple(twice)


def _plain(text: str) -> str:
    """The text with comments and trailing commas replaced by spaces, character for character."""
    pieces: list[str] = []
    comma: int | None = None  # index in pieces of a comma after which only space and comments came
    depth, before = 0, "open"  # the kind of the last piece that is neither space nor comment
    for token in _TOKEN.finditer(text):
        kind, piece = token.lastgroup, token[0]
        if kind == "comment":
            if piece.startswith("/*") and (len(piece) < 4 or not piece.endswith("*/")):
                raise JsoncError("not valid JSON: a comment is not closed", mark_at(text, token.start()))
            piece = re.sub(r"[^\n\r]", " ", piece)
        elif kind == "other" and (number := _NO_NUMBER.search(piece)):
            raise JsoncError(
                "not valid JSON: a number that cannot be used", mark_at(text, token.start() + number.start())
            )
        elif kind == "open":
            depth += 1
            if depth > MAX_DEPTH:
                raise JsoncError(f"nested too deeply: {MAX_DEPTH} levels at most", mark_at(text, token.start()))
        elif kind == "close":
            depth -= 1
            if comma is not None:
                pieces[comma] = " "
        if kind not in ("space", "comment"):
            comma = len(pieces) if kind == "comma" and before not in ("open", "comma") else None
            before = kind or ""
        pieces.append(piece)
    return "".join(pieces)
