"""The ledger in one SQLite file, which may be shared with the key store: all our tables begin with ``usage_``.

One thread writes: in batches of at most 200 ms or 500 requests (15 µs a row, against 141 with a commit each), each in
one transaction. A batch leaves the queue only once it is committed, and the request id is the primary key, so a
repeated flush adds nothing. While the file is locked, read-only or its disk full, rows wait in the bounded queue and
writing is tried again; only what then does not fit is lost, and counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from gateway.metering.ledger import GroupBy, LedgerStats, LedgerUnavailable
from gateway.metering.sqlite_tables import BAD_VALUE, Record, connect, insert, reason_of, summarise_file, tokens_since
from gateway.metering.usage import CallRow, UsageRow, UsageSummary

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Requests that may wait to be written."""
MAX_WAITING_CALLS = 50_000
"""Their tool calls that may wait with them."""
BATCH_ROWS, BATCH_S = 500, 0.2

_BUSY_S = 0.25
_RETRY_FIRST_S, _RETRY_LAST_S = 0.1, 2.0
_DAY_S = 86_400


def ledger_path(url: str, base: Path | None = None) -> Path:
    """``sqlite:///gateway.db`` is relative to ``base``, ``sqlite:////var/lib/gateway.db`` is absolute."""
    return (base or Path()) / url.removeprefix("sqlite:///")


def open_ledger(url: str, *, base: Path | None = None, on_dropped: Callable[[int], None] | None = None) -> SqliteLedger:
    """See :func:`gateway.metering.ledger.open_ledger`."""
    return SqliteLedger(ledger_path(url, base), on_dropped=on_dropped)


def summarise(
    url: str, *, base: Path | None, tenant: str | None, since: float | None, by: tuple[GroupBy, ...]
) -> list[UsageSummary]:
    """See :func:`gateway.metering.ledger.summarise`."""
    return summarise_file(ledger_path(url, base), tenant, since, by)


