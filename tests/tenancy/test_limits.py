"""Rates, the daily quota and execution slots."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ErrorClass, GatewayError
from gateway.tenancy.limits import MemoryQuotas, TokenBucket
from gateway.tenancy.tenant import Tenant, Tenants

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
NOON = 1_800_014_400.0  # 2027-01-15T12:00:00Z


@dataclass
class Time:
    """Both clocks, moved by hand."""

    wall: float = NOON
    monotonic: int = 5 * MINUTE

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += round(seconds * SECOND)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def quotas(time: Time) -> MemoryQuotas:
    return MemoryQuotas(clock=lambda: time.wall, monotonic_ns=lambda: time.monotonic)


@pytest.fixture
def acme(tenants: Tenants) -> Tenant:
    return tenants["acme"]


# ---- the bucket -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.integers(0, 10**18))
def test_a_full_bucket_gives_exactly_its_capacity(per_minute: int, now: int) -> None:
    bucket = TokenBucket(per_minute, now)
    assert sum(bucket.take(now) == 0 for _ in range(per_minute + 5)) == per_minute


@given(st.integers(1, 1_000_000), st.lists(st.integers(0, MINUTE), max_size=60))
def test_no_window_passes_more_than_the_capacity_and_what_came_back(per_minute: int, gaps: list[int]) -> None:
    bucket = TokenBucket(per_minute, 0)
    now, passed = 0, []
    for gap in gaps:
        now += gap
        if bucket.take(now) == 0:
            passed.append(now)
    for first, start in enumerate(passed):
        for last, end in enumerate(passed[first:], first):
            assert (last - first + 1) * MINUTE <= per_minute * MINUTE + (end - start) * per_minute


@given(st.integers(1, 1_000_000), st.lists(st.integers(0, 10 * SECOND), min_size=1, max_size=40))
def test_the_wait_is_exact_a_nanosecond_less_is_too_early(per_minute: int, gaps: list[int]) -> None:
    bucket = TokenBucket(per_minute, 0)
    for _ in range(per_minute if per_minute < 100 else 0):
        bucket.take(0)
    now = 0
    for gap in gaps:
        now += gap
        wait = bucket.take(now)
        if wait:
            assert bucket.take(now + wait - 1) > 0
            now += wait
            assert bucket.take(now) == 0


@given(st.integers(1, 1_000), st.lists(st.integers(-MINUTE, MINUTE), max_size=50))
def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing(per_minute: int, steps: list[int]) -> None:
    bucket = TokenBucket(per_minute, 0)
    now, highest, passed = 0, 0, 0
    for step in steps:
        now += step
        highest = max(highest, now)
        passed += bucket.take(now) == 0
        assert 0 <= bucket.available(now) <= per_minute
    assert passed * MINUTE <= per_minute * MINUTE + highest * per_minute


def test_refusals_cost_nothing() -> None:
    bucket = TokenBucket(1, 0)
    assert bucket.take(0) == 0
    for _ in range(1_000):
        assert bucket.take(MINUTE - 1) == 1
    assert bucket.take(MINUTE) == 0


def test_what_is_given_back_can_be_taken_again_but_never_more_than_the_capacity() -> None:
    bucket = TokenBucket(2, 0)
    bucket.take(0)
    bucket.take(0)
    bucket.give_back()
    assert bucket.take(0) == 0
    assert bucket.take(0) > 0
    for _ in range(5):
        bucket.give_back()
    assert bucket.available(0) == 2


def test_another_limit_keeps_what_was_used() -> None:
    bucket = TokenBucket(10, 0)
    for _ in range(6):
        bucket.take(0)
    bucket.resize(20, 0)
    assert bucket.available(0) == 14
    bucket.resize(5, 0)
    assert bucket.available(0) == 0
    assert bucket.available(MINUTE) == 5


def test_a_bucket_without_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        TokenBucket(0, 0)


# ---- rates of a tenant ----------------------------------------------------------------------------------------------


@pytest.mark.case("METERING-04")
async def test_of_500_requests_of_64_clients_exactly_the_allowed_50_pass(quotas: MemoryQuotas, acme: Tenant) -> None:
    todo = iter(range(500))
    outcomes: list[GatewayError | None] = []

    async def client() -> None:
        for _ in todo:
            await asyncio.sleep(0)
            try:
                quotas.take_request(acme)
            except GatewayError as refused:
                outcomes.append(refused)
            else:
                outcomes.append(None)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as clients:
        for _ in range(64):
            clients.create_task(client())
    assert len(outcomes) == 500
    assert outcomes.count(None) == 50
    for refusal in filter(None, outcomes):
        assert refusal.error_class == ErrorClass.RATE_LIMITED
        assert refusal.retry_after_s == pytest.approx(60 / 50)


@pytest.mark.case("METERING-04")
async def test_of_300_parallel_tool_calls_exactly_the_allowed_100_pass(quotas: MemoryQuotas, acme: Tenant) -> None:
    async def call() -> bool:
        await asyncio.sleep(0)
        try:
            quotas.take_tool_call(acme)
        except GatewayError:
            return False
        return True

    assert sum(await asyncio.gather(*(call() for _ in range(300)))) == 100


@pytest.mark.case("METERING-04")
def test_a_call_that_failed_before_dispatch_is_not_lost(quotas: MemoryQuotas, acme: Tenant) -> None:
    for _ in range(100):
        quotas.take_tool_call(acme)
    quotas.return_tool_call(acme)
    quotas.take_tool_call(acme)
    with pytest.raises(GatewayError, match="the limit of 100 tool calls a minute is reached"):
        quotas.take_tool_call(acme)


def test_after_the_time_to_retry_one_more_passes(quotas: MemoryQuotas, acme: Tenant, time: Time) -> None:
    for _ in range(50):
        quotas.take_request(acme)
    with pytest.raises(GatewayError) as refused:
        quotas.take_request(acme)
    assert refused.value.retry_after_s is not None
    time.pass_(refused.value.retry_after_s)
    quotas.take_request(acme)
    with pytest.raises(GatewayError):
        quotas.take_request(acme)


def test_one_tenant_never_uses_up_anothers_limits(quotas: MemoryQuotas, tenants: Tenants) -> None:
    for _ in range(50):
        quotas.take_request(tenants["acme"])
    assert quotas.remaining(tenants["globex"]).requests == 600
    quotas.take_request(tenants["globex"])


def test_a_reload_with_another_limit_keeps_what_was_used(quotas: MemoryQuotas, acme: Tenant) -> None:
    for _ in range(50):
        quotas.take_request(acme)
    raised = replace(acme, limits=acme.limits.model_copy(update={"requests_per_minute": 60}))
    assert quotas.remaining(raised).requests == 10
    assert quotas.remaining(acme).requests == 0


# ---- tokens of a day ------------------------------------------------------------------------------------------------


def test_the_daily_quota_refuses_once_it_is_used_up_and_says_until_when(quotas: MemoryQuotas, acme: Tenant) -> None:
    quotas.add_tokens(acme, 999)
    quotas.check_tokens(acme)
    quotas.add_tokens(acme, 1)
    with pytest.raises(GatewayError) as refused:
        quotas.check_tokens(acme)
    assert refused.value.error_class == ErrorClass.QUOTA_EXCEEDED
    assert "2027-01-16T00:00:00Z" in refused.value.message
    assert refused.value.retry_after_s == 12 * 3_600


def test_the_quota_is_renewed_at_utc_midnight(quotas: MemoryQuotas, acme: Tenant, time: Time) -> None:
    quotas.add_tokens(acme, 5_000)
    time.pass_(12 * 3_600 - 1)
    with pytest.raises(GatewayError):
        quotas.check_tokens(acme)
    time.pass_(1)
    quotas.check_tokens(acme)
    assert quotas.remaining(acme).tokens == 1_000


def test_what_was_spent_before_a_restart_is_seeded(quotas: MemoryQuotas, acme: Tenant) -> None:
    quotas.add_tokens(acme, 100)
    quotas.seed_tokens(acme, 850)
    assert quotas.remaining(acme).tokens == 50


def test_tokens_counted_after_midnight_belong_to_the_day_they_were_spent(
    quotas: MemoryQuotas, acme: Tenant, time: Time
) -> None:
    spent = time.wall
    time.pass_(12 * 3_600 + 5)
    quotas.add_tokens(acme, 700, now=spent)
    quotas.add_tokens(acme, 30, now=time.wall)
    assert quotas.remaining(acme).tokens == 970


def test_a_clock_set_back_over_midnight_does_not_renew_the_quota(
    quotas: MemoryQuotas, acme: Tenant, time: Time
) -> None:
    time.pass_(12 * 3_600 + 1)
    quotas.add_tokens(acme, 1_000)
    time.wall -= 2
    with pytest.raises(GatewayError):
        quotas.check_tokens(acme)
    time.wall += 2
    with pytest.raises(GatewayError):
        quotas.check_tokens(acme)


def test_without_a_quota_nothing_is_refused(quotas: MemoryQuotas, tenants: Tenants) -> None:
    quotas.add_tokens(tenants["globex"], 10**12)
    quotas.check_tokens(tenants["globex"])
    assert quotas.remaining(tenants["globex"]).tokens is None


def test_tokens_cannot_be_spent_backwards(quotas: MemoryQuotas, acme: Tenant) -> None:
    with pytest.raises(ValueError, match="backwards"):
        quotas.add_tokens(acme, -1)


# ---- execution slots ------------------------------------------------------------------------------------------------


def test_as_many_executions_as_there_are_slots(quotas: MemoryQuotas, tenants: Tenants, acme: Tenant) -> None:
    with quotas.execution_slot(acme), quotas.execution_slot(acme):
        assert quotas.remaining(acme).executions == 0
        with pytest.raises(GatewayError) as refused, quotas.execution_slot(acme):
            pytest.fail("a third execution was let in")
        assert refused.value.error_class == ErrorClass.RATE_LIMITED
        assert refused.value.retry_after_s
        with quotas.execution_slot(tenants["globex"]):
            pass
    assert quotas.remaining(acme).executions == 2


async def test_a_slot_is_freed_however_the_execution_ends(quotas: MemoryQuotas, acme: Tenant) -> None:
    entered = asyncio.Event()

    async def run(fails: bool) -> None:
        with quotas.execution_slot(acme):
            if fails:
                raise RuntimeError("kernel died")
            entered.set()
            await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="kernel died"):
        await run(fails=True)
    task = asyncio.create_task(run(fails=False))
    await entered.wait()
    assert quotas.remaining(acme).executions == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert quotas.remaining(acme).executions == 2


def test_fewer_slots_after_a_reload_let_the_running_ones_end(quotas: MemoryQuotas, acme: Tenant) -> None:
    fewer = replace(acme, limits=acme.limits.model_copy(update={"concurrent_executions": 1}))
    with quotas.execution_slot(acme), quotas.execution_slot(acme):
        assert quotas.remaining(fewer).executions == 0
    with quotas.execution_slot(fewer):
        pass
