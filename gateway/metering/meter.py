"""The counting thread, and the account of one request.

A request opens a :class:`Tally`, hands it texts as they come and settles it once, before its answer leaves::

    tally = meter.tally()
    tally.add(Part.CODE_CALL, code)
    …
    tokens = await tally.settle()        # frozen: for _meta, metrics and ledger alike

Small texts are counted on the spot: below 1,024 characters that is cheaper than a thread hop (84-120 µs). Larger ones
go to one thread; tiktoken releases the GIL there, while a megabyte counted on the event loop would stop it for half a
second. The queue is bounded in characters. What does not fit, or is not counted when the tally settles, is estimated
from the moving average of its part and marked; nobody ever waits longer than the budget of ``settle``.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.config.model import Metering
from gateway.metering.parts import FIELDS, Part, Tokens
from gateway.metering.tokens import CachedCounts, Count, EstimatingCounter, TokenCounter, estimate, load_counter

__all__ = ["Entry", "Meter", "Part", "Tally", "Tokens"]

log = logging.getLogger(__name__)

INLINE_UP_TO = 1_024
"""Characters, or bytes: longer texts go to the thread."""

MAX_QUEUED = 32 * 1024 * 1024
"""Characters that may wait for the thread."""

SETTLE_BUDGET_S = 0.25

# One hostile text (a run of blanks is 128 characters a token) must not spoil the estimates of the others for long.
_RATE_BOUNDS = (1.0, 16.0)
_RATE_AT_FIRST, _RATE_MEMORY = 4.0, 0.9


class Entry:
    """One text of a tally. ``count`` is final once the tally has settled; before that it may be None.

    Mutable state, guarded by the meter's lock: ``count``, and ``text``, which is dropped as soon as it is not needed.
    """

    __slots__ = ("count", "parts", "size", "tally", "text")

    def __init__(self, tally: Tally, parts: tuple[Part, ...], text: str | bytes) -> None:
        self.tally = tally
        self.parts = parts
        self.size = len(text)
        self.text: str | bytes | None = text
        self.count: Count | None = None

    @property
    def tokens(self) -> int:
        """Tokens of this text, 0 before they are known."""
        return self.count.tokens if self.count else 0

    @property
    def estimated(self) -> bool:
        """Whether ``tokens`` was not really counted."""
        return self.count is None or self.count.estimated


class Tally:
    """The account of one request. Made by :meth:`Meter.tally`; used on the event loop only.

    Mutable state, guarded by the meter's lock: how many entries the thread still has, and who waits for them.
    """

    __slots__ = ("_entries", "_meter", "_pending", "_sandboxed", "_tokens", "_waiter")

    def __init__(self, meter: Meter, sandboxed: bool) -> None:
        self._meter = meter
        self._sandboxed = sandboxed
        self._entries: list[Entry] = []
        self._pending = 0
        self._waiter: asyncio.Future[None] | None = None
        self._tokens: Tokens | None = None

    def add(self, part: Part, text: str | bytes, *, also: Part | None = None) -> Entry:
        """Start counting a text; bytes are UTF-8. Never blocks, never raises; ignored once the tally has settled.

        Args:
            also: a second part that gets the same figure: in direct mode both arms carry the same text.

        Returns:
            the entry, from which the figure of this very text can be read after :meth:`settle`.
        """
        entry = Entry(self, (part,) if also is None else (part, also), text)
        if self._tokens is not None:
            entry.text, entry.count = None, estimate(text)
            return entry
        self._entries.append(entry)
        self._meter._start_counting(entry)
        return entry

    def add_counted(self, part: Part, count: Count, *, also: Part | None = None) -> None:
        """Add a figure that is known already, such as the definitions of a whole list."""
        if self._tokens is None:
            entry = Entry(self, (part,) if also is None else (part, also), "")
            entry.count = count
            self._entries.append(entry)

    async def settle(self, budget_s: float = SETTLE_BUDGET_S) -> Tokens:
        """Wait for the thread, at most ``budget_s`` seconds, and freeze the figures. Any later call gives the same."""
        if self._tokens is None and (waiter := self._meter._waiter_of(self)) is not None:
            await asyncio.wait([waiter], timeout=budget_s)
        return self.settle_now()

    def settle_now(self) -> Tokens:
        """Freeze the figures without waiting: for a request whose client has gone."""
        if self._tokens is None:
            self._meter._finish(self._entries)
            sums = dict.fromkeys(FIELDS, 0)  # plain strings: hashing an enum member is slow
            for entry in self._entries:
                for part in entry.parts:
                    sums[part.value] += entry.tokens
            self._tokens = Tokens(
                **sums,
                hidden=sums["direct_call"] + sums["direct_result"] if self._sandboxed else 0,
                estimated=any(entry.estimated for entry in self._entries),
                encoding=self._meter.encoding,
            )
        return self._tokens


class Meter:
    """Counts tokens for all requests of the process.

    Args:
        load: makes the exact counter; called once, in the thread. Until it has returned, all figures are estimates.
        encoding: its name, for those who read the figures.
        max_queued: characters that may wait.
        on_degraded: told how many texts were estimated because the thread was behind. Called from the event loop.

    Mutable state, guarded by ``_lock``: ``_free``, the characters that still fit into the queue; ``_rates``,
    characters per token by part; and of entries and tallies what their docstrings say. ``_counter`` and ``_cache`` are
    replaced once, by the thread.
    """

    def __init__(
        self,
        load: Callable[[], TokenCounter],
        *,
        encoding: str = "o200k_base",
        max_queued: int = MAX_QUEUED,
        on_degraded: Callable[[int], None] | None = None,
    ) -> None:
        self.encoding = encoding
        self._load = load
        self._on_degraded = on_degraded
        self._counter: TokenCounter = EstimatingCounter()
        self._cache = CachedCounts(self._counter)
        self._lock = threading.Lock()
        self._free = max_queued
        self._rates: dict[Part, float] = {}
        self._queue: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loaded = threading.Event()

    @classmethod
    def of(cls, config: Metering, *, on_degraded: Callable[[int], None] | None = None) -> Meter:
        """The meter that ``metering`` of gateway.yaml describes."""
        load = functools.partial(load_counter, config.encoding, config.rank_file)
        return cls(load, encoding=config.encoding, on_degraded=on_degraded)

    # ---- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the thread, which first loads the encoding. Does not wait for it; see :meth:`wait_loaded`."""
        self._thread = threading.Thread(target=self._work, name="token-meter", daemon=True)
        self._thread.start()

    async def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread once it has counted what is queued, or leave it behind. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(thread.join, timeout_s)

    async def wait_loaded(self, timeout_s: float = 30.0) -> bool:
        """Wait until the encoding is there; whether counts are exact now."""
        await asyncio.to_thread(self._loaded.wait, timeout_s)
        return self.exact

    @property
    def exact(self) -> bool:
        """Whether texts are really counted: the encoding is loaded."""
        return self._counter.exact

    # ---- counting -------------------------------------------------------------------------------------------------

    def tally(self, *, sandboxed: bool = True) -> Tally:
        """Open the account of one request.

        Args:
            sandboxed: inner calls stay in the sandbox and count as hidden; False for direct mode.
        """
        return Tally(self, sandboxed)

    def count_now(self, text: str) -> Count:
        """Count on the spot: for small texts, about 0.13 ms a kB."""
        return self._count(text)

    async def count(self, text: str | bytes, budget_s: float = 1.0) -> Count:
        """Count one text that belongs to no request, in the thread when it is large; estimated after ``budget_s``."""
        tally = self.tally()
        entry = tally.add(Part.CODE_RESULT, text)
        await tally.settle(budget_s)
        return entry.count or estimate(text)

    def count_definition(self, tool: Mapping[str, Any]) -> Count:
        """Tokens of ``{name, description, inputSchema}`` of a tool as compact JSON; cached by content."""
        return self._cache.count_definition(tool)

    async def count_definitions(self, tools: Iterable[Mapping[str, Any]]) -> Count:
        """The sum over a whole list, in a thread. Keep it by catalogue version, unless it is estimated."""
        return await asyncio.to_thread(self._cache.count_definitions, tuple(tools))

    # ---- between a tally and the thread ---------------------------------------------------------------------------

    def _start_counting(self, entry: Entry) -> None:
        text = entry.text
        assert text is not None
        if entry.size <= INLINE_UP_TO or not self._counter.exact or self._thread is None:
            entry.text = None
            entry.count = self._count(text) if entry.size <= INLINE_UP_TO else estimate(text)
            return
        with self._lock:
            if fits := entry.size <= self._free:
                self._free -= entry.size
                entry.tally._pending += 1
        if fits:
            self._queue.put(entry)
        else:
            entry.text = None  # estimated when the tally settles

    def _waiter_of(self, tally: Tally) -> asyncio.Future[None] | None:
        with self._lock:
            if tally._pending and tally._waiter is None:
                tally._waiter = asyncio.get_running_loop().create_future()
            return tally._waiter

    def _finish(self, entries: list[Entry]) -> None:
        """Give every entry its final count; results that come later are ignored."""
        degraded = 0
        with self._lock:
            for entry in entries:
                entry.text = None
                if entry.count is None:
                    rate = self._rates.get(entry.parts[0], _RATE_AT_FIRST)
                    entry.count = Count(round(entry.size / rate), estimated=True)
                    degraded += 1
        if degraded and self._on_degraded is not None:
            self._on_degraded(degraded)

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            counter = self._load()
            self._cache = CachedCounts(counter)
            self._counter = counter
        except Exception:  # the border of the thread: it must live, and figures stay estimates
            log.exception("the tokenizer could not be loaded; token counts are estimates")
        self._loaded.set()
        while (entry := self._queue.get()) is not None:
            self._count_entry(entry)
            del entry

    def _count_entry(self, entry: Entry) -> None:
        with self._lock:
            text, entry.text = entry.text, None
        # None: its tally has settled in the meantime, so that a queue that is behind empties fast
        count = self._count(text) if text is not None else None
        with self._lock:
            self._free += entry.size
            tally = entry.tally
            tally._pending -= 1
            if count is not None and entry.count is None:
                entry.count = count
            if count is not None and count.tokens and not count.estimated:
                self._learn(entry.parts[0], entry.size / count.tokens)
            waiter = tally._waiter if tally._pending == 0 else None
        if waiter is not None:
            _wake(waiter)

    def _count(self, text: str | bytes) -> Count:
        try:
            return self._counter.count(text if isinstance(text, str) else text.decode("utf-8", "replace"))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a counter's fault, a native panic too, ends no thread and no request
            log.exception("a text of %d characters could not be counted", len(text))
            return estimate(text)

    def _learn(self, part: Part, rate: float) -> None:
        low, high = _RATE_BOUNDS
        old = self._rates.get(part, rate)
        self._rates[part] = min(high, max(low, _RATE_MEMORY * old + (1 - _RATE_MEMORY) * rate))


def _wake(waiter: asyncio.Future[None]) -> None:
    try:
        waiter.get_loop().call_soon_threadsafe(_set, waiter)
    except RuntimeError:
        pass  # the loop has been closed: nobody waits any more


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
