"""Text → the terms of the search index: identifiers split, words stemmed, accents dropped.

The same function reads tools and questions, so that ``getHTTPSUrl2`` is found by "https url" and a question in
Chinese finds a description in Chinese.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

MAX_TEXT_CHARS = 20_000
"""The longest description of 3,223 real tools has 14,020 characters; what comes after this is not indexed."""

_STOP_WORDS = """
a an the of to in on for with and or is are be by from at as it this that these those i you your my me we our us their
its can could would should please want need how what which when where who will do does did have has had if so into
about using use used via not no any all each such also than then there here them they was were been being only just
more most other some may might must let s t re ve ll d m
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

# Scripts that do not put spaces between words, and Hangul, whose words carry their particles: cut into pairs.
_PAIRED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|(?P<paired>[{_PAIRED}]+)|[^\W\d_A-Za-z{_PAIRED}]+")
_RUN = re.compile(r"[A-Za-z0-9]+")
_SHORT_MIXED = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{1,3}\d{1,3}[a-z]?(?![A-Za-z0-9])")  # s3, ec2, k8s
_UNDECOMPOSED = str.maketrans(
    {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ı": "i"}
    | {"Æ": "AE", "Œ": "OE", "Ø": "O", "Ł": "L", "Đ": "D", "Ð": "D", "Þ": "TH"}
)
_DOUBLED = re.compile(r"([^aeioulsz])\1$")


def terms(text: str) -> list[str]:
    """The terms of ``text`` in its order, stop words left out, repetitions kept."""
    text = _fold(text[:MAX_TEXT_CHARS])
    found: list[str] = []
    for match in _WORD.finditer(text):
        word = match[0].lower()
        if match["paired"] and len(word) > 2:
            found.extend(word[n : n + 2] for n in range(len(word) - 1))
        elif word not in STOP_WORDS:
            found.append(stem(word))
    found.extend(short.lower() for short in _SHORT_MIXED.findall(text))
    return found


def compounds(name: str) -> set[str]:
    """The unsplit spellings of a name: ``addPerson`` → ``addperson``, for questions that leave out the border."""
    runs = [run.lower() for run in _RUN.findall(name)]
    return {stem(run) for run in (*runs, "".join(runs)) if len(run) > 3}


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """``word`` without plural, -ing, -ed and final -e. As good as Snowball on texts of tools, in twenty lines."""
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "shes", "ches", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for suffix in ("ing", "ed"):
        root = word.removesuffix(suffix)
        if root != word and len(root) >= 3 and re.search("[aeiouy]", root):
            word = root[:-1] if len(root) > 3 and _DOUBLED.search(root) else root
            break
    return word[:-1] if word.endswith("e") and len(word) > 4 else word


def _fold(text: str) -> str:
    """Without accents: ``Größe`` → ``Grosse``."""
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text.translate(_UNDECOMPOSED))
    return unicodedata.normalize("NFC", "".join(char for char in decomposed if not unicodedata.combining(char)))
