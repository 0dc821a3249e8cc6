"""Who sends this request? Headers → :class:`Principal`, or :class:`AuthFailed`.

The way of a request does no IO: it finds the key in a snapshot of the store, computes one HMAC and compares. A thread
of our own looks twice a second whether the store has changed, and then replaces the snapshot in one assignment. It is
a thread and not a task, so that a revocation arrives in time also when the event loop is late, and a slow disk never
makes the loop late. When the store cannot be read for :data:`FAIL_CLOSED_AFTER_S`, all keys are refused: a revocation
could have been missed.

Every wrong key gets the same answer from the edge. An unknown key id costs the same work as a wrong secret.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from gateway.tenancy.keys import digest, parse
from gateway.tenancy.store import KeyRecord, KeyStore, KeyStoreUnavailable, Scope

POLL_S = 0.5
"""Seconds between two looks for changes; the promise is that a revocation holds within one second."""
FAIL_CLOSED_AFTER_S = 30.0
LAST_USED_S = 300
"""How coarse "last used" is, seconds: one write a key in this time, however often it is used."""

_START_S = 15.0
_STOP_S = 5.0
_NO_DIGEST = bytes(32)
_BEARER = re.compile(rb"(?i:bearer) +([\x21-\x7e]{1,512})")
_BARE = re.compile(rb"[\x21-\x7e]{1,512}")

log = logging.getLogger(__name__)

AuthReason = Literal[
    "missing",
    "ambiguous",
    "malformed",
    "unknown_key",
    "wrong_secret",
    "expired",
    "revoked",
    "unknown_tenant",
    "unavailable",
]
_STATUS: Mapping[str, int] = MappingProxyType({"ambiguous": 400, "unavailable": 503})


class AuthFailed(Exception):
    """The request is not authenticated. The reason is for logs and counters; the client is told the status only.

    Attributes:
        reason: why.
        key_id: the public id of the key that was shown, "" when it was not even well formed.
        status: the HTTP status to answer with: 400 for more than one credential, 503 while the store is out of reach,
            else 401.
    """

    def __init__(self, reason: AuthReason, key_id: str = "") -> None:
        super().__init__(reason)
        self.reason: AuthReason = reason
        self.key_id = key_id
        self.status = _STATUS.get(reason, 401)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who proved to be whom.

    Attributes:
        tenant: name of the tenant, one of the config's.
        key_id: public id of the key.
        scopes: what the key may do.
    """

    tenant: str
    key_id: str
    scopes: frozenset[Scope]


