"""Values of a script → JSON: every value is either valid JSON within the caps or a clear refusal."""

from __future__ import annotations

import datetime
import json
import math
from collections import OrderedDict, deque, namedtuple
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kernels.base import MAX_DEPTH
from gateway.kernels.encode import EncodingError, check_plain, to_json, to_plain

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=50)
ANY = st.recursive(
    SCALARS
    | st.floats()
    | st.binary()
    | st.decimals()
    | st.datetimes()
    | st.timedeltas()
    | st.complex_numbers()
    | st.builds(object),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.none() | st.booleans() | st.tuples(st.text()), inner)
    ),
    max_leaves=30,
)


class Hostile:
    """Whatever is asked of it, it answers with an accident."""

    def __repr__(self) -> str:
        raise AssertionError("repr was called")

    __str__ = __repr__

    def __iter__(self) -> Any:
        raise AssertionError("iterated")

    @property
    def attributes(self) -> Any:
        raise AssertionError("asked for its attributes")


@given(JSON)
def test_json_values_come_back_unchanged(value: Any) -> None:
    encoded = to_json(value)
    assert json.loads(encoded) == json.loads(json.dumps(value).encode("utf-8", "replace")) == value
    check_plain(value)


@given(ANY, st.integers(min_value=0, max_value=200))
def test_any_value_is_valid_json_within_the_cap_or_refused(value: Any, max_bytes: int) -> None:
    try:
        encoded = to_json(value, max_bytes)
    except EncodingError:
        return
    assert len(encoded) <= max_bytes
    check_plain(json.loads(encoded))


@given(JSON)
def test_the_walk_never_refuses_what_fits(value: Any) -> None:
    encoded = to_json(value)
    assert to_json(value, len(encoded)) == encoded
    with pytest.raises(EncodingError):
        to_json(value, len(encoded) - 1)


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "null"),
        (-math.inf, "null"),
        (b"\x00\xff", '{"$bytes":"AP8="}'),
        ((1, Point(2, 3), deque([4])), "[1,[2,3],[4]]"),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        ({1: 1, None: 2, False: 3, 1.5: 4, ("a", 2): 5}, '{"1":1,"null":2,"false":3,"1.5":4,"a,2":5}'),
        ({datetime.date(2024, 1, 2): 1}, '{"2024-01-02":1}'),
        (datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.UTC), '"2024-01-02T03:00:00+00:00"'),
        (datetime.time(1, 2), '"01:02:00"'),
        (datetime.timedelta(seconds=1.5), "1.5"),
        (Decimal("1.10"), '"1.10"'),
        (PurePosixPath("/a/b"), '"/a/b"'),
        (ValueError("no"), '"ValueError: no"'),
        (10**100, "1" + "0" * 100),
        ("\ud800", '"?"'),
    ],
)
def test_the_table_of_the_module(value: Any, expected: str) -> None:
    assert to_json(value).decode() == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "a object"),
        (Hostile(), "a Hostile"),
        ([{"a": Hostile()}], "a Hostile"),
        ({Hostile(): 1}, "a Hostile"),
        (1j, "a complex"),
        (int, "function or type"),
        ([10**5000], "integer"),
        ({10**5000: 1}, "integer"),
        ({1: 1, "1": 2}, "two keys"),
        ("<coroutine object main>", "never awaited"),
        (["<coroutine external_future(12)>"], "never awaited"),
    ],
)
def test_what_json_cannot_say_is_refused_by_name(value: Any, words: str) -> None:
    with pytest.raises(EncodingError, match=words) as refusal:
        to_json(value)
    assert not refusal.value.too_large
    assert refusal.value.hint


def test_text_that_only_speaks_of_coroutines_is_text() -> None:
    assert to_json("a <coroutine object main>") == b'"a <coroutine object main>"'


def test_cycles_are_refused_and_repetition_is_not() -> None:
    inner = [1]
    assert to_json([inner, inner]) == b"[[1],[1]]"
    cycle: dict[str, Any] = {}
    cycle["again"] = [cycle]
    with pytest.raises(EncodingError, match="contains itself"):
        to_json(cycle)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_the_depth_cap_is_exact_and_never_recurses_further() -> None:
    assert to_json(nested(MAX_DEPTH)) == b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH
    check_plain(nested(MAX_DEPTH))
    for levels in (MAX_DEPTH + 1, 100_000):
        for conversion in (to_json, check_plain):
            with pytest.raises(EncodingError, match="deeper than 64 levels") as refusal:
                conversion(nested(levels))
            assert refusal.value.too_large


def test_the_byte_cap_stops_the_walk_and_tells_the_size_reached() -> None:
    with pytest.raises(EncodingError, match=r"larger than 1,000 bytes of JSON \(at least 5,000\)"):
        to_plain("a" * 5_000, 1_000)
    with pytest.raises(EncodingError, match="at least 2,000"):
        to_plain([object()] * 1_000, 1_000)  # refused by its length: no element is looked at


@pytest.mark.parametrize("value", [(1, 2), {1}, b"", object(), [1, {"a": (1,)}], Hostile()])
def test_only_plain_values_pass_into_a_script(value: Any) -> None:
    with pytest.raises(EncodingError):
        check_plain(value)
