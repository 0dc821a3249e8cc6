"""The text of an ``execute_code`` answer: value or error, logs, and what a failed script had already done.

Everything is cut to the tenant's ``maxOutputTokens`` by measured tokens, value first: a cap that guards only one of
value, logs and error message guards nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from gateway.broker import CallTrace
from gateway.errors import ErrorClass
from gateway.kernels.base import ExecError, ExecResult
from gateway.metering.metrics import OK

Count = Callable[[str], Awaitable[int]]
"""``await count(text)`` → tokens."""

NAMED_CALLS = 5
TAIL_SHARE = 4
"""Beside a long value logs and notes get a quarter of the budget each, so that the value keeps half of it."""
SPARE = 8
"""Tokens for the lines between the parts."""


@dataclass(frozen=True, slots=True)
class ScriptAnswer:
    """What goes back to the model."""

    text: str
    is_error: bool


async def script_answer(result: ExecResult, calls: Sequence[CallTrace], max_tokens: int, count: Count) -> ScriptAnswer:
    """Render one finished execution within ``max_tokens``."""
    if result.error is not None:
        head = error_text(result.error, calls)
        logs = _logs(result)
        text = await fit(head, max_tokens, count, "")
        if logs:
            text = await fit(f"{text}\nlogs:\n{logs}", max_tokens, count, "")
        return ScriptAnswer(text, True)
    value = _value_text(result.value)
    tail = await _tail(result, max_tokens, _bytes(value), count)
    left = max(1, max_tokens - await count(tail) - SPARE) if tail else max_tokens
    hint = "return less: filter, aggregate or pick fields in the script"
    return ScriptAnswer(await fit(value, left, count, hint) + tail, False)


def error_text(error: ExecError, calls: Sequence[CallTrace]) -> str:
    """``ERROR_CLASS: message (line N)``, then what is needed to repair it."""
    place = "" if error.line is None else f" (line {error.line})"
    lines = [f"{error.error_class}: {error.message}{place}"]
    if error.hint:
        lines.append(f"hint: {error.hint}")
    if calls:
        lines.append(side_effects(calls))
    return "\n".join(lines)


def side_effects(calls: Sequence[CallTrace]) -> str:
    """How far a failed script got: nobody may have to guess which tool calls have already taken effect."""
    sent = [call for call in calls if call.dispatched]
    completed = [call for call in sent if call.outcome == OK]
    failed = [call for call in calls if call.outcome not in (OK, "", ErrorClass.CANCELLED)]
    unknown = [call for call in sent if call.outcome in ("", ErrorClass.CANCELLED)]
    parts = [f"tool calls before this: {len(completed)} completed"]
    if completed:
        last = Counter(call.tool for call in completed[-NAMED_CALLS:])
        names = ", ".join(name if n == 1 else f"{name} ×{n}" for name, n in last.items())
        parts[0] += f" (last: {names}), their effects stand"
    if failed:
        parts.append(f"{len(failed)} failed")
    if unknown:
        names = ", ".join(dict.fromkeys(call.tool for call in unknown[:NAMED_CALLS]))
        parts.append(f"{len(unknown)} in flight and cancelled, outcome unknown ({names})")
    return "; ".join(parts)


async def fit(text: str, max_tokens: int, count: Count, hint: str) -> str:
    """``text``, or its beginning and a note with both sizes when it is longer than ``max_tokens`` tokens.

    A token is at least one byte (a rare character may be four tokens), so most texts pass without being counted.
    """
    if _bytes(text) <= max_tokens:
        return text
    total = await count(text)
    if total <= max_tokens:
        return text
    note = f"\n… [truncated: about {max_tokens} of {total} tokens shown" + (f"; {hint}]" if hint else "]")
    room = max(0, max_tokens - await count(note))
    keep = int(len(text) * room / total)
    shown = text[:keep]
    for _ in range(8):
        size = await count(shown)
        if size <= room:
            break
        keep = int(keep * room / size * 0.98)
        shown = text[:keep]
    else:
        shown = text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")
    return shown + note


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


async def _tail(result: ExecResult, max_tokens: int, value_bytes: int, count: Count) -> str:
    """What follows the value of a script that ended well: its logs and the kernel's notes.

    Logs get what a short value leaves over, and never less than their share.
    """
    notes = ""
    if result.notes:
        notes = "\nnote: " + await fit("; ".join(result.notes), max(1, max_tokens // TAIL_SHARE), count, "")
    logs = _logs(result)
    if not logs:
        return notes
    room = max(max_tokens // TAIL_SHARE, max_tokens - value_bytes - _bytes(notes) - SPARE, 1)
    return "\nlogs:\n" + await fit(logs, room, count, "print less") + notes


def _value_text(value: bytes) -> str:
    """A string as it is, everything else as the compact JSON it already is."""
    if value.startswith(b'"'):
        return msgspec.json.decode(value, type=str)
    return value.decode()


def _logs(result: ExecResult) -> str:
    if not result.logs_dropped:
        return result.logs.rstrip("\n")
    return f"{result.logs}… [{result.logs_dropped} more characters were printed and dropped]"
