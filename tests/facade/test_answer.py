"""The text that goes back to the model: cut to its budget, honest about what was cut and what had happened."""

from __future__ import annotations

import json

import pytest

from gateway.broker import CallTrace
from gateway.errors import ErrorClass
from gateway.facade.answer import error_text, fit, script_answer, side_effects
from gateway.kernels.base import ExecError, ExecResult


async def words(text: str) -> int:
    """A stand-in tokenizer: a token a word."""
    return len(text.split())


async def test_a_string_is_shown_as_it_is_and_other_values_as_json() -> None:
    for value, text in (("a b\nc", "a b\nc"), ({"a": [1, None]}, '{"a":[1,null]}'), (None, "null"), (False, "false")):
        result = ExecResult(True, json.dumps(value, separators=(",", ":")).encode())
        answer = await script_answer(result, [], 100, words)
        assert (answer.text, answer.is_error) == (text, False)


async def test_logs_follow_the_value() -> None:
    answer = await script_answer(ExecResult(True, b"1", logs="one\ntwo\n", logs_dropped=0), [], 100, words)
    assert answer.text == "1\nlogs:\none\ntwo"


async def test_dropped_output_is_said() -> None:
    answer = await script_answer(ExecResult(True, b"1", logs="x", logs_dropped=99), [], 100, words)
    assert "99 more characters were printed" in answer.text


@pytest.mark.case("EXEC-04")
@pytest.mark.parametrize("limit", [50, 200])
async def test_value_logs_and_error_share_one_budget(limit: int) -> None:
    big = "word " * 5_000
    value = ExecResult(True, json.dumps(big).encode(), logs=big)
    failed = ExecResult(False, error=ExecError(ErrorClass.RUNTIME_ERROR, big, 3), logs=big)
    for result in (value, failed):
        answer = await script_answer(result, [], limit, words)
        assert await words(answer.text) <= limit
        assert "truncated" in answer.text


async def test_what_was_cut_is_measured() -> None:
    text = await fit("word " * 1_000, 100, words, "return less")
    assert text.startswith("word word")
    assert "of 1000 tokens shown; return less]" in text
    assert await words(text) <= 100


async def test_short_texts_are_not_counted() -> None:
    async def never(text: str) -> int:
        raise AssertionError("counted")

    assert await fit("x" * 100, 100, never, "") == "x" * 100


def test_an_error_begins_with_its_class_and_line() -> None:
    error = ExecError(ErrorClass.RUNTIME_ERROR, "ValueError: no", line=4, hint="try yes")
    assert error_text(error, []).splitlines() == ["RUNTIME_ERROR: ValueError: no (line 4)", "hint: try yes"]


@pytest.mark.case("EXEC-03")
def test_side_effects_are_counted_and_named() -> None:
    calls = [CallTrace(n, "kv__put", "kv", "ok", True) for n in range(1, 4)]
    calls += [
        CallTrace(4, "kv__drop", "kv", ErrorClass.TOOL_ERROR, True),
        CallTrace(5, "kv__slow", "kv", ErrorClass.CANCELLED, True),
        CallTrace(6, "nope", "", ErrorClass.UNKNOWN_TOOL, False),
    ]
    text = side_effects(calls)
    assert "3 completed (last: kv__put ×3), their effects stand" in text
    assert "2 failed" in text
    assert "1 in flight and cancelled, outcome unknown (kv__slow)" in text
