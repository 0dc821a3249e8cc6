"""What a tenant may use over time: requests and tool calls a minute, tokens a day, executions at once.

Not thread-safe, by design: everything here is called on the event loop, and nothing here awaits, so a check and its
booking cannot be torn apart by concurrent requests. A store shared by replicas (leases from Redis) implements
:class:`Quotas` too: it hands out what it has leased, and renews the lease in a task of its own.

The limits come with the :class:`~gateway.tenancy.tenant.Tenant` of each call, so a reload of the config needs no call
here: what was used stays used, under the new limit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from gateway.errors import ErrorClass, GatewayError
from gateway.tenancy.tenant import Tenant

_MINUTE_NS = 60_000_000_000
_DAY_S = 86_400
_SLOT_RETRY_S = 1.0
"""Nobody knows when an execution ends; most take less than this."""


class TokenBucket:
    """A token bucket: holds a full minute's worth at most, refills evenly. Starts full. Exact: integers only.

    Amounts are kept in shares of a token, ``60e9`` to one token, so that each nanosecond adds exactly ``per_minute``.

    Args:
        per_minute: capacity in tokens, and how many come back in a minute; at least 1.
        now_ns: monotonic time, nanoseconds.
    """

    __slots__ = ("_shares", "_updated_ns", "per_minute")

    def __init__(self, per_minute: int, now_ns: int) -> None:
        if per_minute < 1:
            raise ValueError("a bucket needs at least one token a minute")
        self.per_minute = per_minute
        self._shares = per_minute * _MINUTE_NS
        self._updated_ns = now_ns

    def take(self, now_ns: int) -> int:
        """Take one token. Returns 0 when there was one, else the nanoseconds until there will be; nothing is taken."""
        self._refill(now_ns)
        if self._shares >= _MINUTE_NS:
            self._shares -= _MINUTE_NS
            return 0
        return -((self._shares - _MINUTE_NS) // self.per_minute)

    def give_back(self) -> None:
        """Return a token that was taken and not used."""
        self._shares = min(self._shares + _MINUTE_NS, self.per_minute * _MINUTE_NS)

    def resize(self, per_minute: int, now_ns: int) -> None:
        """Go on with another limit; what was used within the last minute stays used."""
        self._refill(now_ns)
        self._shares = max(0, self._shares + (per_minute - self.per_minute) * _MINUTE_NS)
        self.per_minute = per_minute

    def available(self, now_ns: int) -> int:
        """Whole tokens that could be taken now."""
        self._refill(now_ns)
        return self._shares // _MINUTE_NS

    def _refill(self, now_ns: int) -> None:
        elapsed = now_ns - self._updated_ns
        if elapsed > 0:
            self._shares = min(self._shares + elapsed * self.per_minute, self.per_minute * _MINUTE_NS)
            self._updated_ns = now_ns


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a tenant may still use right now, for response headers and the operator.

    Attributes:
        requests: requests that would pass at once.
        tool_calls: tool calls that would pass at once.
        tokens: tokens left today; None: no limit.
        tokens_reset_s: seconds until the next UTC day.
        executions: executions that could start now.
    """

    requests: int
    tool_calls: int
    tokens: int | None
    tokens_reset_s: float
    executions: int


class Quotas(Protocol):
    """Where use is counted. All refusals are GatewayErrors with ``retry_after_s``."""

    def take_request(self, tenant: Tenant) -> None:
        """Book one request. Raises RATE_LIMITED; then nothing is booked."""
        ...

    def take_tool_call(self, tenant: Tenant) -> None:
        """Book one tool call. Raises RATE_LIMITED; then nothing is booked."""
        ...

    def return_tool_call(self, tenant: Tenant) -> None:
        """Give back a booked tool call that failed before it was dispatched."""
        ...

    def check_tokens(self, tenant: Tenant) -> None:
        """Raises QUOTA_EXCEEDED, with the time of reset, when today's tokens are used up."""
        ...

    def add_tokens(self, tenant: Tenant, tokens: int, now: float | None = None) -> None:
        """Book tokens that were spent at ``now`` (seconds since the epoch; None: just now).

        The answer that crosses the limit is still given: what it costs is known only when it is there.
        """
        ...

    def seed_tokens(self, tenant: Tenant, tokens: int) -> None:
        """At start: what the ledger says was spent today before this process began. Adds to what was booked since."""
        ...

    def execution_slot(self, tenant: Tenant) -> AbstractContextManager[None]:
        """Holds one of the tenant's execution slots while entered. Entering raises RATE_LIMITED when all are taken."""
        ...

    def remaining(self, tenant: Tenant) -> Remaining: ...


