"""The search index: BM25F over immutable segments, one an upstream.

Each tool has five fields; the weighted term frequencies of all fields are summed and then saturated once. Lengths are
compared with fixed reference lengths instead of the catalogue's averages, so that what a segment holds depends on its
own tools alone: when one upstream changes, its segment is built (off the event loop) and one reference is swapped.

The weights lie on a plateau: no change of them by half moved recall on six sets of questions by more than 0.5 points.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.catalog.schema import look_up
from gateway.catalog.synonyms import SYNONYMS
from gateway.catalog.tool import Tool
from gateway.catalog.words import compounds, terms

K1 = 1.2
SYNONYM_WEIGHT = 0.4
COMMON_SHARE, COMMON_COUNT = 0.05, 150
"""A synonym in more than this share of the tools, and in more than this many, costs time and ranks nothing."""
MAX_QUERY_CHARS = 2_000
MAX_PARAMETERS = 300


@dataclass(frozen=True, slots=True)
class _Field:
    weight: float
    b: float
    reference_length: float

    def norm(self, length: int) -> float:
        return self.weight / (1 - self.b + self.b * length / self.reference_length)


_NAME = _Field(3.0, 0.3, 3.5)
_UPSTREAM = _Field(1.0, 0.0, 2.0)
_DESCRIPTION = _Field(1.0, 0.6, 30.0)
_PARAMETERS = _Field(0.5, 0.7, 5.0)
_PARAMETER_TEXT = _Field(0.25, 0.8, 15.0)

Postings = tuple[tuple[int, float], ...]
"""(number of the tool in its segment, saturated weight of the term)."""


class Segment:
    """The index of one upstream's tools. Immutable.

    Attributes:
        upstream: its name.
        names: ``Tool.name`` by number.
        name_terms: the terms of each tool's own name.
        postings: term → the tools that have it.
    """

    __slots__ = ("name_terms", "names", "postings", "upstream")

    def __init__(self, upstream: str, tools: Sequence[Tool]) -> None:
        self.upstream = upstream
        self.names = tuple(tool.name for tool in tools)
        self.name_terms = tuple(frozenset(terms(tool.shown_name)) for tool in tools)
        of_upstream = terms(upstream)
        postings: dict[str, list[tuple[int, float]]] = {}
        for number, tool in enumerate(tools):
            for term, weight in _weights(tool, of_upstream).items():
                postings.setdefault(term, []).append((number, weight / (weight + K1)))
        self.postings: Mapping[str, Postings] = {term: tuple(rows) for term, rows in postings.items()}


class Index:
    """The segments of all upstreams, joined by term. Immutable: changes make new ones, which share the segments."""

    __slots__ = ("_by_term", "segments")

    def __init__(self) -> None:
        self.segments: Mapping[str, Segment] = {}
        self._by_term: Mapping[str, Mapping[str, Postings]] = {}  # term → upstream → postings

    def replaced(self, upstream: str, segment: Segment | None) -> Index:
        """An index in which ``segment`` stands for the upstream, or nothing. Costs what the two segments hold."""
        changed = Index.__new__(Index)
        by_term = dict(self._by_term)
        segments = dict(self.segments)
        if upstream in segments:
            for term in segments.pop(upstream).postings:
                others = {other: rows for other, rows in by_term[term].items() if other != upstream}
                if others:
                    by_term[term] = others
                else:
                    del by_term[term]
        if segment is not None:
            segments[upstream] = segment
            for term, rows in segment.postings.items():
                by_term[term] = {**by_term.get(term, {}), upstream: rows}
        changed.segments, changed._by_term = segments, by_term
        return changed

    def scores(
        self, query: str, visible: Mapping[str, frozenset[int] | None]
    ) -> tuple[frozenset[str], dict[str, dict[int, float]]]:
        """BM25F of the tools of a view, which alone decide how rare a term is: ranks tell nothing of other tools.

        Args:
            query: free text.
            visible: upstream → numbers of its visible tools in its segment, None for all of them.

        Returns:
            the terms of the query, and upstream → number → score of every tool that has any of them.
        """
        wanted = frozenset(terms(query[:MAX_QUERY_CHARS]))
        visible = {upstream: numbers for upstream, numbers in visible.items() if upstream in self.segments}
        total = sum(len(self.segments[u].names if numbers is None else numbers) for u, numbers in visible.items())
        scores: dict[str, dict[int, float]] = {}
        for word in sorted(wanted):  # a set has no order of its own, and sums of floats depend on it
            for upstream, best in self._word_scores(word, visible, total).items():
                if upstream not in scores:
                    scores[upstream] = best
                    continue
                sums = scores[upstream]
                for number, value in best.items():
                    sums[number] = sums.get(number, 0.0) + value
        return wanted, scores

    def _word_scores(
        self, word: str, visible: Mapping[str, frozenset[int] | None], total: int
    ) -> dict[str, dict[int, float]]:
        """What one word adds to each tool: its best variant, be it the word itself or a synonym."""
        scores: dict[str, dict[int, float]] = {}
        for term, weight in ((word, 1.0), *((other, SYNONYM_WEIGHT) for other in SYNONYMS.get(word, ()))):
            found = list(self._visible_postings(term, visible))
            frequency = sum(len(rows) for _, rows in found)
            if weight < 1 and frequency > max(COMMON_COUNT, COMMON_SHARE * total):
                continue
            factor = weight * (K1 + 1) * math.log(1 + (total - frequency + 0.5) / (frequency + 0.5))
            for upstream, rows in found:
                if upstream not in scores:
                    scores[upstream] = {number: factor * saturated for number, saturated in rows}
                    continue
                best = scores[upstream]
                for number, saturated in rows:
                    if factor * saturated > best.get(number, 0.0):
                        best[number] = factor * saturated
        return scores

    def _visible_postings(
        self, term: str, visible: Mapping[str, frozenset[int] | None]
    ) -> Iterator[tuple[str, Postings]]:
        for upstream, rows in self._by_term.get(term, {}).items():
            if upstream in visible:
                numbers = visible[upstream]
                yield upstream, rows if numbers is None else tuple(row for row in rows if row[0] in numbers)


def _weights(tool: Tool, of_upstream: list[str]) -> dict[str, float]:
    """Term → its weighted frequency over all fields of the tool."""
    name = terms(tool.shown_name)
    if tool.shown_name != tool.raw_name:  # an alias: people may still ask for the upstream's own name
        name = name + terms(tool.raw_name)
    parameters = _parameters(tool.input_schema)
    title = tool.title if tool.title != tool.shown_name else ""
    fields = (
        (_NAME, name),
        (_UPSTREAM, of_upstream),
        (_DESCRIPTION, terms(f"{title} {tool.description}")),
        (_PARAMETERS, [term for parameter, _ in parameters for term in terms(parameter)]),
        (_PARAMETER_TEXT, [term for _, text in parameters for term in terms(text)]),
    )
    weights = {term: _NAME.weight for term in compounds(tool.shown_name) if term not in name}
    for field, found in fields:
        norm = field.norm(len(found))
        for term, count in Counter(found).items():
            weights[term] = weights.get(term, 0.0) + norm * count
    return weights


def _parameters(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, description and short enums) of every property, nested ones too, four levels deep."""
    found: list[tuple[str, str]] = []
    level: list[Any] = [schema]
    for _ in range(5):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, Mapping) and isinstance(item.get("$ref"), str):
                item = look_up(schema, item["$ref"])
            if not isinstance(item, Mapping):
                continue
            properties = item.get("properties")
            for name, inner in properties.items() if isinstance(properties, Mapping) else ():
                found.append((name, _parameter_text(inner)))
                deeper.append(inner)
                if len(found) >= MAX_PARAMETERS:
                    return found
            deeper.append(item.get("items"))
        level = deeper
    return found


def _parameter_text(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return ""
    description, choices = schema.get("description"), schema.get("enum")
    parts: Iterable[Any] = choices if isinstance(choices, list) and len(choices) <= 20 else ()
    return " ".join([description if isinstance(description, str) else "", *(p for p in parts if isinstance(p, str))])
