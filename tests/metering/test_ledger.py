"""The ledger: every request once, whatever happens to the file; and what is lost is counted."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from gateway.metering.ledger import GroupBy, LedgerUnavailable, open_ledger, summarise
from gateway.metering.ledger_sqlite import SqliteLedger, ledger_path
from gateway.metering.parts import Tokens
from gateway.metering.usage import CallRow, UsageRow

DAY = 86_400
NOON = 20_000 * DAY + DAY / 2  # 2024-10-04T12:00Z

TOKENS = Tokens(code_call=20, code_result=10, direct_call=30, direct_result=100, hidden=130)


def row(
    request_id: str, *, ts: float = NOON, tenant: str = "acme", tokens: Tokens = TOKENS, outcome: str = "ok"
) -> UsageRow:
    return UsageRow(
        request_id=request_id,
        ts=ts,
        tenant=tenant,
        key_id="k1",
        endpoint="code",
        method="tools/call",
        tool="execute_code",
        outcome=outcome,
        tokens=tokens,
        tool_calls=2,
        calls_failed=1,
        cpu_ms=1.5,
        wall_ms=20.0,
        kernel="python",
        protocol="2026-07-28",
    )


def call(request_id: str, seq: int) -> CallRow:
    return CallRow(request_id, seq, "time", "time__now", "ok", 3.5, tokens_in=4, tokens_out=5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.db"


@asynccontextmanager
async def running(ledger: SqliteLedger) -> AsyncIterator[SqliteLedger]:
    await ledger.start()
    try:
        yield ledger
    finally:
        await ledger.stop()


def ids(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [request_id for (request_id,) in connection.execute("SELECT request_id FROM usage_requests ORDER BY 1")]


def mode(path: Path) -> int:
    return path.stat().st_mode


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - another thread changes it
            await asyncio.sleep(0.01)


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """No file of this process can grow beyond what the ledger's largest one has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(file.stat().st_size for file in path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---- writing ---------------------------------------------------------------------------------------------------------


async def test_a_request_and_its_calls_are_kept(path: Path) -> None:
    async with running(SqliteLedger(path)) as ledger:
        ledger.record(row("r1"), [call("r1", 1), call("r1", 2)])
        assert await ledger.flush()
        assert ledger.stats().written == 3
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        (kept,) = connection.execute("SELECT * FROM usage_requests").fetchall()
        calls = connection.execute("SELECT seq, upstream, tool, tokens_in, tokens_out FROM usage_calls").fetchall()
    assert dict(kept) == {
        "request_id": "r1",
        "ts": NOON,
        "tenant": "acme",
        "key_id": "k1",
        "endpoint": "code",
        "method": "tools/call",
        "tool": "execute_code",
        "outcome": "ok",
        "error_class": "",
        "code_list": 0,
        "code_docs_query": 0,
        "code_docs": 0,
        "code_call": 20,
        "code_result": 10,
        "direct_list": 0,
        "direct_call": 30,
        "direct_result": 100,
        "tokens_code": 30,
        "tokens_direct": 130,
        "hidden": 130,
        "estimated": 0,
        "encoding": "o200k_base",
        "tool_calls": 2,
        "calls_failed": 1,
        "cpu_ms": 1.5,
        "wall_ms": 20.0,
        "kernel": "python",
        "protocol": "2026-07-28",
    }
    assert [tuple(values) for values in calls] == [(1, "time", "time__now", 4, 5), (2, "time", "time__now", 4, 5)]


async def test_rows_are_on_disk_soon_without_a_flush(path: Path) -> None:
    async with running(SqliteLedger(path)) as ledger:
        ledger.record(row("r1"))
        await until(lambda: ids(path) == ["r1"])


async def test_stop_writes_what_waits(path: Path) -> None:
    async with running(SqliteLedger(path)) as ledger:
        for number in range(1_200):
            ledger.record(row(f"r{number:04}"))
    assert len(ids(path)) == 1_200


async def test_the_same_request_is_kept_once_also_across_a_restart(path: Path) -> None:
    for _ in range(2):
        async with running(SqliteLedger(path)) as ledger:
            ledger.record(row("r1"), [call("r1", 1)])
            ledger.record(row("r1"), [call("r1", 1)])
            ledger.record(row("r2"))
    assert ids(path) == ["r1", "r2"]
    (total,) = summarise(f"sqlite:///{path}")
    assert (total.requests, total.tokens_code) == (2, 60)


