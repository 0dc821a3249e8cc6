"""Many upstreams side by side: none waits for another, none is left behind."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import uvloop

from gateway.config.model import HttpUpstream, StdioUpstream
from gateway.errors import GatewayError
from gateway.upstreams import child as child_module
from gateway.upstreams import federation as federation_module
from gateway.upstreams import stdio as stdio_module
from gateway.upstreams.base import UpstreamFailed
from gateway.upstreams.federation import Federation, Places
from gateway.upstreams.supervisor import Upstream
from tests.companions import eventually, faulty_http, free_port
from tests.upstreams.support import Config, nothing_left, points, running, state_of, stdio


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio_module, "PROBE_S", 0.5)
    monkeypatch.setattr(child_module, "GRACE_S", 0.3)


async def echoes(upstream: Upstream) -> bool:
    result = await upstream.call_tool("echo", b'{"a":1}')
    return bool(json.loads(result.structured) == {"a": 1})


@pytest.mark.case("STARTUP-01")
async def test_those_that_cannot_start_are_named_with_stage_and_reason_and_disturb_nobody() -> None:
    async with faulty_http("--status", "init=500") as broken:
        configs: dict[str, Config] = {
            "good": stdio(),
            "missing": StdioUpstream(command="no-such-server"),
            "dying": stdio("--die-on", "start", "--exit-code", "9"),
            "broken": HttpUpstream(url=broken.url),
            "closed": HttpUpstream(url=f"http://127.0.0.1:{free_port()}/mcp"),
        }
        async with running(configs) as ups, asyncio.timeout(5):
            await asyncio.gather(*(upstream.first_attempt() for upstream in ups.values()))
            stages = {name: (upstream.status.state, upstream.status.stage) for name, upstream in ups.items()}
            assert stages == {
                "good": ("ready", None),
                "missing": ("down", "spawn"),
                "dying": ("down", "exit"),
                "broken": ("down", "http"),
                "closed": ("down", "connect"),
            }
            assert ups["missing"].status.reason == "command 'no-such-server' was not found on PATH"
            assert ups["dying"].status.reason == "it exited with code 9"
            assert "HTTP 500" in ups["broken"].status.reason
            assert ups["closed"].status.reason == "the connection was refused"
            assert await echoes(ups["good"])
            for name in ("missing", "dying", "broken", "closed"):
                with pytest.raises(UpstreamFailed, match=name):
                    await echoes(ups[name])


@pytest.mark.case("STARTUP-02")
async def test_one_whose_list_hangs_delays_nobody_and_is_asked_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configs = {f"plain{n}": stdio() for n in range(4)}
    configs["hanging"] = stdio("--hang", "list", "--log-calls", str(log), list_timeout="1500ms")
    async with running(configs) as ups:
        for n in range(4):
            assert await echoes(ups[f"plain{n}"])
        assert ups["hanging"].status.state == "starting"
        await state_of(ups["hanging"], "down")
        assert "within 1.5 s" in ups["hanging"].status.reason
        assert points(log).count("list") == 1


@pytest.mark.case("STARTUP-03")
async def test_a_slow_one_at_the_front_makes_none_late_and_appears_by_itself() -> None:
    configs = {"slow": stdio("--init-delay", "2")} | {f"fast{n}": stdio() for n in range(4)}
    async with running(configs) as ups:
        async with asyncio.timeout(5):
            assert all([await echoes(ups[f"fast{n}"]) for n in range(4)])
        assert ups["slow"].status.state == "starting"
        await state_of(ups["slow"], "ready", within_s=10)
        assert await echoes(ups["slow"])


@pytest.mark.case("STARTUP-04")
async def test_the_era_of_an_old_server_is_remembered_over_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = stdio("--era", "legacy", "--discover", "silent", "--die-on", "call:1", "--log-calls", str(log))
    async with running({"u": config}) as ups:
        await state_of(ups["u"], "ready")
        with pytest.raises(UpstreamFailed):
            await echoes(ups["u"])
        await eventually(lambda: ups["u"].status.restarts == 1)
        await state_of(ups["u"], "ready")
    assert points(log).count("discover") == 1
    assert points(log).count("init") == 2


@pytest.mark.case("STARTUP-06")
async def test_eras_side_by_side() -> None:
    async with faulty_http("--era", "legacy") as old, faulty_http("--era", "modern") as new:
        configs: dict[str, Config] = {
            "old": HttpUpstream(url=old.url),
            "new": HttpUpstream(url=new.url),
            "old-stdio": stdio("--era", "legacy", "--protocol", "2024-11-05"),
        }
        async with running(configs) as ups:
            assert all([await echoes(upstream) for upstream in ups.values()])
            versions = {name: upstream.status.version for name, upstream in ups.items()}
    assert versions == {"old": "2025-11-25", "new": "2026-07-28", "old-stdio": "2024-11-05"}


async def test_processes_start_a_few_at_a_time_and_one_that_hangs_gives_its_place_away() -> None:
    places = Places(1, hold_s=0.2)
    order: list[str] = []

    async def start(name: str, ends: asyncio.Event) -> None:
        async with places.place():
            order.append(name)
            await ends.wait()

    never, at_once = asyncio.Event(), asyncio.Event()
    at_once.set()
    hanging = asyncio.create_task(start("hanging", never))
    await eventually(lambda: order)
    async with asyncio.timeout(5):
        await start("second", at_once)
        await start("third", at_once)
    never.set()
    await hanging
    async with asyncio.timeout(0.1):  # every place came back exactly once
        await start("fourth", at_once)
    assert order == ["hanging", "second", "third", "fourth"]


async def test_more_upstreams_than_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation_module, "SPAWNS_AT_ONCE", 2)
    async with running({f"u{n}": stdio() for n in range(6)}) as ups:
        assert all([await echoes(upstream) for upstream in ups.values()])


async def test_those_that_are_disabled_are_not_started() -> None:
    async with running({"on": stdio(), "off": stdio(disabled=True)}) as ups:
        assert list(ups) == ["on"]


async def test_every_change_is_told_and_the_last_one_is_the_end() -> None:
    told: list[tuple[str, str]] = []
    configs = {"good": stdio(), "bad": StdioUpstream(command="no-such-server")}
    async with nothing_left():
        async with Federation(configs, Path("/"), lambda u: told.append((u.name, u.status.state))) as federation:
            await federation.started()
        assert {upstream.status.state for upstream in federation.upstreams.values()} == {"stopped"}
        with pytest.raises(GatewayError):
            await echoes(federation.upstreams["good"])
    assert [state for name, state in told if name == "good"] == ["ready", "stopped"]
    states = [state for name, state in told if name == "bad"]
    assert (states[0], states[-1]) == ("down", "stopped")


async def test_leaving_while_everything_is_still_starting_leaves_nothing() -> None:
    configs = {f"u{n}": stdio("--init-delay", "30") for n in range(4)}
    async with running(configs):
        await asyncio.sleep(0)


async def test_whoever_is_told_may_fail_without_harm(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: Upstream) -> None:
        raise RuntimeError("a fault of somebody else")

    async with running({"u": stdio()}, fails) as ups:
        assert await echoes(ups["u"])
    assert "whoever was told of its change has failed" in caplog.text


def test_on_the_event_loop_of_the_server_too() -> None:
    """uvloop differs from asyncio in what it does to pipes of processes that end at once."""

    async def scenario() -> None:
        async with faulty_http("--answers", "sse") as fu:
            configs: dict[str, Config] = {
                "http": HttpUpstream(url=fu.url),
                "stdio": stdio("--die-on", "call:3"),
                "dying": StdioUpstream(command="sh", args=("-c", "exit 7")),
            }
            async with running(configs) as ups:
                await state_of(ups["dying"], "down")
                assert ups["dying"].status.reason == "it exited with code 7"
                for _ in range(2):
                    assert await echoes(ups["http"])
                    assert await echoes(ups["stdio"])
                with pytest.raises(UpstreamFailed, match="outcome is unknown"):
                    await echoes(ups["stdio"])
                assert await echoes(ups["stdio"])

    uvloop.run(scenario())