class SqliteLedger:
    """See :class:`gateway.metering.ledger.Ledger`.

    Args:
        path: the file; it is made if its folder exists.
        on_dropped: told how many rows were lost; called from the event loop or from the writer thread.
        max_waiting, max_waiting_calls: bounds of the queue, in requests and in their tool calls.
        clock: unix seconds; decides which day is today.

    Mutable state, guarded by ``_changed``: the queue (``_queue``, ``_waiting_calls``), the counts ``_accepted``
    (requests that entered the queue), ``_left`` (that left it), ``_written`` and ``_dropped`` (rows), the sums of
    today, ``_failing``, ``_hurry`` and ``_end_by``. The connection belongs to the writer thread once that runs.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_dropped: Callable[[int], None] | None = None,
        max_waiting: int = MAX_WAITING,
        max_waiting_calls: int = MAX_WAITING_CALLS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._on_dropped = on_dropped
        self._max_waiting = max_waiting
        self._max_waiting_calls = max_waiting_calls
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[Record] = deque()
        self._waiting_calls = 0
        self._accepted = self._left = self._written = self._dropped = 0
        self._today = 0
        self._tokens_today: dict[str, int] = {}
        self._failing = ""
        self._hurry = False
        self._end_by: float | None = None
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    # ---- used by requests -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        await asyncio.to_thread(self._open_first)
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    def record(self, row: UsageRow, calls: Iterable[CallRow] = ()) -> None:
        kept = tuple(calls)
        lost = 0
        with self._changed:
            self._add_to_today(row)
            if len(self._queue) >= self._max_waiting or self._end_by is not None:
                lost = 1 + len(kept)
            else:
                if self._waiting_calls + len(kept) > self._max_waiting_calls:
                    # the request itself is what is paid for: it goes on without the list of its calls
                    lost, kept = len(kept), ()
                self._queue.append((row, kept))
                self._waiting_calls += len(kept)
                self._accepted += 1
                if len(self._queue) in (1, BATCH_ROWS):
                    self._changed.notify_all()
        if lost:
            self._count_lost(lost)

    def tokens_today(self, tenant: str) -> int:
        with self._changed:
            return self._tokens_today.get(tenant, 0) if self._today == self._day(self._clock()) else 0

    async def flush(self, timeout_s: float = 5.0) -> bool:
        return await asyncio.to_thread(self._flush, timeout_s)

    async def stop(self, timeout_s: float = 5.0) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._changed:
            self._end_by = time.monotonic() + timeout_s
            self._changed.notify_all()
        # the writer gives up by itself; one busy wait may still be running then
        await asyncio.to_thread(thread.join, timeout_s + 2 * _BUSY_S)

    def stats(self) -> LedgerStats:
        with self._changed:
            waiting = len(self._queue) + self._waiting_calls
            return LedgerStats(waiting, self._written, self._dropped, self._failing)

    # ---- today ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _day(ts: float) -> int:
        return int(ts // _DAY_S)

    def _add_to_today(self, row: UsageRow) -> None:
        today = self._day(self._clock())
        if today != self._today:
            self._today, self._tokens_today = today, {}
        if self._day(row.ts) == today:
            self._tokens_today[row.tenant] = self._tokens_today.get(row.tenant, 0) + row.tokens.code

    # ---- the file -------------------------------------------------------------------------------------------------

    def _open_first(self) -> None:
        try:
            self._connection = self._open(busy_s=2.0)
            today = self._day(self._clock())
            sums = tokens_since(self._connection, today * _DAY_S)
            self._connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_S * 1000)}")
        except (OSError, sqlite3.Error) as error:
            self._close()
            raise LedgerUnavailable(str(self._path), reason_of(error)) from error
        with self._changed:
            self._today, self._tokens_today = today, sums

    def _open(self, busy_s: float = _BUSY_S) -> sqlite3.Connection:
        connection = connect(self._path, busy_s)
        self._inode = os.stat(self._path).st_ino
        return connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _replaced(self) -> bool:
        """The file has been removed or replaced: SQLite would go on writing into the one that nobody sees any more."""
        try:
            return os.stat(self._path).st_ino != self._inode
        except FileNotFoundError:
            return True

    # ---- the writer thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        pause = _RETRY_FIRST_S
        while batch := self._next_batch():
            try:
                self._write(batch)
            except Exception as error:  # noqa: BLE001 - the border of the thread: rows wait, the reason is shown
                self._close()
                if not self._wait_before_retry(reason_of(error), pause):
                    break
                pause = min(2 * pause, _RETRY_LAST_S)
            else:
                pause = _RETRY_FIRST_S
        self._close()

    def _next_batch(self) -> list[Record]:
        """Waits until there is one; its rows stay in the queue until they are written. Empty when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._end_by is not None)
            self._changed.wait_for(
                lambda: len(self._queue) >= BATCH_ROWS or self._hurry or self._end_by is not None, timeout=BATCH_S
            )
            return list(islice(self._queue, BATCH_ROWS))

    def _write(self, batch: list[Record]) -> None:
        if self._connection is not None and self._replaced():
            self._close()
        if self._connection is None:
            self._connection = self._open()
        try:
            insert(self._connection, batch)
            written, lost = sum(1 + len(calls) for _, calls in batch), 0
        except BAD_VALUE:
            written, lost = self._write_one_by_one(self._connection, batch)
        with self._changed:
            for _, calls in batch:
                self._queue.popleft()
                self._waiting_calls -= len(calls)
            self._left += len(batch)
            self._written += written
            recovered, self._failing = self._failing, ""
            self._changed.notify_all()
        if recovered:
            log.info("ledger %s: writing again", self._path)
        if lost:
            self._count_lost(lost)

    def _write_one_by_one(self, connection: sqlite3.Connection, batch: list[Record]) -> tuple[int, int]:
        """One row that cannot be stored must not hold up the others. Returns the rows written and lost."""
        written = lost = 0
        for row, calls in batch:
            try:
                insert(connection, [(row, calls)])
                written += 1 + len(calls)
            except BAD_VALUE as error:
                lost += 1 + len(calls)
                log.error("ledger: request %s cannot be stored: %s", row.request_id, reason_of(error))
        return written, lost

    def _wait_before_retry(self, reason: str, pause_s: float) -> bool:
        """False when the time to end has come; what still waits is lost then."""
        with self._changed:
            first, self._failing = not self._failing, reason
            if self._end_by is None:
                # an end cuts the pause short, a flush does not
                self._changed.wait_for(lambda: self._end_by is not None, timeout=pause_s)
            else:
                self._changed.wait(min(pause_s, max(0.0, self._end_by - time.monotonic())))
            if self._end_by is None or time.monotonic() < self._end_by:
                lost = 0
            else:
                lost = len(self._queue) + self._waiting_calls
                self._left += len(self._queue)
                self._queue.clear()
                self._waiting_calls = 0
                self._changed.notify_all()
        if first:
            log.warning("ledger %s: cannot write (%s); rows wait and it is tried again", self._path, reason)
        if lost:
            self._count_lost(lost)
        return not lost

    def _flush(self, timeout_s: float) -> bool:
        with self._changed:
            target = self._accepted
            self._hurry = True
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: self._left >= target, timeout_s)
            finally:
                self._hurry = False

    def _count_lost(self, rows: int) -> None:
        with self._changed:
            self._dropped += rows
        if self._on_dropped is not None:
            self._on_dropped(rows)
