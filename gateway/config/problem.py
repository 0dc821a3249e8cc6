"""What is wrong in a config file, and where."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

Loc = tuple[str | int, ...]
"""The way from the root of the file to a value: keys and list indices."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake that knows its place in the structure, not yet its line.

    Attributes:
        loc: of the value that is wrong or missing.
        message: a sentence without subject ("must be greater than 0"); never holds a resolved value.
        on_key: the key itself is wrong, not its value.
    """

    loc: Loc
    message: str
    on_key: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake as an editor and an operator want it. Line and column count from 1, in characters; path may be ""."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: "
        return where + (f"{self.path}: " if self.path else "") + self.message


class ConfigError(Exception):
    """The config cannot be used. ``str()`` is one line a problem, in the order of the file.

    Attributes:
        problems: never empty, no duplicates, sorted by position.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=lambda problem: (problem.line, problem.column)))
        super().__init__("\n".join(map(str, self.problems)))

    def one_line(self) -> str:
        """The first problem and how many more there are, for a log line."""
        more = len(self.problems) - 1
        return f"{self.problems[0]}" + (f" (and {more} more)" if more else "")


def path_text(loc: Loc) -> str:
    """``("tenants", "a", "upstreams", "x.y", 0)`` → ``tenants.a.upstreams."x.y"[0]``; always one line."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = part if _BARE_KEY.fullmatch(part) else json.dumps(part if len(part) <= 64 else part[:64] + "…")
            text += f".{shown}" if text else shown
    return text
