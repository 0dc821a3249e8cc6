"""The example as a visitor meets it: one command, real servers, a key for each tenant, Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest

from tests.companions import eventually
from tests.interop.example import CONFIG, START_S, THREE_SERVERS, make_places, three_servers
from tests.running import GATEWAY, Running

pytestmark = pytest.mark.real

ANY_PORTS = ("--port", "0", "--admin-port", "0")
STOP_S = 20.0
KEYS = "Ctrl-C stops everything"
LAST = "claude mcp add"


@dataclass
class Demo:
    """A running ``gateway demo``.

    Attributes:
        printed: all that it printed so far, stdout and stderr.
        children: the processes it had started by then.
    """

    process: asyncio.subprocess.Process
    printed: str
    children: list[psutil.Process]

    def found(self, pattern: str) -> str:
        """The group of a pattern in what was printed."""
        match = re.search(pattern, self.printed, re.MULTILINE)
        assert match, self.printed
        return match[1]

    @property
    def url(self) -> str:
        return self.found(r"^tenants  (http://\S+)/mcp$")

    @property
    def admin(self) -> str:
        return self.found(r"^admin    (http://\S+)/$")

    def key(self, tenant: str) -> str:
        return self.found(rf"^  {tenant} +(cmg_\S+)$")

    async def interrupt(self) -> int:
        """Ctrl-C as a terminal sends it, to the whole foreground group; the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        async with asyncio.timeout(STOP_S):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def demo(folder: Path, *args: str, until: str = LAST, **env: str) -> AsyncIterator[Demo]:
    """Start it and wait until it has printed some text; by default what to do next, which comes last."""
    log = folder / "demo.log"
    with log.open("w+b") as output:
        process = await asyncio.create_subprocess_exec(
            *GATEWAY,
            "demo",
            *ANY_PORTS,
            *args,
            cwd=folder,
            env={**os.environ, "NO_COLOR": "1", **env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:

        def told() -> str:
            assert process.returncode is None, log.read_text()
            text = log.read_text()
            return text if until in text else ""

        try:
            printed = await eventually(told, within_s=START_S, every_s=0.05)
        except AssertionError:
            pytest.fail(log.read_text())
        yield Demo(process, printed, psutil.Process(process.pid).children(recursive=True))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def visiting(one: Demo, folder: Path) -> AsyncIterator[Running]:
    """A client with the printed addresses and keys."""
    keys = {tenant: one.key(tenant) for tenant in ("acme", "beta")}
    async with httpx2.AsyncClient(timeout=60) as client:
        yield Running(one.process, one.url, one.admin, keys, folder, client)


def gone(children: list[psutil.Process]) -> Callable[[], bool]:
    return lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


async def test_one_command_serves_the_example_and_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    places = make_places(tmp_path)
    (tmp_path / "gateway.yaml").write_bytes(CONFIG.read_bytes())
    async with demo(tmp_path, "--config", "gateway.yaml", **places.environment) as one:
        async with visiting(one, tmp_path) as running:
            rows = (await running.admin_get("/api/upstreams"))["upstreams"]
            assert {row["name"]: row["state"] for row in rows} == dict.fromkeys(
                ("everything", "files", "git", "memory", "thinking", "time"), "ready"
            )
            assert (await running.run(three_servers(places))).json() == THREE_SERVERS
            assert (await running.run("1 + 1", tenant="beta")).json() == 2
        assert one.key("acme") != one.key("beta")
        assert len(one.children) >= 6
        assert await one.interrupt() == 0
        await eventually(gone(one.children))
    kept = tmp_path / ".gateway" / "demo-keys.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


async def test_a_second_start_keeps_the_keys_and_can_be_interrupted_while_servers_start(tmp_path: Path) -> None:
    keys = []
    for _ in range(2):
        async with demo(tmp_path, until=KEYS) as one:
            keys.append((one.key("acme"), one.key("beta")))
            await eventually(lambda: psutil.Process(one.process.pid).children())
            children = psutil.Process(one.process.pid).children(recursive=True)
            assert await one.interrupt() == 0
            await eventually(gone(children))
    assert keys[0] == keys[1]


async def test_what_it_prints_is_for_people(tmp_path: Path) -> None:
    """Without a config it serves the bundled example, from any folder; no line is a log record or longer than 100."""
    async with demo(tmp_path) as one:
        async with visiting(one, tmp_path) as running:
            listed = await running.run("await files__list_allowed_directories()")
            assert str(tmp_path / ".gateway" / "files") in listed.text
            tokens = {
                row["name"]: row["toolsListTokens"] for row in (await running.admin_get("/api/tenants"))["tenants"]
            }
        assert await one.interrupt() == 0
    for line in one.printed.splitlines():
        assert len(line) <= 100, line
        assert not line.startswith("{"), line
    for figures in tokens.values():
        assert 0 < figures["code"] < figures["direct"] / 5
        assert f"{figures['direct']:,} tokens" in one.printed
    for name in ("everything", "files", "git", "memory", "thinking", "time"):
        assert re.search(rf"^ {name} +ready +\d+ ", one.printed, re.MULTILINE), one.printed
    assert one.printed.count(one.key("acme")) == 3  # the key, to try it, to connect an agent
    assert json.loads((tmp_path / ".gateway" / "demo-keys.json").read_text())["acme"] == one.key("acme")
