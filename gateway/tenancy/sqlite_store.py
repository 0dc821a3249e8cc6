"""API keys in an SQLite file (WAL): ``gateway keys`` writes while ``gateway serve`` reads, no server needed.

The file may hold other tables too, so the revision of the keys is a row of our own, kept by triggers: writes of
others do not look like a change of keys, and a key that an operator deletes by hand does.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gateway.tenancy.store import KeyRecord, KeyRefused, KeyStoreUnavailable, Scope

_FORMAT = 1
_BUSY_MS = 5_000
_TOUCH_BUSY_MS = 50
"""Noting a last use must not hold up the next look for revocations."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS key_store (name TEXT PRIMARY KEY, value NOT NULL);
INSERT OR IGNORE INTO key_store VALUES ('format', 1), ('revision', 0);
CREATE TABLE IF NOT EXISTS api_keys (
    key_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL,
    revoked REAL,
    scopes TEXT NOT NULL,
    last_used REAL,
    digest BLOB NOT NULL
);
CREATE TRIGGER IF NOT EXISTS api_keys_added AFTER INSERT ON api_keys
    BEGIN UPDATE key_store SET value = value + 1 WHERE name = 'revision'; END;
CREATE TRIGGER IF NOT EXISTS api_keys_removed AFTER DELETE ON api_keys
    BEGIN UPDATE key_store SET value = value + 1 WHERE name = 'revision'; END;
CREATE TRIGGER IF NOT EXISTS api_keys_changed
    AFTER UPDATE OF key_id, tenant, name, expires, revoked, scopes, digest ON api_keys
    BEGIN UPDATE key_store SET value = value + 1 WHERE name = 'revision'; END;
