"""Finding the tools that a question is about, within what a tenant sees."""

from __future__ import annotations

import heapq

from gateway.catalog.tool import Tool
from gateway.catalog.view import TenantView

NAME_COVERAGE = 0.6
"""A tool gains up to this much by the share of its name's words that the question has: a short exact name before
longer ones that contain it."""
RERANKED = 100
FLOOR = 0.15
"""What scores less than this part of the best hit is noise and left out."""


def search(query: str, view: TenantView, k: int = 10) -> list[Tool]:
    """The best ``k`` visible tools for a question, best first; an empty list when none has any of its words.

    Ranks depend on the visible tools only. The same question about the same snapshot and view gives the same answer.
    """
    segments = view.catalog.index.segments
    wanted, scores = view.catalog.index.scores(query, view.numbers)
    best = heapq.nlargest(max(RERANKED, k), (score for found in scores.values() for score in found.values()))
    hits = []
    for upstream, found in scores.items():
        segment = segments[upstream]
        for number, score in found.items():
            if score >= best[-1]:
                own = segment.name_terms[number]
                bonus = 1 + NAME_COVERAGE * len(own & wanted) / len(own) if own else 1.0
                hits.append((-score * bonus, upstream, segment.names[number]))
    hits.sort()
    return [view.catalog.tools[name] for score, _, name in hits[:k] if score <= FLOOR * hits[0][0]]
