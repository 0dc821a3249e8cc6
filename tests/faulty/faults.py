"""One fault: what it is, where it happens, how often; and how it is written on the command line.

A fault is written ``VALUE[:ARGUMENT][:LIMITS]``. Limits are joined with commas:

* ``after=K`` from the K-th time on, ``times=K`` K times at most, ``every=K`` each K-th time of those;
* ``tool=NAME`` calls of that tool only, ``point=POINT`` at another point of the protocol than the usual one.

Points are ``init`` (the handshake: ``initialize``, and ``server/discover`` unless ``--era legacy``), ``discover``,
``list``, ``call``, ``get``, ``delete``, ``listen``, ``other`` and ``any``. A fault may be given several times.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

POINTS = ("init", "discover", "list", "call", "get", "delete", "listen", "other", "any")

_LIMIT = r"(?:after|times|every|tool|point|retry-after|rate)=[^,]*"
_LIMITS = re.compile(rf"{_LIMIT}(?:,{_LIMIT})*")
_LIMITED = re.compile(rf"(?P<value>.*?)(?:[:,](?P<limits>{_LIMITS.pattern}))?", re.DOTALL)
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, where, and how often.

    Attributes:
        kind: the value of the switch up to its first colon, e.g. ``huge``.
        argument: the rest without limits, e.g. ``50MiB``.
        point: the point of the protocol it belongs to.
        tool: only calls of this tool, or None.
        after, times, every: see the module; they count the requests the fault concerns, from 1.
        retry_after: value of a ``Retry-After`` header, seconds, or None.
    """

    kind: str = ""
    argument: str = ""
    point: str = "call"
    tool: str | None = None
    after: int = 1
    times: int | None = None
    every: int = 1
    retry_after: str | None = None

    def concerns(self, points: frozenset[str], tool: str | None) -> bool:
        return (self.point == "any" or self.point in points) and (self.tool is None or self.tool == tool)

    def fires(self, number: int) -> bool:
        """Whether it happens at the ``number``-th (from 1) request it concerns."""
        since = number - self.after + 1
        return since >= 1 and since % self.every == 0 and (self.times is None or since // self.every <= self.times)


@dataclass(frozen=True, slots=True)
class Announcement:
    """Something the server says on its own: ``list_changed``, ``log`` or ``ping``, each ``period_s`` seconds."""

    kind: str
    period_s: float


# ---------------------------------------------------------------- values


def size(text: str) -> int:
    """Bytes: ``1000``, ``64KiB``, ``300MB``."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text)
    if not match or match[2].upper() not in _UNITS:
        raise ValueError("a size such as 1000, 64KiB or 300MB")
    return int(match[1]) * _UNITS[match[2].upper()]


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1e9:  # neither NaN nor infinity
        raise ValueError("seconds, 0 or more")
    return value


def whole(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise ValueError("a whole number, 0 or more")
    return int(text)


def integer(text: str) -> int:
    if not re.fullmatch(r"-?\d+", text):
        raise ValueError("a whole number")
    return int(text)


def non_empty(text: str) -> str:
    if not text:
        raise ValueError("a value that is not empty")
    return text


def nothing(text: str) -> None:
    if text:
        raise ValueError("no argument")


def choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(" | ".join(words))
        return text

    return parse


def on_off(text: str) -> bool:
    return choice("on", "off")(text) == "on"


def flag(text: str) -> bool:
    nothing(text)
    return True


def optional(check: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: check(text) if text else None


# ---------------------------------------------------------------- faults


def _split_limits(text: str) -> tuple[str, dict[str, str]]:
    if _LIMITS.fullmatch(text):
        value, limits = "", text
    else:
        match = _LIMITED.fullmatch(text)
        assert match is not None  # the pattern matches every text
        value, limits = match["value"], match["limits"] or ""
    return value, dict(item.split("=", 1) for item in limits.split(",") if item)


def _limited(fault: Fault, limits: dict[str, str]) -> Fault:
    if limits.get("point", "any") not in POINTS:
        raise ValueError(f"point={' | '.join(POINTS)}")
    if "rate" in limits:
        raise ValueError("limits after, times, every, tool, point")
    changes: dict[str, Any] = {}
    for name, text in limits.items():
        changes[name.replace("-", "_")] = whole(text) if name in ("after", "times", "every") else text
    if changes.get("after") == 0 or changes.get("every") == 0:
        raise ValueError("limits that count from 1")
    return replace(fault, **changes)


def of_kind(point: str, **kinds: Callable[[str], Any]) -> Callable[[str], Fault]:
    """A fault that is one of some words, each with its own argument; ``_`` in a word's key stands for ``-``."""
    known = {kind.replace("_", "-"): check for kind, check in kinds.items()}

    def parse(text: str) -> Fault:
        value, limits = _split_limits(text)
        kind, _, argument = value.partition(":")
        if kind not in known:
            raise ValueError(" | ".join(known))
        try:
            known[kind](argument)
        except ValueError as error:
            raise ValueError(f"after {kind}: {error}") from None
        return _limited(Fault(kind, argument, point), limits)

    return parse


def amount(point: str, check: Callable[[str], Any]) -> Callable[[str], Fault]:
    """A fault that is one value: a number of seconds, a size, a file."""

    def parse(text: str) -> Fault:
        value, limits = _split_limits(text)
        check(value)
        return _limited(Fault(value, "", point), limits)

    return parse


def at_point(*points: str) -> Callable[[str], Fault]:
    def parse(text: str) -> Fault:
        value, limits = _split_limits(text)
        return _limited(Fault(value, "", choice(*points)(value)), limits)

    return parse


def death(text: str) -> Fault:
    fault = of_kind("call", start=nothing, init=nothing, call=whole, mid_answer=nothing)(text)
    if fault.kind == "call":
        return replace(fault, after=max(1, whole(fault.argument)))
    return replace(fault, point="init") if fault.kind == "init" else fault


def status(text: str) -> Fault:
    value, limits = _split_limits(text)
    point, _, code = value.partition("=")
    if not re.fullmatch(r"[1-5]\d\d", code):
        raise ValueError("POINT=CODE[,retry-after=S]")
    return _limited(Fault(code, "", choice(*POINTS)(point)), limits)


def rpc_error(text: str) -> Fault:
    value, limits = _split_limits(text)
    code, _, message = value.partition(":")
    integer(code)
    return _limited(Fault(code, message), limits)


def after_lists(text: str) -> Fault:
    """``K[:tool=NAME]``: the definition differs once K lists have been read."""
    return amount("list", whole)(text)


def announcement(text: str) -> Announcement:
    value, limits = _split_limits(text)
    kind = choice("list_changed", "log", "ping")(value)
    if set(limits) == {"rate"} and seconds(limits["rate"]) > 0:
        return Announcement(kind, 1 / seconds(limits["rate"]))
    if set(limits) == {"every"} and seconds(limits["every"]) > 0:
        return Announcement(kind, seconds(limits["every"]))
    raise ValueError("KIND:every=SECONDS or KIND:rate=PER_SECOND")
