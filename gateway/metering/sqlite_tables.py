"""The tables of the SQLite ledger: how they are made, how rows become values, how they are summed.

The file may be shared with other stores, so that the version of our tables is kept in one of them and not in
``PRAGMA user_version``.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.metering.ledger import GroupBy, LedgerUnavailable
from gateway.metering.parts import FIELDS
from gateway.metering.usage import CallRow, UsageRow, UsageSummary

SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage_schema (version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS usage_requests (
    request_id TEXT PRIMARY KEY, ts REAL NOT NULL, tenant TEXT NOT NULL, key_id TEXT NOT NULL,
    endpoint TEXT NOT NULL, method TEXT NOT NULL, tool TEXT NOT NULL, outcome TEXT NOT NULL, error_class TEXT NOT NULL,
    code_list INTEGER NOT NULL, code_docs_query INTEGER NOT NULL, code_docs INTEGER NOT NULL,
    code_call INTEGER NOT NULL, code_result INTEGER NOT NULL,
    direct_list INTEGER NOT NULL, direct_call INTEGER NOT NULL, direct_result INTEGER NOT NULL,
    tokens_code INTEGER NOT NULL, tokens_direct INTEGER NOT NULL, hidden INTEGER NOT NULL,
    estimated INTEGER NOT NULL, encoding TEXT NOT NULL,
    tool_calls INTEGER NOT NULL, calls_failed INTEGER NOT NULL, cpu_ms REAL NOT NULL, wall_ms REAL NOT NULL,
    kernel TEXT NOT NULL, protocol TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS usage_requests_by_time ON usage_requests (ts, tenant);
CREATE TABLE IF NOT EXISTS usage_calls (
    request_id TEXT NOT NULL, seq INTEGER NOT NULL, upstream TEXT NOT NULL, tool TEXT NOT NULL, outcome TEXT NOT NULL,
    ms REAL NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, estimated INTEGER NOT NULL,
    PRIMARY KEY (request_id, seq)
) WITHOUT ROWID;
INSERT INTO usage_schema SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM usage_schema);
"""
_REQUEST_COLUMNS = 28
# not INSERT OR IGNORE: that would swallow a NOT NULL violation too
_INSERT_REQUEST = (
    f"INSERT INTO usage_requests VALUES ({','.join('?' * _REQUEST_COLUMNS)}) ON CONFLICT (request_id) DO NOTHING"
)
_INSERT_CALL = "INSERT INTO usage_calls VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT (request_id, seq) DO NOTHING"

BAD_VALUE = (
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError),
    *(ValueError, OverflowError),
)
"""The row itself cannot be stored, now or ever. Every other database error may pass."""

Record = tuple[UsageRow, tuple[CallRow, ...]]
"""A request and its calls."""


def connect(path: Path, busy_s: float) -> sqlite3.Connection:
    """Open for writing, and create file and tables where they are missing. May be used from any one thread at a time.

    Args:
        busy_s: how long a statement waits for another writer, seconds.

    Raises:
        OSError, sqlite3.Error: it cannot be opened, or not be written to.
        LedgerUnavailable: a newer gateway has written it.
    """
    _create(path)
    connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _check_version(connection, path)
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def tokens_since(connection: sqlite3.Connection, ts: float) -> dict[str, int]:
    """Tokens really sent since then, by tenant."""
    question = "SELECT tenant, SUM(tokens_code) FROM usage_requests WHERE ts >= ? GROUP BY tenant"
    return dict(connection.execute(question, (ts,)).fetchall())


def insert(connection: sqlite3.Connection, batch: list[Record]) -> None:
    """One transaction: all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany(_INSERT_REQUEST, [_request_values(row) for row, _ in batch])
        connection.executemany(_INSERT_CALL, [_call_values(call) for _, calls in batch for call in calls])
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def summarise_file(path: Path, tenant: str | None, since: float | None, by: tuple[GroupBy, ...]) -> list[UsageSummary]:
    """See :func:`gateway.metering.ledger.summarise`."""
    tenant_column = "tenant" if "tenant" in by else "NULL"
    day_column = "date(ts, 'unixepoch')" if "day" in by else "NULL"
    # the two columns are chosen above, everything that a caller gives is bound
    question = f"""
        SELECT {tenant_column}, {day_column}, COUNT(*), COALESCE(SUM(outcome <> 'ok'), 0), COALESCE(SUM(tool_calls), 0),
            COALESCE(SUM(calls_failed), 0), COALESCE(SUM(tokens_code), 0), COALESCE(SUM(tokens_direct), 0),
            COALESCE(SUM(hidden), 0), COALESCE(SUM(estimated), 0)
        FROM usage_requests WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR ts >= ?2)
        GROUP BY 1, 2 ORDER BY 1, 2
    """
    if not path.is_file():
        raise LedgerUnavailable(str(path), "there is no such file")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0)) as connection:
            if not _check_version(connection, path):
                return []
            return [UsageSummary(*row) for row in connection.execute(question, (tenant, since))]
    except sqlite3.Error as error:
        raise LedgerUnavailable(str(path), reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """A short text without the path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _create(path: Path) -> None:
    """Make the file if it is missing, readable by its owner only: it may hold the digests of keys as well.

    An existing file is not touched: closing any descriptor of it would drop the locks that another connection of this
    process holds on it (POSIX locks belong to the process).
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass


def _check_version(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether our tables exist already.

    Raises:
        LedgerUnavailable: a newer gateway has written them.
    """
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'usage_schema'").fetchone():
        return False
    (version,) = connection.execute("SELECT MAX(version) FROM usage_schema").fetchone()
    if version > SCHEMA_VERSION:
        raise LedgerUnavailable(str(path), f"a newer gateway wrote it (schema {version}, known {SCHEMA_VERSION})")
    return True


def _request_values(row: UsageRow) -> tuple[Any, ...]:
    tokens = row.tokens
    texts = (row.tenant, row.key_id, row.endpoint, row.method, row.tool, row.outcome, row.error_class)
    return (
        row.request_id,
        row.ts,
        *map(_text, texts),
        *(getattr(tokens, field) for field in FIELDS),
        *(tokens.code, tokens.direct, tokens.hidden, tokens.estimated, tokens.encoding),
        *(row.tool_calls, row.calls_failed, row.cpu_ms, row.wall_ms, _text(row.kernel), _text(row.protocol)),
    )


def _call_values(call: CallRow) -> tuple[Any, ...]:
    texts = (call.upstream, call.tool, call.outcome)
    return (call.request_id, call.seq, *map(_text, texts), call.ms, call.tokens_in, call.tokens_out, call.estimated)


def _text(value: str) -> str:
    """A tool's name may hold a lone surrogate, which SQLite cannot store."""
    return value.encode("utf-8", "replace").decode()
