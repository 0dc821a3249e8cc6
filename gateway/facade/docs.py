"""``docs_search``: which tools there are and how a script calls them, never more than the token budget.

Three questions, three answers: words → ranked tools; exact names → full documentation; nothing → an overview of the
servers. What does not fit is counted and said, with the way to ask for it. The same question on the same snapshot
gives the same bytes (prompt caches, and tests).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.catalog.pystub import Form, python_stub
from gateway.catalog.search import search
from gateway.catalog.snapshot import UpstreamEntry
from gateway.catalog.text import first_sentence
from gateway.catalog.tool import Tool
from gateway.catalog.view import TenantView
from gateway.errors import ErrorClass, GatewayError

BUDGET = 1_500
"""Tokens of one answer, headings and closing line included."""
TOOL_CAP = 250
"""Tokens of one tool in a ranked answer: single tools of 4,000–9,000 tokens exist, and one must not eat the answer."""
STUBS, HITS = 3, 10
"""The best hits as stubs, the next ones as lines: 372 tokens at the median over 2,221 real tools."""
MAX_QUERY = 1_000
MAX_NAMES = 50
SUGGESTED = 5
"""Unknown names that get suggestions; among thousands of tools each costs milliseconds."""
"""Names of one question that are looked at; the others are said not to fit."""
CLOSING = 60
"""Tokens kept for the closing lines, which say what did not fit."""
DOWN_SHARE = 5
"""Lines about servers that are down may take this part of the budget."""
CHARS_PER_TOKEN = 16
"""No documentation has that many characters to a token: a text that is longer than its room in these is not counted."""


@dataclass(frozen=True, slots=True)
class DocsQuery:
    """The arguments of ``docs_search``, checked."""

    query: str = ""
    names: tuple[str, ...] = ()
    include_schemas: bool = False

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> DocsQuery:
        """Raises GatewayError(INVALID_ARGUMENTS) that says what is wrong and what is right."""
        known = {"query", "names", "includeSchemas"}
        if extra := sorted(set(arguments) - known):
            raise _invalid(f"unknown argument {extra[0][:64]!r}; docs_search takes query, names and includeSchemas")
        query, names = arguments.get("query"), arguments.get("names")
        schemas = arguments.get("includeSchemas")
        if query is not None and not isinstance(query, str):
            raise _invalid("query must be a string")
        if isinstance(names, str):
            names = [names]
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise _invalid("names must be a list of strings")
        if schemas is not None and not isinstance(schemas, bool):
            raise _invalid("includeSchemas must be true or false")
        return cls((query or "").strip()[:MAX_QUERY], tuple(dict.fromkeys(names or ())), bool(schemas))


def _invalid(message: str) -> GatewayError:
    return GatewayError(
        ErrorClass.INVALID_ARGUMENTS,
        message,
        hint='{"query": "send a message"} or {"names": ["server__tool"], "includeSchemas": true}',
    )


class DocsSearch:
    """Answers ``docs_search`` for one view.

    Args:
        count: tokens of a small text; called for parts, whose counts the caller may cache.
        budget: tokens of one answer.
    """

    def __init__(self, count: Callable[[str], int], budget: int = BUDGET) -> None:
        self._count = count
        self._budget = budget

    def answer(self, view: TenantView, query: DocsQuery) -> str:
        """The text that goes to the model, at most ``budget`` tokens."""
        down = self._down(view)
        page = _Page(self._count, self._budget - CLOSING - sum(self._count(line) + 1 for line in down))
        if query.names:
            closing = self._named(page, view, query)
        elif query.query:
            closing = self._ranked(page, view, query)
        else:
            closing = self._overview(page, view)
        return "\n".join([*page.lines, *closing, *down])

    # ---- the three answers; each returns its closing lines ---------------------------------------------------------

    def _ranked(self, page: _Page, view: TenantView, query: DocsQuery) -> list[str]:
        hits = search(query.query, view, HITS)
        if not hits:
            return ["No tool matches. Try other words, or an empty query for an overview of the servers."]
        left: list[Tool] = []
        without_schema = 0
        for place, tool in enumerate(hits):
            line = python_stub(tool, "line")
            text = self._capped(tool) if place < STUBS else line
            if query.include_schemas and page.add(f"{text}\n{_schemas(tool)}"):
                continue
            if page.add(text) or page.add(line):
                without_schema += query.include_schemas
            else:
                left.append(tool)
        closing = []
        if left:
            told = f"# {_by_upstream(left)} more did not fit; narrow the query"
            closing.append(self._first_fitting(told, f"# {len(left)} more did not fit; narrow the query"))
        if without_schema:
            closing.append(f"# {without_schema} schemas did not fit; ask for them by name, one at a time")
        elif len(hits) > STUBS:
            closing.append('# full documentation: docs_search(names=["server__tool"])')
        return closing

    def _named(self, page: _Page, view: TenantView, query: DocsQuery) -> list[str]:
        left: list[str] = []
        unknown = 0
        for name in query.names[:MAX_NAMES]:
            tool = view.resolve(name)
            if tool is None:
                unknown += 1
                near = view.candidates(name) if unknown <= SUGGESTED else []
                hint = f"; did you mean {', '.join(near)}?" if near else ""
                if not page.add(f"# {_printable(name)}: no such tool{hint}"):
                    left.append(_printable(name))
            elif not self._documented(page, tool, query.include_schemas):
                left.append(tool.identifier)
        left += map(_printable, query.names[MAX_NAMES:])
        if not left:
            return []
        count = f"# {len(left)} of {len(query.names)} did not fit"
        some = (f"{count}: {', '.join(left[:n])}{' …' if n < len(left) else ''}; ask for fewer" for n in (10, 3, 1))
        return [self._first_fitting(*some, f"{count}; ask for fewer")]

    def _documented(self, page: _Page, tool: Tool, schemas: bool) -> bool:
        """Add all that fits of one tool: its schema before the long form of its description. False: not even a line."""
        forms: list[Form] = ["full", "brief", "line"]
        line, note = python_stub(tool, "line"), ""
        if not page.fits(line):
            return False
        if schemas:
            exact = _schemas(tool)
            if page.fits(exact) and any(page.add(f"{python_stub(tool, form)}\n{exact}") for form in forms):
                return True
            alone = _Page(self._count, self._budget - CLOSING - self._budget // DOWN_SHARE)
            advice = "ask for it alone" if alone.fits(f"{line}\n{exact}") else "the signature is what there is"
            note = f"\n# its schema has {len(exact):,} characters and does not fit; {advice}"
        return any(page.add(python_stub(tool, form) + note) for form in forms)

    def _overview(self, page: _Page, view: TenantView) -> list[str]:
        entries = view.upstreams()
        size = f"{_number(len(view.visible), 'tool')} on {_number(len(entries), 'server')}"
        page.add(f"{size}. Ask with words for what you need.")
        counts = Counter(tool.upstream for tool in view.visible)
        left = sum(not page.add(_upstream_line(entry, counts[entry.name])) for entry in entries)
        return [f"# {_number(left, 'more server')}; ask with words"] if left else []

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _capped(self, tool: Tool) -> str:
        """A stub within the cap of one tool, shortened in steps; the name and a callable form always stay."""
        text = python_stub(tool, "brief")
        if self._count(text) > TOOL_CAP:
            text = python_stub(tool, "brief", result_type=False)
        if self._count(text) > TOOL_CAP:
            text = python_stub(tool, "brief", result_type=False, shallow=True)
        return text if self._count(text) <= TOOL_CAP else python_stub(tool, "line")

    def _down(self, view: TenantView) -> list[str]:
        """A line for each upstream of this view that cannot be called now, and how many more there are."""
        page = _Page(self._count, self._budget // DOWN_SHARE)
        left = sum(not page.add(_down_line(entry)) for entry in view.upstreams() if not entry.available)
        return [*page.lines, f"# {_number(left, 'more server')} cannot be called now"] if left else page.lines

    def _first_fitting(self, *texts: str) -> str:
        """The first of these that takes no more than half of what is kept for closing lines, or the last."""
        return next((text for text in texts if self._count(text) <= CLOSING // 2), texts[-1])


class _Page:
    """Lines within a token budget; what does not fit is refused whole."""

    def __init__(self, count: Callable[[str], int], budget: int) -> None:
        self._count = count
        self._left = budget
        self.lines: list[str] = []

    def fits(self, text: str) -> bool:
        return len(text) <= CHARS_PER_TOKEN * self._left and self._count(text) + 1 <= self._left

    def add(self, text: str) -> bool:
        if not self.fits(text):
            return False
        self._left -= self._count(text) + 1
        self.lines.append(text)
        return True


def _schemas(tool: Tool) -> str:
    parts = [f"# inputSchema: {_compact(tool.input_schema)}"]
    if tool.output_schema is not None:
        parts.append(f"# outputSchema: {_compact(tool.output_schema)}")
    return "\n".join(parts)


def _compact(value: Any) -> str:
    return (
        json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _upstream_line(entry: UpstreamEntry, tools: int) -> str:
    about = first_sentence(entry.instructions or entry.title)
    state = "" if entry.available else f" ({entry.state})"
    return f"{entry.name}: {_number(tools, 'tool')}{state}{f' — {about}' if about else ''}"


def _down_line(entry: UpstreamEntry) -> str:
    since = "" if entry.since is None else f" since {datetime.fromtimestamp(entry.since, UTC):%Y-%m-%d %H:%M} UTC"
    return f"# server {entry.name} is {entry.state}{since}{f': {entry.reason[:200]}' if entry.reason else ''}"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _by_upstream(tools: Sequence[Tool]) -> str:
    counts = Counter(tool.upstream for tool in tools)
    return ", ".join(f"{n} of {name}" for name, n in sorted(counts.items()))


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name.strip()[:80])
