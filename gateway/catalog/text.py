"""Hygiene for text that strangers wrote: names, descriptions and defaults of tools.

Whatever is printed for a model passes through here and becomes one line without control characters and without
characters that a reader does not see. Such a line behind a comment mark cannot end its comment, its code block or
its entry in an answer.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
_BLANK_ASCII = re.compile(r"[\x00-\x20\x7f]+")
_BLANKS = re.compile(r" {2,}")
_SENTENCE = re.compile(r"(.{8,}?[.!?])(?:\s|$)")

_SPACES = frozenset({"Cc", "Zl", "Zp", "Zs"})
_UNSEEN = frozenset({"Cf", "Cs", "Co", "Cn"})
_UNSEEN_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Fillers and joiners that Unicode counts as letters or marks although they show nothing."""


def one_line(text: Any, limit: int | None = None) -> str:
    """``text`` as one line, at most ``limit`` characters and then cut at a word with ``…``. Never raises.

    Terminal escapes go; white space, control characters and line separators become single spaces; format characters
    (direction overrides, zero width, tags), variation selectors, surrogates and private use go.
    """
    line = text if isinstance(text, str) else "" if text is None else str(text)
    cut = limit is not None and len(line) > 8 * limit + 1_000
    if cut:
        line = line[: 8 * (limit or 0) + 1_000]
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if line.isascii():
        line = _BLANK_ASCII.sub(" ", line).strip()
    else:
        line = _BLANKS.sub(" ", "".join(map(_clean, line))).strip()
    if limit is not None and (cut or len(line) > limit):
        line = line[: max(limit - 1, 0)]
        line = (line.rsplit(" ", 1)[0] if " " in line[limit // 2 :] else line).rstrip(" .,;:") + "…"
    return line


def first_sentence(text: Any, limit: int = 160) -> str:
    """The first sentence of ``text``, cleaned, at most ``limit`` characters."""
    line = one_line(text, 4 * limit)
    found = _SENTENCE.match(line)
    return one_line(found[1] if found else line, limit)


def unseen(text: str) -> int:
    """How many characters of ``text`` a reader would not see; more than none is worth telling the operator."""
    if text.isascii():
        return text.count("\x1b")
    return sum(not _clean(char) and char not in "\ufe0f\u200d\ufeff\u00ad" for char in text)


def _clean(char: str) -> str:
    if char.isascii():
        return char if " " < char < "\x7f" else " "
    category = unicodedata.category(char)
    if category in _SPACES:
        return " "
    if category in _UNSEEN or char in _UNSEEN_LETTERS or "\ufe00" <= char <= "\ufe0f" or char >= "\U000e0000":
        return ""
    return char
