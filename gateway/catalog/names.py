"""The three spellings of a tool, made unique without depending on the order in which anything arrives.

* ``name``: ``<upstream>__<tool>``, the tool spelled as its upstream does (or by its alias). Unique, because an
  upstream's name neither contains ``__`` nor ends in ``_``.
* ``identifier``: the same with every character that an identifier cannot have as ``_``. It always contains ``__``, so
  that it is never a keyword or a builtin.
* ``direct_name``: what direct mode lists, ``[A-Za-z0-9_-]{1,64}`` as model providers demand.

:func:`assign` settles the tools of one upstream, :func:`settle` a whole catalogue. After that the three spellings of
all tools share one namespace: a string means one tool or none, whichever spelling it is.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from gateway.catalog.tool import Tool

SEPARATOR = "__"
DIRECT_LIMIT = 64

_DIRECT = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Names:
    """The three spellings of one tool."""

    name: str
    identifier: str
    direct_name: str


@dataclass(frozen=True, slots=True)
class Collision:
    """Two tools of different upstreams wanted one spelling.

    Attributes:
        spelling: what both wanted.
        kept_by: ``name`` of the tool that has it.
        moved: ``name`` of the tool that goes by another spelling now.
        now: that spelling.
    """

    spelling: str
    kept_by: str
    moved: str
    now: str

    def __str__(self) -> str:
        return (
            f"{self.moved!r} and {self.kept_by!r} both want the name {self.spelling!r}; the former is now {self.now!r}"
        )


def qualified(upstream: str, tool: str) -> str:
    """``<upstream>__<tool>``."""
    return upstream + SEPARATOR + tool


def mangle(text: str) -> str:
    """``text`` in NFKC (``é`` is one character) with everything outside ``[A-Za-z0-9_]`` as ``_``."""
    return re.sub(r"[^A-Za-z0-9_]", "_", unicodedata.normalize("NFKC", text))


def assign(upstream: str, tools: Iterable[str], prefix: str | None = None) -> dict[str, Names]:
    """Spellings for the tools of one upstream; the same for any order of ``tools``.

    Identifiers: names that already are identifiers keep theirs; of the others the second and later ones in name order
    get ``_2``, ``_3`` …, skipping what is taken.

    Direct names: ``<prefix><tool>`` when that is legal. Otherwise illegal characters become ``_``, and what is too
    long or wanted by several tools ends in a hash of the qualified name; a tool with an illegal name never takes over
    a direct name that was another's.

    Args:
        upstream: its name in the config.
        tools: names of its tools (aliases applied).
        prefix: of direct names; None for ``<upstream>__``.
    """
    distinct = sorted(set(tools), key=lambda tool: (mangle(tool) != tool, tool))
    stem = mangle(upstream) + SEPARATOR
    stem = "_" + stem if stem[0].isdigit() else stem
    identifiers = _Numbered(())
    direct = _direct_names(upstream, distinct, qualified(upstream, "") if prefix is None else prefix)
    return {
        tool: Names(qualified(upstream, tool), identifiers.claim(stem + mangle(tool)), direct[tool])
        for tool in distinct
    }


def settle(tools: Iterable[Tool]) -> tuple[dict[str, Tool], tuple[Collision, ...]]:
    """Makes the spellings of a whole catalogue unique.

    Upstreams get in each other's way only in odd configurations: ``my-git`` beside ``my_git``, or a ``prefix`` of ""
    or of another upstream. The first in the order of (upstream, name) keeps the spelling; a later one gets a numbered
    identifier, or its qualified direct name.

    Returns:
        every spelling → its tool; and what had to be moved, for the operator. Tools whose names changed are copies.
    """
    rows = sorted(tools, key=lambda tool: (tool.upstream, tool.name))
    owner = {tool.name: tool.name for tool in rows}
    collisions: list[Collision] = []

    identifier: dict[str, str] = {}
    numbered = _Numbered(owner)
    for tool in sorted(rows, key=lambda tool: tool.identifier != tool.name):
        wanted = tool.identifier
        if owner.get(wanted, tool.name) == tool.name:
            got = wanted
        else:
            got = numbered.claim(wanted)
            collisions.append(Collision(wanted, owner[wanted], tool.name, got))
        owner[got] = tool.name
        identifier[tool.name] = got
        numbered.taken.add(got)

    direct: dict[str, str] = {}
    for tool in sorted(rows, key=lambda tool: tool.direct_name != tool.name):
        wanted = got = tool.direct_name
        if owner.get(wanted, tool.name) != tool.name:
            got = _legal(tool.name)
            if owner.get(got, tool.name) != tool.name:
                got = _hashed(tool.name, owner)
            collisions.append(Collision(wanted, owner[wanted], tool.name, got))
        owner[got] = tool.name
        direct[tool.name] = got

    spelled: dict[str, Tool] = {}
    for tool in rows:
        names = Names(tool.name, identifier[tool.name], direct[tool.name])
        if (tool.identifier, tool.direct_name) != (names.identifier, names.direct_name):
            tool = replace(tool, identifier=names.identifier, direct_name=names.direct_name)
        spelled[names.name] = spelled[names.identifier] = spelled[names.direct_name] = tool
    return spelled, tuple(collisions)


class _Numbered:
    """Hands out names once each: the wanted one, or the first free of ``_2``, ``_3`` … (amortised constant time)."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = set(taken)
        self._next: dict[str, int] = {}

    def claim(self, wanted: str) -> str:
        name, number = wanted, self._next.get(wanted, 2)
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self._next[wanted] = number
        self.taken.add(name)
        return name


def _direct_names(upstream: str, tools: Iterable[str], prefix: str) -> dict[str, str]:
    wishes = {tool: prefix + tool for tool in tools}
    wanted_by = Counter(_legal(wish) for wish in wishes.values())
    taken = {wish for wish in wishes.values() if _DIRECT.fullmatch(wish)}
    names: dict[str, str] = {}
    for tool, wish in wishes.items():
        name = _legal(wish)
        if wish != name and (len(wish) > DIRECT_LIMIT or wanted_by[name] > 1):
            name = _hashed(qualified(upstream, tool), taken, shown=wish)
            taken.add(name)
        names[tool] = name
    return names


def _legal(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:DIRECT_LIMIT] or "_"


def _hashed(name: str, taken: Container[str], shown: str | None = None) -> str:
    """The start of ``shown`` and 8 hex digits of the SHA-256 of ``name``; more digits in the unlikely case."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    candidates = (f"{_legal(shown or name)[: DIRECT_LIMIT - 1 - n]}_{digest[:n]}" for n in (8, 16, 32, 48))
    return next((candidate for candidate in candidates if candidate not in taken), digest)
