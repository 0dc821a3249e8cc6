"""Strict YAML: plain values with the place of each, and an error for whatever YAML readers disagree about.

PyYAML's parser delivers events; this module builds the values itself. So nothing is ever constructed from a tag, an
alias is never followed, and every surprise of a file is found in one pass: duplicate keys, ``on``, ``off``, ``yes``,
``no``, ``0123``, ``12:30``, ``1_000``, ``.inf``, dates, merge keys, tags, anchors, directives, a second document.

``${…}`` may stand unquoted inside ``{…}`` and ``[…]``, which YAML alone does not allow: see :func:`_mask`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from gateway.config.problem import ConfigError, Finding, Loc, Problem, path_text

MAX_DEPTH = 32
"""Levels of nesting; a config has nine. Also bounds the recursion of everything that walks the values."""


class Hole:
    """Stands where a value could not be read. Whatever is said about it later follows from a problem reported here."""

    def __repr__(self) -> str:
        return "HOLE"


HOLE: Final = Hole()


class Mark(NamedTuple):
    """A place in the text, from 1."""

    line: int
    column: int


START: Final = Mark(1, 1)


@dataclass(slots=True)
class Document:
    """The values of a file and where they stand. Owned by one load; nobody keeps it.

    Attributes:
        value: plain values: dict, list, str, int, float, bool, None; :data:`HOLE` where something was wrong.
        places: of a scalar, where it begins; of a mapping or list, its key (an empty value stands at its key, too).
        keys: where the key of a value begins.
        unquoted: the texts that were written without quotes.
        holes: values that are :data:`HOLE`.
        gaps: mappings that lost an entry because its key was wrong.
        problems: what was found so far.
    """

    file: str
    value: Any = None
    places: dict[Loc, Mark] = field(default_factory=dict)
    keys: dict[Loc, Mark] = field(default_factory=dict)
    unquoted: set[Loc] = field(default_factory=set)
    holes: set[Loc] = field(default_factory=set)
    gaps: set[Loc] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def report(self, finding: Finding, mark: Mark | None = None) -> None:
        """Add a problem, at ``mark`` or where the finding's loc stands (of a missing key: where its parent stands)."""
        mark = mark or (self.keys.get(finding.loc) if finding.on_key else None) or self._place(finding.loc)
        self.problems.append(Problem(self.file, mark.line, mark.column, path_text(finding.loc), finding.message))

    def _place(self, loc: Loc) -> Mark:
        while loc and loc not in self.places:
            loc = loc[:-1]
        return self.places.get(loc, START)

    def raise_problems(self) -> None:
        """Raises ConfigError when there are any."""
        if self.problems:
            raise ConfigError(tuple(self.problems))


def parse(text: str, file: str) -> Document:
    """Read one YAML document. Surprises are in ``problems`` of the answer; the rest of the file is still there.

    Raises:
        ConfigError: the text is no YAML at all; holds the syntax error and what was found before it.
    """
    document = Document(file)
    text = text.removeprefix("\ufeff")
    if bad := _UNUSABLE_IN_SOURCE.search(text):
        message = f"character U+{ord(bad[0]):04X} is not allowed: it is invisible, or no text"
        document.report(Finding((), message), mark_at(text, bad.start()))
        document.raise_problems()
    _Builder(_mask(text), document).build()
    return document


def mark_at(text: str, index: int) -> Mark:
    """The line and column of a character. ``\\r\\n`` and ``\\r`` end a line as ``\\n`` does."""
    before = text[:index].replace("\r\n", "\n").replace("\r", "\n")
    return Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))


# ---------------------------------------------------------------- scalars

