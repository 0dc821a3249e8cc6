"""Counts equal plain tiktoken's, on ordinary and on hostile text."""

from __future__ import annotations

import json
import random
import threading
import time

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.metering.tokens import (
    EXACT_UP_TO,
    CachedCounts,
    Count,
    EstimatingCounter,
    TiktokenCounter,
    compact_json,
    definition_json,
    estimate,
)

NO_BREAK_SPACE = "\u00a0"


def records(rows: int, *, indent: int | None = None) -> str:
    dice = random.Random(7)
    return json.dumps(
        [
            {
                "id": dice.randrange(10**9),
                "name": dice.choice(["Ada Lovelace", "Grace O'Hopper", "Jürgen Müller", "山田太郎、東京"]),
                "note": "It's what they'd call \"fine\": see https://example.org/a_b?c=1\n\tand so on…",
                "ratio": dice.random(),
            }
            for _ in range(rows)
        ],
        ensure_ascii=False,
        indent=indent,
    )


TEXTS = {
    "empty": "",
    "sentence": "The quick brown fox jumps over the lazy dog, doesn't it?",
    "code": "async def f(x: int) -> str:\n    return await call_tool('a__b', {'n': x})\n" * 30,
    "special tokens": "<|endoftext|> and <|fim_prefix|> are only text here",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈 " * 50,
    "scripts": "Здравствуй мир 你好，世界 こんにちは مرحبا नमस्ते สวัสดี",
    "marks": "a\u0301e\u0301 \u0301\u0301 x\u200by",
    "NUL and controls": "\0\x01\x1b[31m\x7f" * 100,
    "lone surrogates": "a\ud800b\udfffc" * 50,
    "compact JSON, several slices": records(900),
    "pretty JSON, several slices": records(700, indent=2),
    "prose, several slices": "Then she said: it's 12:30 o'clock, we'll go.\r\n\r\n" * 6000,
    "Chinese, several slices": "今天天气很好，我们去公园散步。" * 12_000,
    "one letter": "a" * 200_000,
}


@pytest.mark.parametrize("label", TEXTS)
def test_a_count_equals_plain_tiktoken(label: str, plain: tiktoken.Encoding, ours: TiktokenCounter) -> None:
    text = TEXTS[label]
    assert len(text) <= EXACT_UP_TO
    assert ours.count(text) == Count(len(plain.encode(text, disallowed_special=())), estimated=False)


def test_texts_of_many_lengths_around_the_slice_equal_plain_tiktoken(
    plain: tiktoken.Encoding, ours: TiktokenCounter
) -> None:
    text = records(900)
    for length in range(65_500, 65_580, 7):
        cut = text[:length]
        assert ours.count(cut).tokens == len(plain.encode(cut, disallowed_special=()))


@settings(max_examples=150, deadline=None, database=None)
@given(text=st.text(max_size=200), word=st.sampled_from(["end", "x9", "O'Neil", "你", " ", "\n"]))
def test_any_text_is_counted_like_tiktoken_also_across_a_cut(
    text: str, word: str, plain: tiktoken.Encoding, ours: TiktokenCounter
) -> None:
    # the filler ends in a word, so that the cut falls beside the text that is searched
    long = "lorem ipsum " * 5_455 + word + text + " dolor sit amet"
    assert ours.count(text).tokens == len(plain.encode(text, disallowed_special=()))
    assert ours.count(long).tokens == len(plain.encode(long, disallowed_special=()))


@pytest.mark.case("METERING-07")
@pytest.mark.parametrize("blank", [" ", "\t", NO_BREAK_SPACE], ids=["space", "tab", "no-break space"])
def test_a_run_of_a_million_blanks_is_counted_and_the_next_count_is_right(
    blank: str, plain: tiktoken.Encoding, ours: TiktokenCounter, capfd: pytest.CaptureFixture[str]
) -> None:
    run = blank * 1_100_000
    count = ours.count(run)
    assert count.estimated
    assert 0 < count.tokens < len(run)
    assert ours.count(run[:1_040_000]).tokens > 0
    assert ours.count("the next one") == Count(len(plain.encode("the next one")))
    assert "panicked" not in capfd.readouterr().err


def test_a_million_blanks_do_not_end_a_thread(ours: TiktokenCounter) -> None:
    counts: list[Count] = []
    thread = threading.Thread(target=lambda: counts.extend(ours.count(" " * n) for n in (1_100_000, 1_000_300, 4)))
    thread.start()
    thread.join(20)
    assert len(counts) == 3


def test_a_text_above_a_mebibyte_is_sampled_marked_and_close(plain: tiktoken.Encoding, ours: TiktokenCounter) -> None:
    text = records(9_000)
    assert len(text) > EXACT_UP_TO
    count = ours.count(text)
    assert count.estimated
    assert count.tokens == pytest.approx(len(plain.encode(text, disallowed_special=())), rel=0.04)


def test_the_cost_of_a_text_is_bounded_whatever_its_length(ours: TiktokenCounter) -> None:
    dice = random.Random(3)
    block = "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=100_000))
    started = time.thread_time()
    ours.count(block * 300)
    assert time.thread_time() - started < 2


def test_an_estimate_is_a_quarter_of_the_bytes_and_always_marked() -> None:
    assert EstimatingCounter().count("abcde") == Count(2, estimated=True)
    assert EstimatingCounter().count("你好你好") == Count(3, estimated=True)
    assert estimate(b"12345678") == Count(2, estimated=True)
    assert estimate("\ud800").estimated


def test_a_sum_is_estimated_when_one_of_its_parts_is() -> None:
    assert Count(2) + Count(3) == Count(5)
    assert Count(2) + Count(3, estimated=True) == Count(5, estimated=True)


# ---- definitions -----------------------------------------------------------------------------------------------------

TOOL = {
    "name": "weather__forecast",
    "title": "Forecast",
    "description": "Wettervorhersage für einen Ort",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}


def test_a_definition_is_what_reaches_a_model_as_compact_json() -> None:
    assert definition_json(TOOL) == (
        '{"name":"weather__forecast","description":"Wettervorhersage für einen Ort",'
        '"inputSchema":{"type":"object","properties":{"city":{"type":"string"}}}}'
    )


def test_definitions_are_summed_one_by_one(plain: tiktoken.Encoding, ours: TiktokenCounter) -> None:
    cached = CachedCounts(ours)
    one = len(plain.encode(definition_json(TOOL)))
    assert cached.count_definition(TOOL) == Count(one)
    assert cached.count_definitions([TOOL, {**TOOL, "title": "not counted"}]) == Count(2 * one)
    assert len(cached) == 1


def test_the_cache_is_bounded_and_keeps_what_was_used_last(ours: TiktokenCounter) -> None:
    cached = CachedCounts(ours, capacity=2)
    for value in ("a", "b", "a", "c"):
        cached.count_json(value)
    assert len(cached) == 2


def test_estimates_are_not_kept() -> None:
    cached = CachedCounts(EstimatingCounter())
    assert cached.count_json({"a": 1}).estimated
    assert len(cached) == 0


def test_a_value_nested_too_deep_for_json_is_counted_all_the_same(ours: TiktokenCounter) -> None:
    deep: object = "the core"
    for _ in range(100_000):
        deep = [deep]
    assert compact_json(deep) == "the core"
    assert CachedCounts(ours).count_json({"a": deep}).tokens > 0
