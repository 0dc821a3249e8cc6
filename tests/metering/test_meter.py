"""The account of a request: exact in time, estimated and marked when late, and final."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.config.model import Metering
from gateway.metering.meter import INLINE_UP_TO, Meter, Part
from gateway.metering.tokens import Count, EstimatingCounter, TiktokenCounter, TokenCounter

LARGE = "some words of a larger text, " * 200


class WordCounter:
    """Counts blanks, and waits for a gate before it counts anything large: a thread that is behind."""

    exact = True

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.counted: list[int] = []

    def count(self, text: str) -> Count:
        if len(text) > INLINE_UP_TO:
            assert self.gate.wait(20)
        self.counted.append(len(text))
        return Count(text.count(" "))


class PanicException(BaseException):
    """Named like the one that a native extension raises."""


class Faulty:
    """Fails like a native counter does, with an exception that is no ``Exception``, then works."""

    exact = True

    def __init__(self) -> None:
        self.faults = 2

    def count(self, text: str) -> Count:
        if self.faults:
            self.faults -= 1
            raise PanicException("regex error")
        return Count(7)


@asynccontextmanager
async def running(
    counter: TokenCounter, *, max_queued: int = 1_000_000, on_degraded: Callable[[int], None] | None = None
) -> AsyncIterator[Meter]:
    meter = Meter(lambda: counter, max_queued=max_queued, on_degraded=on_degraded)
    await meter.start()
    assert await meter.wait_loaded()
    try:
        yield meter
    finally:
        await meter.stop()


async def test_both_arms_of_an_execution(ours: TiktokenCounter) -> None:
    async with running(ours) as meter:
        tally = meter.tally()
        tally.add(Part.CODE_CALL, "await a__b()")
        tally.add(Part.DIRECT_CALL, '{"name":"a__b","arguments":{}}')
        tally.add(Part.DIRECT_RESULT, LARGE)
        tally.add(Part.DIRECT_RESULT, LARGE.encode())
        tally.add(Part.CODE_RESULT, "done")
        tokens = await tally.settle(20)
    script, call, result = (ours.count(t).tokens for t in ("await a__b()", '{"name":"a__b","arguments":{}}', LARGE))
    assert (tokens.code_call, tokens.code_result) == (script, ours.count("done").tokens)
    assert (tokens.direct_call, tokens.direct_result) == (call, 2 * result)
    assert tokens.hidden == tokens.direct == call + 2 * result
    assert (tokens.input, tokens.output) == (tokens.code_call, tokens.code_result)
    assert tokens.saved == tokens.direct - tokens.code
    assert not tokens.estimated


async def test_direct_mode_has_the_same_figures_on_both_sides_and_hides_nothing() -> None:
    async with running(WordCounter()) as meter:
        tally = meter.tally(sandboxed=False)
        tally.add(Part.CODE_CALL, "a b c", also=Part.DIRECT_CALL)
        tally.add_counted(Part.CODE_LIST, Count(5), also=Part.DIRECT_LIST)
        tokens = await tally.settle()
    assert (tokens.code, tokens.direct, tokens.saved, tokens.hidden) == (7, 7, 0, 0)


async def test_a_search_counts_its_question_as_input_and_nothing_as_direct() -> None:
    async with running(WordCounter()) as meter:
        tally = meter.tally()
        tally.add(Part.CODE_DOCS_QUERY, "two blanks here")
        tally.add(Part.CODE_DOCS, "one blank")
        tokens = await tally.settle()
    assert (tokens.input, tokens.output, tokens.direct, tokens.saved) == (2, 1, 0, -3)


async def test_each_text_tells_its_own_figure_once_settled() -> None:
    async with running(WordCounter()) as meter:
        tally = meter.tally()
        entry = tally.add(Part.DIRECT_RESULT, LARGE)
        await tally.settle(20)
    assert (entry.tokens, entry.estimated) == (LARGE.count(" "), False)


async def test_what_the_thread_does_not_finish_in_time_is_estimated_marked_and_counted() -> None:
    counter, degraded = WordCounter(), list[int]()
    async with running(counter, on_degraded=degraded.append) as meter:
        counter.gate.clear()
        tally = meter.tally()
        tally.add(Part.CODE_RESULT, LARGE)
        tally.add(Part.CODE_RESULT, LARGE)
        tally.add(Part.CODE_CALL, "a b")
        tokens = await tally.settle(0.01)
        counter.gate.set()
    assert tokens.estimated
    assert tokens.code_result == 2 * round(len(LARGE) / 4)
    assert tokens.code_call == 1
    assert degraded == [2]


async def test_after_settling_nothing_changes() -> None:
    counter = WordCounter()
    async with running(counter) as meter:
        counter.gate.clear()
        tally = meter.tally()
        entry = tally.add(Part.CODE_RESULT, LARGE)
        tokens = await tally.settle(0.01)
        figure = entry.tokens
        counter.gate.set()
        assert (await meter.count(LARGE, 20)).tokens == LARGE.count(" ")  # the thread is past the late text
        late = tally.add(Part.CODE_RESULT, "a b c")
        tally.add_counted(Part.CODE_LIST, Count(100))
        assert await tally.settle() == tokens
        assert tally.settle_now() is tokens
    assert entry.tokens == figure
    assert late.estimated


async def test_a_text_whose_tally_has_settled_is_not_counted_any_more() -> None:
    counter = WordCounter()
    async with running(counter) as meter:
        counter.gate.clear()
        blocking, behind = meter.tally(), meter.tally()
        blocking.add(Part.CODE_RESULT, LARGE)
        behind.add(Part.CODE_RESULT, LARGE + "!")
        behind.settle_now()
        counter.gate.set()
        await blocking.settle(20)
        await meter.count(LARGE + "!!", 20)
    assert len(LARGE) + 1 not in counter.counted


async def test_estimates_follow_what_texts_of_that_part_were_like() -> None:
    counter = WordCounter()
    text = "a " * 1_000
    async with running(counter) as meter:
        for _ in range(3):
            seen = meter.tally()
            seen.add(Part.DIRECT_RESULT, text)
            await seen.settle(20)
        counter.gate.clear()
        late = meter.tally()
        late.add(Part.DIRECT_RESULT, text)
        tokens = late.settle_now()
        counter.gate.set()
    assert tokens.direct_result == 1_000
    assert tokens.estimated


async def test_the_queue_is_bounded_in_characters_and_what_does_not_fit_is_estimated_at_once() -> None:
    counter, degraded = WordCounter(), list[int]()
    async with running(counter, max_queued=3 * len(LARGE), on_degraded=degraded.append) as meter:
        counter.gate.clear()
        tallies = [meter.tally() for _ in range(10)]
        for tally in tallies:
            tally.add(Part.CODE_RESULT, LARGE)
        rest = [await tally.settle() for tally in tallies[3:]]  # would wait for the thread if it had been queued
        assert all(tokens.estimated for tokens in rest)
        assert sum(degraded) == 7
        counter.gate.set()
        first = [await tally.settle(20) for tally in tallies[:3]]
        assert not any(tokens.estimated for tokens in first)
        assert not (await meter.count(LARGE * 3, 20)).estimated  # all the room is free again


async def test_until_the_encoding_is_loaded_figures_are_estimates_without_a_wait(ours: TiktokenCounter) -> None:
    gate = threading.Event()

    def load() -> TokenCounter:
        assert gate.wait(20)
        return ours

    meter = Meter(load)
    await meter.start()
    try:
        before = meter.tally()
        before.add(Part.CODE_RESULT, LARGE)
        before.add(Part.CODE_CALL, "a")
        tokens = await asyncio.wait_for(before.settle(60), 5)
        assert tokens.estimated
        assert meter.count_definition({"name": "a"}).estimated
        assert not meter.exact
        gate.set()
        assert await meter.wait_loaded()
        assert await meter.count(LARGE, 20) == ours.count(LARGE)
        assert not meter.count_definition({"name": "a"}).estimated
    finally:
        gate.set()
        await meter.stop()


@pytest.mark.case("METERING-01")
async def test_without_ranks_the_meter_starts_and_marks_all_figures() -> None:
    async with running_estimating() as meter:
        tally = meter.tally()
        tally.add(Part.DIRECT_RESULT, LARGE)
        tokens = await tally.settle()
    assert tokens.estimated
    assert tokens.direct_result == -(-len(LARGE) // 4)


@asynccontextmanager
async def running_estimating() -> AsyncIterator[Meter]:
    meter = Meter(EstimatingCounter)
    await meter.start()
    assert not await meter.wait_loaded()
    yield meter
    await meter.stop()


async def test_a_loader_that_fails_leaves_estimates(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> TokenCounter:
        raise MemoryError

    meter = Meter(load)
    await meter.start()
    assert not await meter.wait_loaded()
    assert (await meter.count(LARGE)).estimated
    await meter.stop()
    assert "could not be loaded" in caplog.text


@pytest.mark.case("METERING-07")
async def test_a_native_panic_neither_ends_the_thread_nor_reaches_the_request() -> None:
    async with running(Faulty()) as meter:
        assert (await meter.count(LARGE, 20)).estimated
        assert meter.count_now("small").estimated
        assert await meter.count(LARGE, 20) == Count(7)


@pytest.mark.case("METERING-07")
@pytest.mark.parametrize("part", [Part.CODE_CALL, Part.CODE_RESULT, Part.DIRECT_RESULT])
async def test_a_million_blanks_in_a_request(part: Part, ours: TiktokenCounter) -> None:
    async with running(ours, max_queued=8_000_000) as meter:
        tally = meter.tally()
        tally.add(part, " " * 1_100_000)
        tokens = await tally.settle(20)
        assert tokens[part] > 0
        assert tokens.estimated
        assert await meter.count(LARGE, 20) == ours.count(LARGE)


@pytest.mark.case("METERING-10")
async def test_concurrent_requests_are_not_mixed_up() -> None:
    async with running(WordCounter()) as meter:

        async def request(number: int) -> bool:
            tally = meter.tally()
            for _ in range(3):
                tally.add(Part.DIRECT_RESULT, "a " * (number + 600))
                await asyncio.sleep(0)
            return (await tally.settle(20)).direct_result == 3 * (number + 600)

        assert all(await asyncio.gather(*(request(number) for number in range(100))))


@pytest.mark.case("METERING-06")
async def test_a_request_that_is_cancelled_while_it_settles_still_has_its_figures() -> None:
    counter = WordCounter()
    async with running(counter) as meter:
        counter.gate.clear()
        tally = meter.tally()
        tally.add(Part.CODE_CALL, "a b")
        tally.add(Part.DIRECT_RESULT, LARGE)
        task = asyncio.create_task(tally.settle(20))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        tokens = tally.settle_now()
        counter.gate.set()
    assert (tokens.code_call, tokens.direct_result) == (1, round(len(LARGE) / 4))


async def test_after_stop_figures_are_estimates_and_stop_may_be_repeated() -> None:
    async with running(WordCounter()) as meter:
        await meter.stop()
        await meter.stop()
        assert (await asyncio.wait_for(meter.count(LARGE), 5)).estimated


async def test_the_meter_of_the_configuration(cache: object) -> None:
    meter = Meter.of(Metering(encoding="cl100k_base"))
    await meter.start()
    assert await meter.wait_loaded()
    assert meter.count_now("three small words") == Count(3)
    assert (await meter.count_definitions([{"name": "a"}, {"name": "b"}])).tokens > 0
    await meter.stop()
    tally = meter.tally()
    assert (await tally.settle()).encoding == "cl100k_base"