class MemoryQuotas:
    """Quotas of one process. A restart fills the buckets; the day's tokens are seeded from the ledger.

    Args:
        clock: seconds since the epoch, for the day.
        monotonic_ns: nanoseconds, for the rates.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.time, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._clock = clock
        self._monotonic_ns = monotonic_ns
        # all by tenant name, changed by the methods below only; as many entries as tenants were ever configured
        self._requests: dict[str, TokenBucket] = {}
        self._tool_calls: dict[str, TokenBucket] = {}
        self._executions: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._day = self._today()

    def take_request(self, tenant: Tenant) -> None:
        limit = tenant.limits.requests_per_minute
        _take(self._bucket(self._requests, tenant.name, limit), self._monotonic_ns(), "requests")

    def take_tool_call(self, tenant: Tenant) -> None:
        limit = tenant.limits.tool_calls_per_minute
        _take(self._bucket(self._tool_calls, tenant.name, limit), self._monotonic_ns(), "tool calls")

    def return_tool_call(self, tenant: Tenant) -> None:
        self._bucket(self._tool_calls, tenant.name, tenant.limits.tool_calls_per_minute).give_back()

    def check_tokens(self, tenant: Tenant) -> None:
        limit = tenant.limits.tokens_per_day
        if limit is None:
            return
        self._turn_day()
        if self._tokens[tenant.name] < limit:
            return
        midnight = datetime.fromtimestamp((self._day + 1) * _DAY_S, UTC)
        raise GatewayError(
            ErrorClass.QUOTA_EXCEEDED,
            f"the {limit} tokens of this UTC day are used up; they are renewed at {midnight:%Y-%m-%dT%H:%M:%SZ}",
            retry_after_s=self._reset_s(),
        )

    def add_tokens(self, tenant: Tenant, tokens: int, now: float | None = None) -> None:
        if tokens < 0:
            raise ValueError("tokens cannot be spent backwards")
        self._turn_day()
        # counted after midnight, spent before it: they belong to a day that is over
        if now is None or int(now // _DAY_S) >= self._day:
            self._tokens[tenant.name] += tokens

    def seed_tokens(self, tenant: Tenant, tokens: int) -> None:
        self.add_tokens(tenant, tokens)

    @contextmanager
    def execution_slot(self, tenant: Tenant) -> Iterator[None]:
        limit = tenant.limits.concurrent_executions
        if self._executions[tenant.name] >= limit:
            raise GatewayError(
                ErrorClass.RATE_LIMITED,
                f"all {limit} executions that may run at once are running",
                hint="wait for one of them to end",
                retry_after_s=_SLOT_RETRY_S,
            )
        self._executions[tenant.name] += 1
        try:
            yield
        finally:
            self._executions[tenant.name] -= 1

    def remaining(self, tenant: Tenant) -> Remaining:
        self._turn_day()
        limits = tenant.limits
        now_ns = self._monotonic_ns()
        tokens = limits.tokens_per_day
        return Remaining(
            requests=self._bucket(self._requests, tenant.name, limits.requests_per_minute).available(now_ns),
            tool_calls=self._bucket(self._tool_calls, tenant.name, limits.tool_calls_per_minute).available(now_ns),
            tokens=None if tokens is None else max(0, tokens - self._tokens[tenant.name]),
            tokens_reset_s=self._reset_s(),
            executions=max(0, limits.concurrent_executions - self._executions[tenant.name]),
        )

    def _bucket(self, buckets: dict[str, TokenBucket], name: str, per_minute: int) -> TokenBucket:
        bucket = buckets.get(name)
        if bucket is None:
            bucket = buckets[name] = TokenBucket(per_minute, self._monotonic_ns())
        elif bucket.per_minute != per_minute:
            bucket.resize(per_minute, self._monotonic_ns())
        return bucket

    def _turn_day(self) -> None:
        today = self._today()
        # a clock that is set back over midnight must not give the day's tokens a second time
        if today not in (self._day, self._day - 1):
            self._day = today
            self._tokens.clear()

    def _today(self) -> int:
        return int(self._clock() // _DAY_S)

    def _reset_s(self) -> float:
        return (self._day + 1) * _DAY_S - self._clock()


def _take(bucket: TokenBucket, now_ns: int, what: str) -> None:
    wait_ns = bucket.take(now_ns)
    if wait_ns:
        raise GatewayError(
            ErrorClass.RATE_LIMITED,
            f"the limit of {bucket.per_minute} {what} a minute is reached",
            retry_after_s=wait_ns / 1e9,
        )
