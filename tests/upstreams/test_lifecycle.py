"""States and pauses, as a table."""

from __future__ import annotations

import pytest

from gateway.upstreams.base import RpcFailed, UpstreamFailed, UpstreamTimedOut
from gateway.upstreams.lifecycle import TRANSITIONS, Failure, UpstreamStatus, backoff, failure_of, restart_delay


def test_every_state_can_be_left_except_the_last() -> None:
    assert all("stopped" in TRANSITIONS[state] for state in TRANSITIONS if state != "stopped")
    assert not TRANSITIONS["stopped"]


def test_calls_are_sent_while_the_list_is_good_or_stale() -> None:
    usable = {state for state in TRANSITIONS if UpstreamStatus(state, 0.0).usable}

    assert usable == {"ready", "degraded"}


def test_the_pause_doubles_up_to_a_cap_and_is_jittered() -> None:
    assert [backoff(n, lambda: 0.0) for n in (1, 2, 3, 7, 8, 1000)] == [0.5, 1.0, 2.0, 30.0, 30.0, 30.0]
    assert backoff(7, lambda: 0.999) == pytest.approx(22.5, rel=0.01)


@pytest.mark.case("UPSTREAMS-06")
def test_a_server_that_exits_at_once_is_started_fewer_than_twelve_times_a_minute() -> None:
    at, starts = 0.0, 0
    while at < 60:
        starts += 1
        at += restart_delay(starts, False, lambda: 0.999)

    assert starts < 12


def test_the_first_loss_of_a_sound_connection_costs_no_wait_the_next_ones_do() -> None:
    assert restart_delay(1, True, lambda: 0.0) == 0.0
    assert restart_delay(2, True, lambda: 0.0) == 1.0
    assert restart_delay(1, False, lambda: 0.0) == 0.5


def test_failures_in_the_words_of_a_status() -> None:
    assert failure_of(UpstreamFailed("u", "exit", "why", detail="more"), "handshake") == Failure("exit", "why", "more")
    assert failure_of(UpstreamFailed("u", "call", "malformed"), "list").stage == "list"
    assert failure_of(UpstreamTimedOut("u", "tools/list", 5), "list") == Failure(
        "list", "no answer to tools/list within 5 s"
    )
    assert failure_of(RpcFailed("u", -32603, "text of theirs"), "list") == Failure(
        "list", "it answered with error -32603", "text of theirs"
    )
    assert failure_of(UpstreamFailed("u", "http", "HTTP 429", status=429, retry_after_s=3), "list").retry_after_s == 3