"""
_COLUMNS = "key_id, tenant, name, created, expires, revoked, scopes, last_used, digest"
_LIVE = "revoked IS NULL AND (expires IS NULL OR expires > :now)"


class SqliteKeyStore:
    """A :class:`gateway.tenancy.store.KeyStore` in one file. Safe to use from several threads and processes.

    Args:
        path: the file; made with mode 0600 when it does not exist. Its folder must exist.

    Raises:
        KeyStoreUnavailable: it cannot be read and written, is no database, or was written by a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # one connection; whoever holds the lock may use it
        self._lock = threading.Lock()
        self._closed = False
        self._connection, self._identity = self._open()

    def revision(self) -> object:
        with self._session() as connection:
            return connection.execute("SELECT value FROM key_store WHERE name = 'revision'").fetchone()

    def list(self, tenant: str | None = None) -> tuple[KeyRecord, ...]:
        with self._session() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM api_keys WHERE :tenant IS NULL OR tenant = :tenant ORDER BY created, key_id",
                {"tenant": tenant},
            )
            return tuple(map(_record, rows))

    def get(self, key_id: str) -> KeyRecord | None:
        with self._session() as connection:
            return _find(connection, key_id)

    def create(self, record: KeyRecord) -> None:
        with self._session() as connection:
            _insert(connection, record)

    def revoke(self, key_id: str, now: float) -> KeyRecord:
        with self._session() as connection, _transaction(connection):
            connection.execute("UPDATE api_keys SET revoked = ? WHERE key_id = ? AND revoked IS NULL", (now, key_id))
            record = _find(connection, key_id)
            if record is None:
                raise KeyRefused(f"there is no key {key_id!r}")
            return record

    def rotate(self, key_id: str, expires: float, successor: KeyRecord) -> None:
        with self._session() as connection, _transaction(connection):
            changed = connection.execute(
                "UPDATE api_keys SET expires = min(coalesce(expires, :expires), :expires) "
                f"WHERE key_id = :key_id AND {_LIVE}",
                {"expires": expires, "key_id": key_id, "now": successor.created},
            )
            if changed.rowcount != 1:
                raise KeyRefused(f"there is no live key {key_id!r}")
            _insert(connection, successor)

    def touch(self, used: Mapping[str, float]) -> None:
        with self._session() as connection:
            connection.execute(f"PRAGMA busy_timeout = {_TOUCH_BUSY_MS}")
            try:
                with _transaction(connection):
                    connection.executemany(
                        "UPDATE api_keys SET last_used = max(coalesce(last_used, 0), ?) WHERE key_id = ?",
                        [(when, key_id) for key_id, when in used.items()],
                    )
            finally:
                connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")

    def confirm_pepper(self, fingerprint: bytes, now: float) -> bool:
        with self._session() as connection, _transaction(connection):
            row = connection.execute("SELECT value FROM key_store WHERE name = 'pepper'").fetchone()
            if row is not None and row[0] == fingerprint:
                return True
            if (
                row is not None
                and connection.execute(f"SELECT 1 FROM api_keys WHERE {_LIVE} LIMIT 1", {"now": now}).fetchone()
            ):
                return False
            connection.execute("INSERT OR REPLACE INTO key_store VALUES ('pepper', ?)", (fingerprint,))
            return True

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._connection.close()

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time; SQLite's errors become ours."""
        with self._lock, self._errors():
            if self._closed:
                raise KeyStoreUnavailable(str(self.path), "is closed")
            # We would go on reading the old file and never see a revocation. Opening the new one is no way out:
            # SQLite would apply the old file's write-ahead log to it.
            if _identity(self.path) != self._identity:
                raise KeyStoreUnavailable(str(self.path), "was replaced while it was in use; restart the gateway")
            yield self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise KeyStoreUnavailable(str(self.path), str(error).partition("\n")[0]) from error
        except FileNotFoundError:
            raise KeyStoreUnavailable(str(self.path), "the file or its folder does not exist") from None
        except OSError as error:
            raise KeyStoreUnavailable(str(self.path), error.strerror or str(error)) from error

    def _open(self) -> tuple[sqlite3.Connection, tuple[int, int]]:
        with self._errors():
            with suppress(FileExistsError):
                # before SQLite does: it would follow the umask, and the side files take over the mode of this one
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            if not self.path.is_file():
                raise KeyStoreUnavailable(str(self.path), "is not a file")
            identity = _identity(self.path)
            connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1_000
            )
            try:
                _prepare(connection, self.path)
            except BaseException:
                connection.close()
                raise
            return connection, identity


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    _use_wal(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    # a transaction that writes: a file that can only be read is found out now, not at the first revocation
    with _transaction(connection):
        for statement in _statements(_SCHEMA):
            connection.execute(statement)
        (found,) = connection.execute("SELECT value FROM key_store WHERE name = 'format'").fetchone()
        if found != _FORMAT:
            raise KeyStoreUnavailable(str(path), f"has format {found}, this version reads format {_FORMAT}")
        connection.execute("UPDATE key_store SET value = value WHERE name = 'format'")


def _use_wal(connection: sqlite3.Connection) -> None:
    """The change to WAL needs the file alone for a moment, and SQLite does not wait for it by itself."""
    deadline = time.monotonic() + _BUSY_MS / 1_000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _statements(script: str) -> Iterator[str]:
    # executescript() would commit the transaction it finds
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _find(connection: sqlite3.Connection, key_id: str) -> KeyRecord | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM api_keys WHERE key_id = ?", (key_id,)).fetchone()
    return None if row is None else _record(row)


def _insert(connection: sqlite3.Connection, record: KeyRecord) -> None:
    connection.execute(
        f"INSERT INTO api_keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.key_id,
            record.tenant,
            record.name,
            record.created,
            record.expires,
            record.revoked,
            " ".join(sorted(record.scopes)),
            record.last_used,
            record.digest,
        ),
    )


def _record(row: tuple[Any, ...]) -> KeyRecord:
    key_id, tenant, name, created, expires, revoked, scopes, last_used, digest = row
    # a scope of a newer version grants nothing here
    known = frozenset(Scope(name) for name in scopes.split() if name in set(Scope))
    return KeyRecord(key_id, tenant, name, created, expires, revoked, known, last_used, digest)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
