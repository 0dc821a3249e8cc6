"""Where usage is kept: the interface of a store, and how one is opened by its URL.

A new store is one new module with a function ``open_ledger`` and one line in ``_STORES``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast

from gateway.metering.usage import CallRow, UsageRow, UsageSummary

GroupBy = Literal["tenant", "day"]

# scheme of the URL → module
_STORES = {
    "sqlite": "gateway.metering.ledger_sqlite",
}


class LedgerUnavailable(Exception):
    """The ledger cannot be opened. ``str()`` is one line with its path and the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"ledger {path} cannot be used: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """Rows since start: waiting to be written, written, and lost. ``failing`` says why writing stands still, or ""."""

    waiting: int
    written: int
    dropped: int
    failing: str


class Ledger(Protocol):
    """A store of usage rows. Writing is the store's own affair: a request only hands over its rows."""

    async def start(self) -> None:
        """Open, and create what is missing.

        Raises:
            LedgerUnavailable: with the path and the reason.
        """
        ...

    def record(self, row: UsageRow, calls: Iterable[CallRow] = ()) -> None:
        """Hand over a request and its calls. Never blocks, never raises; what does not fit is dropped and counted."""
        ...

    def tokens_today(self, tenant: str) -> int:
        """Tokens really sent for the tenant since the UTC day began, rows that still wait included. Never blocks."""
        ...

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything recorded so far is written; False when that took longer."""
        ...

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Write what waits and close; what is not written in time is dropped and counted. Idempotent."""
        ...

    def stats(self) -> LedgerStats: ...


def open_ledger(url: str, *, base: Path | None = None, on_dropped: Callable[[int], None] | None = None) -> Ledger:
    """The ledger of a URL, not started yet.

    Args:
        url: ``metering.ledger`` of gateway.yaml.
        base: what a relative path starts from; default: the current folder.
        on_dropped: told how many rows were lost. May be called from any thread.

    Raises:
        LedgerUnavailable: no store has this scheme.
    """
    opener = cast("_Opener", _store(url, "open_ledger"))
    return opener(url, base=base, on_dropped=on_dropped)


def summarise(
    url: str,
    *,
    base: Path | None = None,
    tenant: str | None = None,
    since: float | None = None,
    by: Iterable[GroupBy] = ("tenant",),
) -> list[UsageSummary]:
    """Sums of what has been written, read-only and beside a running gateway. Blocks; use a thread inside the gateway.

    Args:
        url: ``metering.ledger`` of gateway.yaml.
        base: what a relative path starts from; default: the current folder.
        tenant: only this one.
        since: unix seconds; only requests that began then or later.
        by: ``tenant``, ``day``, both, or nothing for one total.

    Returns:
        one summary a group, ordered by tenant and day; empty when there is no request.

    Raises:
        LedgerUnavailable: there is no ledger, or it cannot be read.
    """
    summariser = cast("_Summariser", _store(url, "summarise"))
    return summariser(url, base=base, tenant=tenant, since=since, by=tuple(by))


class _Opener(Protocol):
    def __call__(self, url: str, *, base: Path | None, on_dropped: Callable[[int], None] | None) -> Ledger: ...


class _Summariser(Protocol):
    def __call__(
        self, url: str, *, base: Path | None, tenant: str | None, since: float | None, by: tuple[GroupBy, ...]
    ) -> list[UsageSummary]: ...


def _store(url: str, function: str) -> object:
    scheme = url.partition(":")[0]
    module = _STORES.get(scheme)
    if module is None:
        # not the whole URL: it may carry a password
        raise LedgerUnavailable(f"{scheme}:…", f"no such store; known: {', '.join(_STORES)}")
    found: object = getattr(importlib.import_module(module), function)
    return found
