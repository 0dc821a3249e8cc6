"""THE decision what a tenant sees. Lists, documentation, search, hints and calls all ask this one object.

What a tenant may not use answers exactly as what does not exist: nothing here tells the two apart.
"""

from __future__ import annotations

import fnmatch
import hashlib
import heapq
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import cached_property

from gateway.catalog.names import mangle
from gateway.catalog.snapshot import Catalog, UpstreamEntry
from gateway.catalog.tool import Tool
from gateway.catalog.words import terms

MAX_SPELLING_CHARS = 200
"""A longer name than this is not compared with others; it is still resolved."""
_SIMILAR = 0.62
_COMPARED = 40


class TenantView:
    """What one tenant sees of one catalogue. Immutable; good to keep per (catalog.version, patterns).

    Args:
        catalog: the snapshot.
        patterns: upstream → patterns of tool names, as in the config: ``*`` is any run of characters, ``?`` is one,
            a leading ``!`` takes away, and taking away always wins, whatever the order. A tool's alias and its
            upstream's own name both count; no match: not visible. Case matters. Upstreams that are not named are
            not visible.
    """

    def __init__(self, catalog: Catalog, patterns: Mapping[str, Sequence[str]]) -> None:
        self.catalog = catalog
        self._entries = tuple(
            catalog.upstreams[upstream] for upstream in sorted(patterns) if upstream in catalog.upstreams
        )
        self.visible: tuple[Tool, ...] = tuple(
            tool
            for entry in self._entries
            for tool in sorted(_allowed(entry.tools, patterns[entry.name]), key=lambda tool: tool.name)
        )
        """All visible tools, by (upstream, name); also those of upstreams that are down."""
        self._names = frozenset(tool.name for tool in self.visible)
        self._whole = frozenset(entry.name for entry in self._entries if _is_whole(patterns[entry.name]))

    @property
    def whole(self) -> frozenset[str]:
        """Upstreams given whole, with ``*`` and no exclusion: their resources and prompts are the tenant's too."""
        return self._whole

    def __contains__(self, tool: Tool) -> bool:
        return tool.name in self._names

    def upstreams(self) -> tuple[UpstreamEntry, ...]:
        """The upstreams that the tenant may use, by name, also those that are down or offer it nothing."""
        return self._entries

    def tools_of(self, upstream: str) -> tuple[Tool, ...]:
        """The visible tools of one upstream, by name."""
        return self._by_upstream.get(upstream, ())

    def resolve(self, spelling: str) -> Tool | None:
        """The visible tool with this name, identifier or direct name (outer spaces do not count), or None."""
        tool = self.catalog.tools.get(spelling) or self.catalog.tools.get(spelling.strip())
        return tool if tool is not None and tool.name in self._names else None

    def candidates(self, spelling: str, n: int = 3) -> list[str]:
        """At most ``n`` identifiers of visible tools that may have been meant, best first.

        Same letters in another case or with other separators come first, then a tool name without its upstream, then
        names that look alike.
        """
        if not spelling.strip() or len(spelling) > MAX_SPELLING_CHARS:
            return []
        wanted = _letters(spelling)
        same = [tool for tool, full, _ in self._letters if full == wanted]
        bare = [tool for tool, _, part in self._letters if part == wanted]
        alike = [] if len(same) + len(bare) >= n else self._alike(spelling, wanted)
        return list(dict.fromkeys(tool.identifier for tool in (*same, *bare, *alike)))[:n]

    @cached_property
    def tools_list_digest(self) -> str:
        """SHA-256, hex; changes when and only when the visible tools or their names do."""
        digest = hashlib.sha256()
        for tool in self.visible:
            row = "\0".join((tool.name, tool.identifier, tool.direct_name, tool.digest, tool.description))
            digest.update(row.encode("utf-8", "surrogatepass") + b"\1")
        return digest.hexdigest()

    @cached_property
    def numbers(self) -> Mapping[str, frozenset[int] | None]:
        """For search: upstream → numbers of its visible tools in its segment, None for all of them."""
        numbers: dict[str, frozenset[int] | None] = {}
        for entry in self._entries:
            names = entry.segment.names if entry.segment else ()
            seen = frozenset(number for number, name in enumerate(names) if name in self._names)
            numbers[entry.name] = None if len(seen) == len(names) else seen
        return numbers

    @cached_property
    def _by_upstream(self) -> Mapping[str, tuple[Tool, ...]]:
        grouped: dict[str, list[Tool]] = {}
        for tool in self.visible:
            grouped.setdefault(tool.upstream, []).append(tool)
        return {upstream: tuple(tools) for upstream, tools in grouped.items()}

    @cached_property
    def _letters(self) -> tuple[tuple[Tool, str, str], ...]:
        """Each tool with its letters and digits, and those of its name without the upstream."""
        return tuple((tool, _letters(tool.name), _letters(tool.shown_name)) for tool in self.visible)

    def _alike(self, spelling: str, wanted: str) -> list[Tool]:
        """Difflib over the few names that share most groups of three letters with ``wanted``.

        Comparing all of 2,221 names would take 17 ms.
        """
        threes = {wanted[i : i + 3] for i in range(max(len(wanted) - 2, 1))}
        shared = ((sum(three in full for three in threes), tool, full, part) for tool, full, part in self._letters)
        close = heapq.nsmallest(
            _COMPARED, (row for row in shared if row[0]), key=lambda row: (-row[0], len(row[2]), row[1].name)
        )
        words = _words(spelling)
        rated = [
            (max(_ratio(wanted, full), _ratio(wanted, part), _ratio(words, _words(tool.name))), tool)
            for _, tool, full, part in close
        ]
        rated.sort(key=lambda row: (-row[0], row[1].name))
        return [tool for rating, tool in rated if rating >= _SIMILAR]


def _is_whole(patterns: Sequence[str]) -> bool:
    return "*" in patterns and not any(pattern.startswith("!") for pattern in patterns)


def _allowed(tools: Sequence[Tool], patterns: Sequence[str]) -> list[Tool]:
    if list(patterns) == ["*"]:
        return list(tools)
    given = [_glob(pattern) for pattern in patterns if not pattern.startswith("!")]
    taken = [_glob(pattern[1:]) for pattern in patterns if pattern.startswith("!")]
    return [tool for tool in tools if _matches(tool, given) and not _matches(tool, taken)]


def _matches(tool: Tool, globs: Sequence[re.Pattern[str]]) -> bool:
    return any(glob.match(tool.shown_name) or glob.match(tool.raw_name) for glob in globs)


def _glob(pattern: str) -> re.Pattern[str]:
    """Only ``*`` and ``?`` are special; ``fnmatch`` would also read ``[…]``. Its expressions do not backtrack."""
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


def _letters(name: str) -> str:
    if name.isascii():
        folded = re.sub(r"[^a-z0-9]+", "", name.lower())
    else:
        folded = "".join(char for char in name.casefold() if char.isalnum())
    return (folded or mangle(name))[:MAX_SPELLING_CHARS]


def _words(name: str) -> str:
    return "".join(sorted(terms(name)))[:MAX_SPELLING_CHARS]


def _ratio(one: str, other: str) -> float:
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.ratio() if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= _SIMILAR else 0.0