_UNUSABLE_IN_SOURCE = re.compile(  # control, separators that editors do not count as lines, direction overrides, _MASK
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufdcf\ufdf0-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_UNUSABLE_IN_VALUE = re.compile("[\0\ud800-\udfff]")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_PLAIN: Final = {"": None, "~": None, "null": None, "true": True, "false": False}

# What YAML 1.1 and 1.2 read differently, or what readers read differently from people.
_SURPRISES: Final = [
    (
        re.compile(r"y|Y|n|N|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF"),
        "{!r} is true or false to some YAML readers and text to others: write true or false, or quote it",
    ),
    (
        re.compile(r"True|TRUE|False|FALSE|Null|NULL"),
        "{!r} is not the same to all YAML readers: write it in lower case",
    ),
    (
        re.compile(r"[-+]?0[0-9]+"),
        "a number with a leading zero is octal to some YAML readers: remove the zero, or quote it",
    ),
    (
        re.compile(r"[-+]?0[xXbBoO][0-9a-fA-F_]+"),
        "0x, 0o and 0b begin a number to some YAML readers and text to others: write it in decimal, or quote it",
    ),
    (
        re.compile(r"[-+]?\.?[0-9][0-9_.]*_[0-9_.]*(?:[eE][-+]?[0-9]+)?"),
        "a number with underscores is text to some YAML readers: remove them, or quote it",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"),
        "digits with colons are a number to base 60 to some YAML readers: quote it",
    ),
    (
        re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
        "infinity and NaN are no usable numbers: quote it if it is text",
    ),
    (re.compile(r"[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?(?:[Tt \t].*)?"), "this is a date to some YAML readers: quote it"),
]


class Surprising(ValueError):
    """A text without quotes that does not mean the same to everybody; the message says what to write instead."""


def plain_value(text: str) -> Any:
    """What a text without quotes means: null, a boolean, a number or itself.

    Raises:
        Surprising
    """
    if text in _PLAIN:
        return _PLAIN[text]
    for pattern, message in _SURPRISES:
        if pattern.fullmatch(text):
            raise Surprising(message.format(text))
    if _INT.fullmatch(text):
        if len(text) > 20:
            raise Surprising("the number is too large: quote it if it is text")
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise Surprising("the number is too large: quote it if it is text")
        return number
    return text


# ---------------------------------------------------------------- structure


class _Builder:
    """Events → values. Recursion is bounded by :data:`MAX_DEPTH`; work is linear in the text."""

    def __init__(self, text: str, document: Document) -> None:
        self._text = text
        self._document = document
        self._loader = yaml.SafeLoader(text)

    def build(self) -> None:
        broken = True
        try:
            self._stream()
            broken = False
        except yaml.MarkedYAMLError as error:
            self._syntax_error(error)
        except (ValueError, OverflowError):  # an escape beyond Unicode, a %YAML version of 5,000 digits
            mark = _mark(self._loader.get_mark())
            self._document.report(Finding((), "not valid YAML: a number or an escape is out of range"), mark)
        finally:
            self._loader.dispose()
        if broken:  # here, so that the parser's error, which quotes the file, is not the cause of ours
            self._document.raise_problems()

    def _stream(self) -> None:
        report = self._document.report
        self._next()  # the start of the stream
        start = self._next()
        if isinstance(start, StreamEndEvent):
            report(Finding((), "the file is empty"))
            self._document.raise_problems()
        assert isinstance(start, DocumentStartEvent)
        if start.version or start.tags:
            report(Finding((), "YAML directives are not supported: remove the line"), _mark(start.start_mark))
        self._document.value = self._value(self._next(), (), START)
        self._next()  # the end of the document
        if isinstance(second := self._next(), DocumentStartEvent):
            report(Finding((), "a second document begins here: a config is one"), _mark(second.start_mark))

    def _next(self) -> Event:
        event: Event = self._loader.get_event()  # type: ignore[no-untyped-call]
        return event

    def _value(self, event: Event, loc: Loc, key: Mark | None) -> Any:
        """The value that begins with this event."""
        document, mark = self._document, _mark(event.start_mark)
        empty = isinstance(event, ScalarEvent) and event.style is None and not event.value
        is_text = isinstance(event, ScalarEvent) and not empty
        document.places.setdefault(loc, mark if is_text else key or mark)
        value = self._content(event, loc)
        if complaint := _complaint(event):
            document.report(Finding(loc, complaint), mark)
        if isinstance(event, AliasEvent) or getattr(event, "tag", None) is not None:
            value = HOLE
        if value is HOLE:
            document.holes.add(loc)
        return value

    def _content(self, event: Event, loc: Loc) -> Any:
        if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            self._check_depth(len(loc), loc)
            return self._mapping(loc) if isinstance(event, MappingStartEvent) else self._sequence(loc)
        if not isinstance(event, ScalarEvent):
            return HOLE
        text = _unmask(event.value)
        if _UNUSABLE_IN_VALUE.search(text):
            self._document.report(Finding(loc, "holds a NUL character or half a surrogate pair"))
            return HOLE
        if event.style is not None:
            return text
        self._document.unquoted.add(loc)
        try:
            return plain_value(text)
        except Surprising as surprise:
            self._document.report(Finding(loc, str(surprise)))
            return HOLE

    def _sequence(self, loc: Loc) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            values.append(self._value(event, (*loc, len(values)), None))
        return values

    def _mapping(self, loc: Loc) -> dict[str, Any]:
        values: dict[str, Any] = {}
        document = self._document
        while not isinstance(event := self._next(), MappingEndEvent):
            mark = _mark(event.start_mark)
            if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
                self._skip(loc)
            key = _unmask(event.value) if isinstance(event, ScalarEvent) else ""
            here = (*loc, key)
            complaint = _key_complaint(event, key)
            if complaint:
                document.gaps.add(loc)
            elif key in values:
                complaint = f"is given twice, first on line {document.keys[here].line}"
            if complaint:
                document.report(Finding(here if isinstance(event, ScalarEvent) else loc, complaint), mark)
            document.keys.setdefault(here, mark)
            value = self._value(self._next(), here, mark)
            if complaint is None:
                values[key] = value
        return values

    def _skip(self, loc: Loc) -> None:
        """Read past the collection whose start was the last event."""
        depth = 1
        while depth:
            event = self._next()
            depth += isinstance(event, (MappingStartEvent, SequenceStartEvent))
            depth -= isinstance(event, (MappingEndEvent, SequenceEndEvent))
            self._check_depth(len(loc) + depth, loc)

    def _check_depth(self, depth: int, loc: Loc) -> None:
        """Give up where it is too deep: PyYAML's time grows with the square of the depth."""
        if depth > MAX_DEPTH:
            self._document.report(Finding(loc, f"nested too deeply: {MAX_DEPTH} levels at most"))
            self._document.raise_problems()

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> None:
        problem, mark = _unmask(error.problem or "it cannot be read"), error.problem_mark
        if "'\\t'" in problem:
            message = "a tab: YAML wants spaces here"
        elif problem.startswith("mapping values are not allowed"):
            message = "a ':' is not allowed here: is the line indented wrongly, or must a text with ': ' be quoted?"
        elif error.context == "while scanning a quoted scalar" and "end of stream" in problem:
            message, mark = "the quote is never closed", error.context_mark
        else:
            message = "not valid YAML: " + problem.replace("<stream end>", "the end of the file")
            if error.context and error.context_mark:
                message += f" ({_unmask(error.context)} that begins on line {error.context_mark.line + 1})"
        message = " ".join(message.split())
        self._document.report(Finding((), message), _mark(mark) if mark else mark_at(self._text, len(self._text)))


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


def _complaint(event: Event) -> str | None:
    """What is wrong with the way a node is written, if anything."""
    if isinstance(event, AliasEvent) or (isinstance(event, NodeEvent) and event.anchor):
        return "anchors and aliases (& and *) are not supported: write the value out, or quote a text that begins so"
    if getattr(event, "tag", None) is not None:
        return "tags (!) are not supported: remove the tag, or quote a text that begins so"
    return None


def _key_complaint(event: Event, key: str) -> str | None:
    if complaint := _complaint(event):
        return complaint
    if not isinstance(event, ScalarEvent):
        return "a key must be text, not a list or a mapping"
    if "${" in key:
        return "variables are not expanded in keys"
    if _UNUSABLE_IN_VALUE.search(key):
        return "holds a NUL character or half a surrogate pair"
    if event.style is not None:
        return None
    if key == "<<":
        return "merge keys (<<) are not supported: write the entries out"
    try:
        if isinstance(plain_value(key), str):
            return None
    except Surprising as surprise:
        return str(surprise)
    return "a key must be text: quote it" if key else "a key is missing before the ':'"


# ---------------------------------------------------------------- ${…} inside {…} and […]

_REFERENCE = re.compile(r"\$\{(?:[^{}\n\r]|\$\{[^{}\n\r]*\})*\}")
_MASK = str.maketrans("{}[],?", "\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4\ufdd5")
_UNMASK = str.maketrans("\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4\ufdd5", "{}[],?")


def _mask(text: str) -> str:
    """Replace YAML's brackets within ``${…}`` by noncharacters, one for one, so that all positions stay.

    To YAML ``{token: ${T:-}}`` is an error, since a plain text inside braces cannot hold a brace; the contract allows
    it. Nothing else changes: outside of braces and in quotes the brackets are text anyway, and :func:`_unmask` puts
    them back. The noncharacters (U+FDD0…) themselves are refused in a file.
    """
    return _REFERENCE.sub(lambda found: found[0].translate(_MASK), text)


def _unmask(text: str) -> str:
    return text.translate(_UNMASK)