async def test_the_file_may_be_shared_with_another_store_and_is_readable_by_its_owner_only(path: Path) -> None:
    async with running(SqliteLedger(path)) as ledger:
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE keys (id TEXT)")
            other.execute("PRAGMA user_version = 42")
        ledger.record(row("r1"))
        assert await ledger.flush()
    assert mode(path) & 0o077 == 0
    async with running(SqliteLedger(path)):
        assert ids(path) == ["r1"]


async def test_a_row_that_cannot_be_stored_does_not_hold_up_the_others(path: Path) -> None:
    lost: list[int] = []
    async with running(SqliteLedger(path, on_dropped=lost.append)) as ledger:
        ledger.record(row("good-1"))
        ledger.record(row("bad", tokens=Tokens(code_call=2**70)))
        ledger.record(row("good-2", tenant="lone \ud800 surrogate"))
        assert await ledger.flush()
        assert ledger.stats().dropped == 1
    assert ids(path) == ["good-1", "good-2"]
    assert lost == [1]


# ---- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.case("METERING-05")
async def test_while_the_file_is_locked_rows_wait_and_requests_do_not(path: Path) -> None:
    async with running(SqliteLedger(path)) as ledger:
        with write_lock(path):
            started = time.perf_counter()
            for number in range(500):
                ledger.record(row(f"r{number}"))
            assert time.perf_counter() - started < 0.2
            await until(lambda: "locked" in ledger.stats().failing)
            assert ledger.stats().waiting == 500
        await until(lambda: ledger.stats().waiting == 0)
        assert (ledger.stats().failing, ledger.stats().dropped) == ("", 0)
    assert len(ids(path)) == 500


@pytest.mark.case("METERING-05")
async def test_the_queue_is_bounded_and_exactly_what_does_not_fit_is_counted_as_lost(path: Path) -> None:
    lost: list[int] = []
    async with running(SqliteLedger(path, on_dropped=lost.append, max_waiting=50)) as ledger:
        with write_lock(path):
            for number in range(80):
                ledger.record(row(f"r{number:02}"), [call(f"r{number:02}", 1)])
            assert ledger.stats().waiting == 100
            assert ledger.stats().dropped == sum(lost) == 60
        assert await ledger.flush()
        assert ledger.stats().dropped == 60
    assert ids(path) == [f"r{number:02}" for number in range(50)]


async def test_a_request_outlives_the_list_of_its_calls(path: Path) -> None:
    async with running(SqliteLedger(path, max_waiting_calls=10)) as ledger:
        ledger.record(row("r1"), [call("r1", seq) for seq in range(1_000)])
        assert await ledger.flush()
        assert (ledger.stats().written, ledger.stats().dropped) == (1, 1_000)
    assert ids(path) == ["r1"]


@pytest.mark.case("METERING-05")
async def test_on_a_full_disk_rows_wait_and_are_written_once_there_is_room(path: Path) -> None:
    async with running(SqliteLedger(path)) as ledger:
        ledger.record(row("before"))
        assert await ledger.flush()
        with full_disk(path):
            for number in range(2_000):
                ledger.record(row(f"r{number}"))
            await until(lambda: ledger.stats().failing != "")
        await until(lambda: ledger.stats().waiting == 0)
        assert ledger.stats().dropped == 0
    assert len(ids(path)) == 2_001


@pytest.mark.case("METERING-05")
async def test_when_the_file_is_removed_a_new_one_is_begun(path: Path) -> None:
    async with running(SqliteLedger(path)) as ledger:
        ledger.record(row("old"))
        assert await ledger.flush()
        for file in path.parent.iterdir():
            file.unlink()
        ledger.record(row("new"))
        assert await ledger.flush()
        assert ids(path) == ["new"]


async def test_stop_gives_up_at_its_deadline_and_counts_what_is_lost(path: Path) -> None:
    ledger = SqliteLedger(path)
    await ledger.start()
    with write_lock(path):
        for number in range(7):
            ledger.record(row(f"r{number}"))
        async with asyncio.timeout(5):
            await ledger.stop(0.2)
            await ledger.stop(0.2)
    assert ledger.stats().dropped == 7
    ledger.record(row("after the end"))
    assert ledger.stats().dropped == 8


# ---- refusals --------------------------------------------------------------------------------------------------------


async def refusal(path: Path) -> str:
    with pytest.raises(LedgerUnavailable) as refused:
        await SqliteLedger(path).start()
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    return refused.value.reason


async def test_a_path_that_cannot_be_used_is_refused_at_start_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is not a database, and long enough to be taken for one" * 20)
    assert await refusal(tmp_path) == "Is a directory"
    assert await refusal(tmp_path / "missing" / "usage.db") == "No such file or directory"
    assert await refusal(tmp_path / "text" / "usage.db") == "Not a directory"
    assert "not a database" in await refusal(tmp_path / "text")


