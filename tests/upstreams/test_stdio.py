"""The stdio connector against a faulty server."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from gateway.config.model import StdioUpstream
from gateway.upstreams import child as child_module
from gateway.upstreams import stdio as stdio_module
from gateway.upstreams.base import RpcFailed, UpstreamFailed, UpstreamTimedOut
from gateway.upstreams.stdio import StdioConnector
from tests.companions import eventually
from tests.upstreams.support import called, connected, connector_for, logged, nothing_left, points, runs, stdio


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio_module, "PROBE_S", 0.5)
    monkeypatch.setattr(child_module, "GRACE_S", 0.3)


async def failure_to_open(config: StdioUpstream, timeout_s: float = 10) -> UpstreamFailed:
    async with nothing_left():
        connector = connector_for(config)
        try:
            with pytest.raises(UpstreamFailed) as caught:
                await connector.open(timeout_s)
            assert not caught.value.delivered
            return caught.value
        finally:
            await connector.close()


# ------------------------------------------------------------------ the start


@pytest.mark.parametrize(
    ("switch", "version"), [("modern", "2026-07-28"), ("legacy", "2025-11-25"), ("both", "2026-07-28")]
)
async def test_either_era_is_found(switch: str, version: str) -> None:
    async with nothing_left():
        connector = connector_for(stdio("--era", switch))
        info = await connector.open(10)
        assert info.version == version
        assert await called(connector, "echo", a=1) == {"a": 1}
        await connector.close()


@pytest.mark.case("STARTUP-04")
@pytest.mark.parametrize("reaction", ["error:-32601", "error:-32602", "silent", "noisy"])
async def test_an_old_server_is_not_taken_for_dead(reaction: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = stdio("--era", "legacy", "--discover", reaction, "--log-calls", str(log))

    async with connected(config) as connector:
        assert await called(connector, "echo", a=1) == {"a": 1}
    async with connected(config, known_era="legacy") as connector:
        assert await called(connector, "echo", a=2) == {"a": 2}

    assert points(log).count("discover") == 1
    assert points(log).count("init") == 2


async def test_a_late_answer_to_the_probe_counts(tmp_path: Path) -> None:
    """A server that is only slow to start reads both greetings and answers the first one first."""
    log = tmp_path / "log"
    config = stdio("--era", "modern", "--init-delay", "0.6:point=discover", "--log-calls", str(log))
    async with nothing_left():
        connector = connector_for(config)
        info = await connector.open(10)
        assert info.era == "modern"
        assert await called(connector, "echo", a=1) == {"a": 1}
        await connector.close()
    assert {"discover", "init"} <= set(points(log))


async def test_a_server_that_was_upgraded_is_probed_again() -> None:
    async with connected(stdio("--era", "modern"), known_era="legacy") as connector:
        assert await called(connector, "echo", a=1) == {"a": 1}


async def test_a_version_that_nobody_speaks_is_reported() -> None:
    failure = await failure_to_open(stdio("--era", "modern", "--protocol", "2031-01-01"))

    assert (failure.stage, failure.reason) == ("handshake", "it speaks only 2031-01-01")


async def test_a_command_that_does_not_exist() -> None:
    failure = await failure_to_open(StdioUpstream(command="no-such-server"))

    assert (failure.stage, failure.reason) == ("spawn", "command 'no-such-server' was not found on PATH")


async def test_an_exit_at_the_start_comes_with_code_and_stderr_but_without_secrets() -> None:
    script = "echo starting; echo \"cannot log in with $PASS at $HOME\" >&2; printf '\\033[31mbye' >&2; exit 7"
    config = StdioUpstream(command="sh", args=("-c", script), env={"PASS": "hunter2!"})

    failure = await failure_to_open(config)

    assert (failure.stage, failure.reason) == ("exit", "it exited with code 7")
    assert failure.detail.startswith("cannot log in with ••• at /")
    assert failure.detail.endswith("| bye")
    assert "cannot log in" not in str(failure)


async def test_a_server_that_is_killed_says_so() -> None:
    failure = await failure_to_open(StdioUpstream(command="sh", args=("-c", "kill -9 $$")))

    assert (failure.stage, failure.reason) == ("exit", "it was killed by SIGKILL")


async def test_a_server_that_never_answers_ends_with_the_deadline() -> None:
    async with nothing_left():
        connector = connector_for(stdio("--hang", "discover", "--hang", "init"))
        with pytest.raises(UpstreamTimedOut):
            await connector.open(0.8)
        await connector.close()


async def test_only_the_allow_list_and_what_is_declared_reaches_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "canary")
    async with connected(stdio(env={"DECLARED": "yes"})) as connector:
        names = json.dumps(await called(connector, "whoami"))

    assert "DECLARED" in names
    assert '"PATH"' in names
    assert "GATEWAY_ADMIN_TOKEN" not in names


# ------------------------------------------------------------------ calls


async def test_answers_go_to_their_own_calls() -> None:
    async with connected(stdio()) as connector:
        answers = await asyncio.gather(*(called(connector, "echo", n=n) for n in range(100)))

    assert answers == [{"n": n} for n in range(100)]


async def test_an_error_of_the_server_keeps_code_and_data() -> None:
    async with connected(stdio("--error", '-32000:broken:{"hint":"use id"}')) as connector:
        with pytest.raises(RpcFailed, match="broken") as caught:
            await called(connector, "echo")
    assert (caught.value.code, caught.value.data) == (-32000, {"hint": "use id"})


async def test_a_call_beyond_its_deadline_is_cancelled_at_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with connected(stdio("--hang", "call:tool=sleep", "--log-calls", str(log))) as connector:
        with pytest.raises(UpstreamTimedOut, match=r"tools/call within its deadline of 0.2 s; the call may have taken"):
            await called(connector, "sleep", 0.2, ms=1)
        await eventually(lambda: "notifications/cancelled" in [line["method"] for line in logged(log)])
        assert await called(connector, "echo", a=1) == {"a": 1}


async def test_a_cancelled_call_is_cancelled_at_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with connected(stdio("--log-calls", str(log))) as connector:
        call = asyncio.create_task(called(connector, "sleep", 30, ms=20000))
        await eventually(lambda: "call" in points(log))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: "notifications/cancelled" in [line["method"] for line in logged(log)])


@pytest.mark.case("UPSTREAMS-17")
async def test_a_late_answer_is_dropped_and_counted() -> None:
    async with connected(stdio("--reply", "late:0.5:tool=put")) as connector:
        assert isinstance(connector, StdioConnector)
        late = asyncio.create_task(called(connector, "put", 0.1, key="k", value=1))
        answers = await asyncio.gather(*(called(connector, "echo", n=n) for n in range(20)))
        with pytest.raises(UpstreamTimedOut):
            await late
        await eventually(lambda: isinstance(connector, StdioConnector) and connector.noise.stray == 1)
    assert answers == [{"n": n} for n in range(20)]


@pytest.mark.case("UPSTREAMS-15")
@pytest.mark.parametrize("reply", ["dup", "unasked"])
async def test_surplus_answers_reach_nobody(reply: str) -> None:
    async with connected(stdio("--reply", reply)) as connector:
        answers = await asyncio.gather(*(called(connector, "echo", n=n) for n in range(50)))
        assert isinstance(connector, StdioConnector)
        assert connector.noise.stray == 50 if reply == "unasked" else connector.noise.stray >= 49
    assert answers == [{"n": n} for n in range(50)]


@pytest.mark.case("UPSTREAMS-03")
@pytest.mark.parametrize("reply", ["deep:5000", "malformed", "not-rpc"])
async def test_a_reply_that_cannot_be_read_fails_its_call_at_once(reply: str) -> None:
    async with connected(stdio("--reply", f"{reply}:times=1")) as connector:
        async with asyncio.timeout(5):
            with pytest.raises(UpstreamFailed, match="its answer was malformed") as caught:
                await called(connector, "echo", 30)
        assert caught.value.delivered
        assert await called(connector, "echo", a=1) == {"a": 1}


@pytest.mark.case("UPSTREAMS-20")
async def test_ids_that_come_back_in_another_form() -> None:
    async with connected(stdio("--reply-id", "string")) as connector:
        assert await asyncio.gather(*(called(connector, "echo", n=n) for n in range(5))) == [{"n": n} for n in range(5)]
    for form in ("null", "zero"):
        async with connected(stdio("--reply-id", f"{form}:tool=echo")) as connector:
            async with asyncio.timeout(5):
                with pytest.raises(UpstreamFailed, match="malformed"):
                    await called(connector, "echo", 30)
            several = [called(connector, "echo", 0.3, n=n) for n in range(5)]
            outcomes = await asyncio.gather(*several, return_exceptions=True)
            assert all(isinstance(outcome, (UpstreamTimedOut, UpstreamFailed)) for outcome in outcomes)


# ------------------------------------------------------------------ noise and weight


@pytest.mark.case("UPSTREAMS-01")
async def test_noise_on_stdout_is_skipped_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(stdio("--stdout-garbage", "100")) as connector:
        answers = await asyncio.gather(*(called(connector, "echo", n=n) for n in range(20)))
        assert isinstance(connector, StdioConnector)
        await eventually(lambda: isinstance(connector, StdioConnector) and connector.noise.garbage >= 1600)
    assert answers == [{"n": n} for n in range(20)]
    assert len([record for record in caplog.records if record.name == "gateway.upstreams"]) <= 2


async def test_a_server_that_logs_json_while_it_works_is_given_its_time() -> None:
    """Such a line is suspicious only where it was never seen before."""
    async with connected(stdio("--stdout-garbage")) as connector:
        assert await called(connector, "echo", a=1) == {"a": 1}
        assert await called(connector, "sleep", ms=700) is not None


@pytest.mark.case("UPSTREAMS-04")
async def test_stderr_is_always_drained_and_its_end_is_kept() -> None:
    async with connected(stdio("--stderr-flood", "1MiB")) as connector:
        for n in range(10):
            assert await called(connector, "echo", n=n) == {"n": n}
        assert isinstance(connector, StdioConnector)
        assert sum(map(len, connector.stderr_tail())) <= 16 * 1024


@pytest.mark.case("UPSTREAMS-02")
@pytest.mark.parametrize("line", ["40MiB", "endless"])
async def test_an_enormous_line_ends_the_connection_with_a_reason(line: str) -> None:
    async with connected(stdio("--stdout-long-line", line)) as connector:
        with pytest.raises(UpstreamFailed, match="a message is larger than 16 MiB"):
            await called(connector, "echo", 30)
        assert (await connector.wait_closed()).stage == "closed"


@pytest.mark.case("UPSTREAMS-19")
async def test_large_arguments_and_large_answers_do_not_block_each_other() -> None:
    text = "x" * 300_000
    async with connected(stdio("--read-slowly", "4000000")) as connector:
        answers = await asyncio.gather(*(called(connector, "echo", 20, n=n, text=text) for n in range(10)))
    assert [answer["n"] for answer in answers] == list(range(10))


async def test_a_child_that_stops_reading_fails_its_calls_only_and_can_be_ended() -> None:
    text = "x" * 1_000_000
    async with connected(stdio("--read-slowly", "100000")) as connector:
        calls = [called(connector, "echo", 0.5, n=n, text=text) for n in range(10)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} == {UpstreamTimedOut, UpstreamFailed}


# ------------------------------------------------------------------ the end


async def test_the_death_of_the_process_answers_every_call_at_once() -> None:
    async with connected(stdio()) as connector:
        assert isinstance(connector, StdioConnector)
        calls = [asyncio.create_task(called(connector, "sleep", 30, ms=20000)) for _ in range(3)]
        await called(connector, "echo")
        assert connector.pid is not None
        os.kill(connector.pid, 9)
        async with asyncio.timeout(5):
            failures = await asyncio.gather(*calls, return_exceptions=True)
        for failure in failures:
            assert isinstance(failure, UpstreamFailed)
            assert (failure.stage, failure.reason, failure.delivered) == ("exit", "it was killed by SIGKILL", True)
        assert (await connector.wait_closed()).stage == "exit"
        with pytest.raises(UpstreamFailed) as caught:
            await called(connector, "echo")
        assert not caught.value.delivered


@pytest.mark.case("UPSTREAMS-07")
@pytest.mark.parametrize("launcher", ["direct", "shell"])
@pytest.mark.parametrize("end", ["closed", "killed"])
async def test_nothing_that_a_server_has_started_outlives_it(launcher: str, end: str) -> None:
    config = stdio("--fork-children", "2", "--ignore-sigterm", "--own-group")
    if launcher == "shell":
        config = StdioUpstream(command="sh", args=("-c", f"{config.command} {' '.join(config.args)}; true"))

    async with connected(config) as connector:
        assert await called(connector, "echo", a=1) == {"a": 1}
        assert isinstance(connector, StdioConnector)
        leader = psutil.Process(connector.pid)
        family = [leader, *leader.children(recursive=True)]
        assert len(family) == (3 if launcher == "direct" else 4)
        if end == "killed":
            leader.kill()
            await connector.wait_closed()

    assert not [process for process in family if runs(process)]


async def test_closing_is_idempotent_and_survives_a_cancellation() -> None:
    async with nothing_left():
        connector = connector_for(stdio("--ignore-sigterm"))
        await connector.open(10)
        closing = asyncio.create_task(connector.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await connector.close()


@pytest.mark.case("PASS-03")
@pytest.mark.parametrize("question", ["roots", "ping", "made/up"])
async def test_what_a_server_asks_is_answered_at_once(question: str) -> None:
    async with connected(stdio("--era", "legacy", "--ask", question)) as connector:
        assert await called(connector, "echo", 5, a=1) == {"a": 1}


async def test_a_change_of_tools_is_passed_on() -> None:
    changed = asyncio.Event()
    for era in ("legacy", "modern"):
        changed.clear()
        async with (
            connected(stdio("--era", era, "--notify", "list_changed:every=0.1"), on_list_changed=changed.set),
            asyncio.timeout(5),
        ):
            await changed.wait()
