"""A gateway starts, survives the death of its upstreams, and ends: exit code 0, nothing lost, no process left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.companions import eventually, faulty_http
from tests.running import Answer, Running, config, faulty, gateway, serving

STARTS, AT_ONCE = 20, 4
"""As many lanes as keep two cores busy; each start is a whole ``gateway serve``."""


def descendants(pid: int) -> set[int]:
    """All processes below a process."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            children = {int(child) for child in task.read_text().split()} - found
            found |= children
            waiting += children
    return found


def alive(pids: Iterable[int]) -> set[int]:
    """Those that still run; a zombie that nobody has fetched yet does not."""
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            found.add(pid)
    return found


async def test_twenty_starts_and_stops_exit_0_and_leave_no_process(tmp_path: Path) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def start_and_stop(number: int) -> set[int]:
        folder = tmp_path / str(number)
        folder.mkdir()
        async with turns, serving(folder, config({"good": faulty()})) as running:
            await running.wait_for(good="ready")
            assert (await running.run(f"(await good__add(a={number}, b=1))['sum']")).json() == number + 1
            below = descendants(running.process.pid)
            assert below, "the upstream and the sandboxes are processes of their own"
            assert await running.stop() == 0, running.log
            assert not any("Traceback" in line for line in running.log), running.log
        return below

    async with asyncio.TaskGroup() as lanes:
        runs = [lanes.create_task(start_and_stop(number)) for number in range(STARTS)]
    await eventually(lambda: not alive(set().union(*(run.result() for run in runs))))


async def test_a_killed_upstream_fails_its_call_and_comes_back_by_itself(tmp_path: Path) -> None:
    log = tmp_path / "calls.log"
    async with serving(tmp_path, config({"good": faulty("--log-calls", str(log)), "other": faulty()})) as running:
        await running.wait_for(good="ready", other="ready")
        pid = (await running.run("(await good__whoami())['pid']")).json()
        code = "await other__echo(n=1)\nawait good__sleep(ms=60_000)"
        run = asyncio.create_task(running.run(code))
        await eventually(lambda: is_called(log, "sleep"))
        os.kill(pid, signal.SIGKILL)
        assert_outcome_unknown(await run)

        await running.wait_for(good="ready")
        back = (await running.run("(await good__whoami())['pid']")).json()
        assert back != pid
        assert (await running.upstream("good"))["restarts"] == 1
        assert (await running.upstream("other"))["restarts"] == 0
        await eventually(lambda: restarts_are_counted(running), within_s=5, every_s=0.2)


async def restarts_are_counted(running: Running) -> bool:
    return await running.metric("mcp_gateway_upstream_restarts_total", upstream="good") == 1


async def test_a_killed_http_upstream_fails_its_call_and_comes_back_by_itself(tmp_path: Path) -> None:
    async with (
        faulty_http() as upstream,
        serving(tmp_path, config({"good": {"url": upstream.url}, "other": faulty()})) as running,
    ):
        await running.wait_for(good="ready", other="ready")
        code = "await other__echo(n=1)\nawait good__sleep(ms=60_000)"
        run = asyncio.create_task(running.run(code))

        async def sleeping() -> bool:
            return bool((await upstream.control.state())["in_flight"])

        await eventually(sleeping)
        upstream.process.kill()
        assert_outcome_unknown(await run)
        await running.wait_for(good="down")
        async with faulty_http(port=upstream.port):
            await running.wait_for(good="ready")
            assert (await running.run("await good__echo(n=2)")).json() == {"n": 2}


def assert_outcome_unknown(answer: Answer) -> None:
    assert answer.is_error
    first, *rest = answer.text.splitlines()
    assert first.startswith("UPSTREAM_UNAVAILABLE: upstream good failed")
    assert "outcome is unknown" in first
    assert first.endswith("(line 2)")
    assert any("1 completed (last: other__echo), their effects stand" in line for line in rest)


def is_called(log: Path, tool: str) -> bool:
    return log.exists() and any(json.loads(line)["tool"] == tool for line in log.read_text().splitlines())


@pytest.mark.parametrize(
    ("signals", "within_s"),
    [((signal.SIGTERM,), 12), ((signal.SIGINT, signal.SIGINT), 8)],
    ids=["one signal waits for what runs", "two do not"],
)
async def test_a_signal_ends_everything(tmp_path: Path, signals: tuple[signal.Signals, ...], within_s: float) -> None:
    log = tmp_path / "calls.log"
    upstreams = {
        "good": faulty("--log-calls", str(log)),
        "stubborn": faulty("--ignore-sigterm", "--fork-children", "2"),
        "hanging": faulty("--hang", "init"),
    }
    async with serving(tmp_path, config(upstreams)) as running:
        await running.wait_for(good="ready", stubborn="ready")
        script = {"name": "execute_code", "arguments": {"code": "await good__sleep(ms=25_000)"}}
        run = asyncio.create_task(running.rpc("tools/call", script))
        await eventually(lambda: is_called(log, "sleep"))
        below = descendants(running.process.pid)
        assert len(below) >= 5
        for sign in signals:
            running.process.send_signal(sign)
            await asyncio.sleep(0.1)  # two at once would be one
        async with asyncio.timeout(within_s):
            assert await running.process.wait() == 0, running.log
        await eventually(lambda: not alive(below))
        async with asyncio.timeout(1):
            answer = await run
        text = answer["error"]["message"] if "error" in answer else answer["result"]["content"][0]["text"]
        assert "the gateway is shutting down" in text or "the gateway closed the connection" in text
        assert not any("Traceback" in line for line in running.log), running.log
    code, out, err = await gateway("usage", "--format", "json", folder=tmp_path)
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["requests"], row["errors"], row["toolCalls"]) == (1, 1, 1)


async def test_after_a_crash_of_the_gateway_upstreams_end_and_the_next_start_knows_the_keys(tmp_path: Path) -> None:
    content = config({"good": faulty()})
    async with serving(tmp_path, content) as running:
        await running.wait_for(good="ready")
        assert (await running.run("await good__echo(n=1)")).json() == {"n": 1}
        below = descendants(running.process.pid)
        await running.admin_get("/api/usage")  # writes what still waits
        running.process.kill()
        await running.process.wait()
        await eventually(lambda: not alive(below), within_s=10)
        old_key = running.keys["acme"]
    async with serving(tmp_path, content) as running:
        await running.wait_for(good="ready")
        running.keys["acme"] = old_key
        assert (await running.run("await good__echo(n=2)")).json() == {"n": 2}
        (row,) = (await running.admin_get("/api/usage"))["usage"]
        assert row["requests"] == 2