async def test_a_file_that_a_newer_gateway_has_written_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE usage_schema (version INTEGER); INSERT INTO usage_schema VALUES (99)")
    assert "newer gateway" in await refusal(path)


def test_an_unknown_store_is_refused_without_repeating_its_password() -> None:
    with pytest.raises(LedgerUnavailable, match="known: sqlite") as refused:
        open_ledger("oracle://scott:tiger@host/db")
    assert "tiger" not in str(refused.value)


def test_a_relative_path_starts_from_the_given_folder() -> None:
    assert ledger_path("sqlite:///gateway.db", Path("/etc/gateway")) == Path("/etc/gateway/gateway.db")
    assert ledger_path("sqlite:////var/lib/gateway.db", Path("/etc/gateway")) == Path("/var/lib/gateway.db")


# ---- reading ---------------------------------------------------------------------------------------------------------


async def test_tokens_of_today_hold_what_is_written_and_what_still_waits(path: Path) -> None:
    now = NOON
    async with running(SqliteLedger(path, clock=lambda: now)) as ledger:
        ledger.record(row("r1"))
        ledger.record(row("r2", tenant="zoo"))
        ledger.record(row("yesterday", ts=NOON - DAY))
        assert (ledger.tokens_today("acme"), ledger.tokens_today("nobody")) == (30, 0)
    async with running(SqliteLedger(path, clock=lambda: now)) as ledger:
        assert ledger.tokens_today("acme") == 30
        ledger.record(row("r3"))
        assert ledger.tokens_today("acme") == 60
        now += DAY
        assert ledger.tokens_today("acme") == 0
        ledger.record(row("r4", ts=now))
        assert ledger.tokens_today("acme") == 30


@pytest.fixture
async def filled(path: Path) -> str:
    async with running(SqliteLedger(path)) as ledger:
        ledger.record(row("r1"))
        ledger.record(row("r2", ts=NOON + DAY, outcome="TOOL_ERROR"))
        ledger.record(row("r3", tenant="zoo", tokens=Tokens(code_docs=50, estimated=True)))
    return f"sqlite:///{path}"


@pytest.mark.case("METERING-09")
async def test_savings_are_summed_as_they_are_also_when_negative(filled: str) -> None:
    acme, zoo = summarise(filled)
    assert (acme.tenant, acme.requests, acme.errors, acme.tool_calls, acme.calls_failed) == ("acme", 2, 1, 4, 2)
    assert (acme.tokens_code, acme.tokens_direct, acme.saved, acme.hidden) == (60, 260, 200, 260)
    assert (zoo.saved, zoo.estimated_share, acme.estimated_share) == (-50, 1.0, 0.0)
    (total,) = summarise(filled, by=())
    assert (total.tenant, total.day, total.requests, total.saved) == (None, None, 3, 150)


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        (("day",), [(None, "2024-10-04", 2), (None, "2024-10-05", 1)]),
        (("tenant", "day"), [("acme", "2024-10-04", 1), ("acme", "2024-10-05", 1), ("zoo", "2024-10-04", 1)]),
    ],
)
async def test_usage_by_day(filled: str, by: tuple[GroupBy, ...], groups: list[tuple[str | None, str, int]]) -> None:
    assert [(group.tenant, group.day, group.requests) for group in summarise(filled, by=by)] == groups


async def test_usage_of_one_tenant_and_since_a_time(filled: str) -> None:
    assert [group.requests for group in summarise(filled, tenant="acme")] == [2]
    assert [group.requests for group in summarise(filled, since=NOON + 1)] == [1]
    assert summarise(filled, since=NOON + 2 * DAY) == []
    assert summarise(filled, tenant="x' OR '1'='1") == []


async def test_usage_is_read_beside_a_running_gateway(path: Path) -> None:
    async with running(SqliteLedger(path)) as ledger:
        ledger.record(row("r1"))
        assert await ledger.flush()
        assert [group.requests for group in summarise(f"sqlite:///{path}")] == [1]


def test_no_ledger_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="no such file"):
        summarise(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
    with closing(sqlite3.connect(tmp_path / "keys.db")) as connection:
        connection.execute("CREATE TABLE keys (id TEXT)")
    assert summarise(f"sqlite:///{tmp_path}/keys.db") == []
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(LedgerUnavailable, match="not a database"):
        summarise(f"sqlite:///{tmp_path}/text")
