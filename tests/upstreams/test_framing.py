"""Lines of stdio and events of HTTP: the same whatever pieces they arrive in."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.framer import LineFramer, LineTooLong
from gateway.upstreams.sse import Event, EventTooLarge, SseParser


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


LINES = b'\xef\xbb\xbf{"a":1}\r\n\n  \n{"b":"\xc3\xa9"}\nrest'


@given(st.lists(st.integers(0, 1000)))
def test_lines_do_not_depend_on_the_pieces(cuts: list[int]) -> None:
    framer = LineFramer()

    lines = [line for piece in in_pieces(LINES, cuts) for line in framer.feed(piece)]

    assert lines == [b'{"a":1}', b'{"b":"\xc3\xa9"}']


def test_a_line_may_be_as_long_as_the_cap_and_no_longer() -> None:
    assert LineFramer(cap=5).feed(b"12345\n") == [b"12345"]
    for before, last in ((b"", b"123456\n"), (b"123", b"456\n"), (b"", b"123456")):
        framer = LineFramer(cap=5)
        framer.feed(before)
        with pytest.raises(LineTooLong):
            framer.feed(last)


def test_a_long_line_costs_linear_time() -> None:
    def cost(pieces: int) -> float:
        framer, chunk = LineFramer(cap=1 << 30), b"x" * 1024
        began = time.process_time()
        for _ in range(pieces):
            framer.feed(chunk)
        framer.feed(b"\n")
        return time.process_time() - began

    cost(1000)
    small, large = min(cost(1000) for _ in range(3)), min(cost(16000) for _ in range(3))

    assert large < 100 * small  # quadratic would be 256 times


STREAM = (
    b"\xef\xbb\xbf: comment\r\n\r\nevent: message\r\nid: 7\r\ndata: one\r\n\r\n"
    b"data:two\ndata: lines\n\nretry: 500\rdata: three \r\revent: endpoint\ndata: /x\n\n"
    b"data\n\nevent: none\n\ndata: cut"
)
EVENTS = [
    Event("message", b"one"),
    Event("message", b"two\nlines"),
    Event("message", b"three "),
    Event("endpoint", b"/x"),
    Event("message", b""),
]


@given(st.lists(st.integers(0, 1000)))
def test_events_do_not_depend_on_the_pieces(cuts: list[int]) -> None:
    parser = SseParser()

    events = [event for piece in in_pieces(STREAM, cuts) for event in parser.feed(piece)]

    assert events == EVENTS
    assert (parser.last_id, parser.retry_ms) == (b"7", 500)


@pytest.mark.parametrize("field", [b"data: ", b": ", b""])
def test_an_event_has_a_cap(field: bytes) -> None:
    parser = SseParser(cap=100)
    with pytest.raises(EventTooLarge):
        parser.feed(field + b"x" * 101)


def test_many_small_lines_of_one_event_have_the_same_cap() -> None:
    parser = SseParser(cap=100)
    with pytest.raises(EventTooLarge):
        parser.feed(b"data:\n" * 101)