def credential(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The key in ``Authorization: Bearer …`` or ``X-API-Key``: exactly one of them, once, with exactly one token.

    The scheme may be spelled in any case. Nothing else is a credential: no query parameter, no cookie, no body.

    Raises:
        AuthFailed: ``missing``, ``ambiguous`` or ``malformed``.
    """
    found = [
        (_BEARER if name.lower() == b"authorization" else _BARE, value)
        for name, value in headers
        if name.lower() in (b"authorization", b"x-api-key")
    ]
    if not found:
        raise AuthFailed("missing")
    if len(found) > 1:
        raise AuthFailed("ambiguous")
    pattern, value = found[0]
    match = pattern.fullmatch(value)
    if match is None:
        raise AuthFailed("malformed")
    return match[match.lastindex or 0].decode("ascii")


class Authenticator:
    """Knows the keys of the store and the names of the tenants.

    Args:
        store: where the keys are; read and written by threads of ours only, closed by its owner after :meth:`stop`.
        pepper: what their digests were made with; secret.
        tenants: names that the config knows.
        clock: seconds since the epoch.
    """

    def __init__(
        self, store: KeyStore, pepper: bytes, tenants: Container[str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._pepper = pepper
        self._clock = clock
        # replaced by a reload of the config, on the loop
        self._tenants = tenants
        # replaced by whichever thread holds _refreshing; read by anybody
        self._refreshing = threading.Lock()
        self._records: Mapping[str, KeyRecord] = {}
        self._revision: object = None
        self._checked_at = float("-inf")
        # last uses: noted on the loop, taken away by the watching thread
        self._noted: dict[str, int] = {}
        self._used: deque[tuple[str, int]] = deque()
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    async def start(self) -> None:
        """Read the keys and keep watching for changes.

        Raises:
            KeyStoreUnavailable
        """
        await self.refresh()
        self._stopping.clear()
        # a daemon: a disk that hangs must not keep the process from ending
        self._watcher = threading.Thread(target=self._watch, name="key-watcher", daemon=True)
        self._watcher.start()

    async def stop(self) -> None:
        """End the watching and write down the last uses. Idempotent; takes five seconds at most."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            self._stopping.set()
            await asyncio.to_thread(watcher.join, _STOP_S)

    async def refresh(self) -> None:
        """Look for changes now, for those who have just made one.

        Raises:
            KeyStoreUnavailable
        """
        try:
            async with asyncio.timeout(_START_S):
                await asyncio.to_thread(self._refresh)
        except TimeoutError:
            raise KeyStoreUnavailable("of state.keys", f"does not answer within {_START_S:g} s") from None

    def use_tenants(self, tenants: Container[str]) -> None:
        """After a reload of the config: keys of tenants that are gone are refused from now on."""
        self._tenants = tenants

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal:
        """Who sends a request with these headers.

        Raises:
            AuthFailed
        """
        return self.authenticate_key(credential(headers))

    def authenticate_key(self, text: str) -> Principal:
        """Who holds this key. Takes a few µs and does no IO.

        Raises:
            AuthFailed
        """
        parsed = parse(text)
        if parsed is None:
            raise AuthFailed("malformed")
        if time.monotonic() - self._checked_at > FAIL_CLOSED_AFTER_S:
            raise AuthFailed("unavailable", parsed.key_id)
        record = self._records.get(parsed.key_id)
        # the same work whether the id is known or not
        expected = _NO_DIGEST if record is None else record.digest
        genuine = hmac.compare_digest(digest(self._pepper, text), expected)
        if record is None:
            raise AuthFailed("unknown_key", parsed.key_id)
        if not genuine:
            raise AuthFailed("wrong_secret", parsed.key_id)
        now = self._clock()
        if (reason := self._refusal(record, now)) is not None:
            raise AuthFailed(reason, record.key_id)
        self._note_use(record.key_id, now)
        return Principal(record.tenant, record.key_id, record.scopes)

    def is_live(self, key_id: str) -> bool:
        """Whether a key that was authenticated before still would be: for work that outlives its request's start."""
        record = self._records.get(key_id)
        return record is not None and self._refusal(record, self._clock()) is None

    def _refusal(self, record: KeyRecord, now: float) -> AuthReason | None:
        state = record.state(now)
        if state != "live":
            return state
        return None if record.tenant in self._tenants else "unknown_tenant"

    def _note_use(self, key_id: str, now: float) -> None:
        period = int(now) // LAST_USED_S * LAST_USED_S
        if self._noted.get(key_id) != period:
            self._noted[key_id] = period
            self._used.append((key_id, period))

    # ---- on the watching thread -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        failing = False
        while not self._stopping.wait(POLL_S):
            try:
                self._refresh()
            except KeyStoreUnavailable as error:
                if not failing:
                    log.error("%s; keys are refused in %g s unless it comes back", error, FAIL_CLOSED_AFTER_S)
                failing = True
                continue
            if failing:
                log.info("the key store can be read again")
            failing = False
            self._write_uses()
        self._write_uses()

    def _refresh(self) -> None:
        with self._refreshing:
            started = time.monotonic()
            # the revision first: a change in between is then seen again next time, never missed
            revision = self._store.revision()
            if revision != self._revision:
                self._records = {record.key_id: record for record in self._store.list()}
                self._revision = revision
            self._checked_at = started

    def _write_uses(self) -> None:
        used: dict[str, int] = {}
        while self._used:
            key_id, period = self._used.popleft()
            used[key_id] = period
        if not used:
            return
        try:
            self._store.touch(used)
        except KeyStoreUnavailable:
            # busy, most likely: with the next ones
            self._used.extendleft(used.items())
