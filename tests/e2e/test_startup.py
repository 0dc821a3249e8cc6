"""Starting: every upstream on its own account, and what tenants and operators see meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.companions import eventually, faulty_http, free_port
from tests.running import Running, config, faulty, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

OLD = {
    "old-32601": "error:-32601",
    "old-32602": "error:-32602",
    "old-silent": "silent",
    "old-noisy": "noisy",
}
"""Servers of the legacy era, by how they react to a question that they do not know."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mixed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A good upstream, four that cannot start, each for another reason, and four old ones."""
    folder = tmp_path_factory.mktemp("startup")
    async with faulty_http("--status", "init=500") as broken:
        upstreams: dict[str, Any] = {
            "missing": {"command": "no-such-command-anywhere"},
            "dying": faulty("--die-on", "start", "--exit-code", "3"),
            "broken": {"url": broken.url},
            "closed": {"url": f"http://127.0.0.1:{free_port()}/mcp"},
            **{
                name: faulty("--era", "legacy", "--discover", how, "--log-calls", str(folder / f"{name}.log"))
                for name, how in OLD.items()
            },
            "good": faulty(),
        }
        async with serving(folder, config(upstreams)) as running:
            yield running


DOWN = {
    "missing": ("spawn", "no-such-command-anywhere"),
    "dying": ("exit", "3"),
    "broken": ("http", "500"),
    "closed": ("connect", "refused"),
}
"""Upstream → the stage at which it failed, and a word of the reason."""


@pytest.mark.case("STARTUP-01")
async def test_upstreams_that_cannot_start_leave_the_good_one_alone(mixed: Running) -> None:
    async with asyncio.timeout(5):
        await mixed.wait_for(good="ready")
    assert (await mixed.run("await good__echo(text='here')")).json() == {"text": "here"}
    for path in ("/livez", "/readyz"):
        assert (await mixed.client.get(mixed.admin + path)).status_code == 200
    await mixed.wait_for(**dict.fromkeys(DOWN, "down"))

    answer = await mixed.search("echo")
    assert "good__echo" in answer
    for name in DOWN:
        assert f"server {name} is down" in answer
    for name, (stage, word) in DOWN.items():
        row = await mixed.upstream(name)
        assert row["stage"] == stage
        assert word in row["reason"]
        assert "\n" not in row["reason"]
    assert (await mixed.upstream("good"))["stage"] == ""
    await eventually(lambda: gauges_hold(mixed), within_s=5, every_s=0.2)


async def gauges_hold(running: Running) -> bool:
    shown = {name: await running.metric("mcp_gateway_upstream_up", upstream=name) for name in ("good", *DOWN)}
    return shown == {"good": 1, **dict.fromkeys(DOWN, 0)}


@pytest.mark.case("STARTUP-01")
async def test_the_summary_names_stage_and_reason_of_each(mixed: Running) -> None:
    await eventually(lambda: any(line.startswith("ready: ") for line in mixed.log), within_s=20)
    summary = mixed.log[next(n for n, line in enumerate(mixed.log) if "UPSTREAM" in line and "REASON" in line) :]
    for name, (stage, word) in DOWN.items():
        (line,) = [line for line in summary if line.split()[:2] == [name, "down"]]
        assert f"{stage}: " in line
        assert word in line
    (line,) = [line for line in summary if line.split()[:1] == ["good"]]
    assert line.split()[1] == "ready"
    assert not any("Traceback" in line for line in mixed.log)


@pytest.mark.case("STARTUP-04")
async def test_old_servers_become_ready_by_the_handshake_and_the_verdict_is_kept(mixed: Running) -> None:
    await mixed.wait_for(**dict.fromkeys(OLD, "ready"))
    for name in OLD:
        row = await mixed.upstream(name)
        assert row["era"] == "legacy"
        assert row["connectMs"] < 10_000, "after the deadline of the probe, not of a call"
        identifier = name.replace("-", "_") + "__echo"
        assert (await mixed.run(f"await {identifier}(text='old')")).json() == {"text": "old"}
    # lost and connected again: nobody asks again what it is
    for name in OLD:
        pid = (await mixed.run(f"(await call_tool('{name}__whoami', {{}}))['pid']")).json()
        os.kill(pid, signal.SIGKILL)
    await eventually(lambda: all_restarted(mixed), within_s=10)
    await mixed.wait_for(**dict.fromkeys(OLD, "ready"))
    for name in OLD:
        asked = [json.loads(line)["method"] for line in (mixed.folder / f"{name}.log").read_text().splitlines()]
        assert asked.count("server/discover") == 1, asked
        assert asked.count("initialize") == 2, asked


async def all_restarted(running: Running) -> bool:
    return all([(await running.upstream(name))["restarts"] == 1 for name in OLD])


@pytest.mark.case("STARTUP-02")
@pytest.mark.case("STARTUP-03")
async def test_one_that_hangs_and_one_that_is_slow_delay_nobody(tmp_path: Path) -> None:
    log = tmp_path / "hanging.log"
    quick = ("a", "b", "c", "d")
    upstreams = {
        "slow": faulty("--init-delay", "4"),
        "hanging": faulty("--hang", "list", "--log-calls", str(log), listTimeout="2s"),
        **{name: faulty() for name in quick},
    }
    async with serving(tmp_path, config(upstreams)) as running:
        began = time.monotonic()

        async def answers_from_the_quick_ones() -> str:
            """Every answer comes at once, whatever it can say already."""
            asked = time.monotonic()
            answer = await running.search("echo")
            assert time.monotonic() - asked < 1
            return answer if all(f"{name}__echo" in answer for name in quick) else ""

        answer = await eventually(answers_from_the_quick_ones, within_s=3.5)
        assert "server slow is starting" in answer
        assert "server hanging is starting" in answer
        assert (await running.run("await a__echo(text='quick')")).json() == {"text": "quick"}
        assert time.monotonic() - began < 4
        assert handshakes(log) == 1

        await running.wait_for(hanging="down")
        (line,) = [line for line in (await running.search("echo")).splitlines() if "server hanging is down" in line]
        assert line.endswith(": no answer to tools/list within 2 s")
        # no client has made it shake hands once more: only its own next attempts do
        await asyncio.gather(*(running.search("echo") for _ in range(20)))
        assert handshakes(log) <= (await running.upstream("hanging"))["restarts"] + 1

        await running.wait_for(slow="ready")
        assert (await running.run("await slow__echo(text='late')")).json() == {"text": "late"}


def handshakes(log: Path) -> int:
    methods = [json.loads(line)["method"] for line in log.read_text().splitlines()]
    return methods.count("server/discover") + methods.count("initialize")
