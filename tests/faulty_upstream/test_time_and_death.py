"""Slow, silent, dying, and what it leaves behind."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.companions import Control, eventually, faulty_command, faulty_http, free_port
from tests.faulty_upstream.conversation import call, exchange, legacy, modern, state_with, stdio


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def took_s(awaited: object) -> float:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await awaited  # type: ignore[misc]
    return loop.time() - begun


async def test_delays() -> None:
    async with stdio("--init-delay", "0.2", "--list-delay", "0.2:times=1", "--call-delay", "0.2:tool=add") as fu:
        assert await took_s(fu.ask(modern("server/discover"))) > 0.19
        assert await took_s(fu.initialize()) > 0.19
        assert await took_s(fu.ask(modern("tools/list"))) > 0.19
        assert await took_s(fu.ask(modern("tools/list"))) < 0.19
        assert await took_s(fu.ask(call("add", a=1, b=2))) > 0.19
        assert await took_s(fu.ask(call("echo"))) < 0.19


@pytest.mark.parametrize(
    ("points", "requests"),
    [
        (["init"], [legacy("initialize"), modern("server/discover")]),
        (["discover", "list", "call"], [modern("server/discover"), modern("tools/list"), call("echo")]),
    ],
)
async def test_hang_reads_and_stays_alive(points: list[str], requests: list[bytes]) -> None:
    async with stdio(*(word for point in points for word in ("--hang", point))) as fu:
        await fu.send(*requests, legacy("ping", identity=2))
        assert json.loads(await fu.line())["id"] == 2


async def test_hang_over_http() -> None:
    async with faulty_http("--hang", "call:times=1") as fu:
        waiting = asyncio.create_task(exchange(fu.port, call("echo")))
        await state_with(fu.control, in_flight=1)
        assert (await exchange(fu.port, call("echo"))).status == 200
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_die_on() -> None:
    async with stdio("--die-on", "start", "--exit-code", "3") as fu:
        assert await fu.ended() == 3
    async with stdio("--die-on", "init") as fu:
        await fu.send(modern("server/discover"))
        assert (await fu.ended(), await fu.line()) == (1, b"")
    async with stdio("--die-on", "call:2") as fu:
        await fu.ask(call("echo"))
        await fu.send(call("echo"))
        assert (await fu.ended(), await fu.line()) == (1, b"")


async def test_die_in_mid_answer() -> None:
    async with stdio("--die-on", "mid-answer", "--exit-code", "9") as fu:
        await fu.send(call("echo"))
        line = await fu.line()
        assert line.startswith(b'{"jsonrpc":"2.0","id":1,')
        assert not line.endswith(b"\n")
        assert await fu.ended() == 9
    async with faulty_http("--die-on", "mid-answer") as http:
        with pytest.raises(asyncio.IncompleteReadError):
            await exchange(http.port, call("echo"))


async def test_it_ends_when_stdin_closes() -> None:
    async with stdio("--hang", "call") as fu:
        await fu.send(call("echo"))
        fu.close_stdin()
        assert await fu.ended() == 0


@pytest.mark.parametrize("switches", [("--http", "0"), ("--ignore-sigterm",)])
async def test_it_ends_when_its_parent_dies(switches: tuple[str, ...]) -> None:
    control = free_port()
    command, arguments = faulty_command("--control", str(control), *switches)
    starter = "import subprocess, sys; subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE).wait()"
    pipe = asyncio.subprocess.PIPE
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", starter, command, *arguments, stdout=pipe, stderr=pipe
    )
    assert parent.stderr is not None
    line = b""
    while b"control" not in line:
        line = await parent.stderr.readline()
    pid = (await Control(control).state())["pid"]
    parent.kill()
    await parent.communicate()
    await eventually(lambda: not alive(pid))


async def test_ignore_sigterm_also_ignores_a_closed_stdin() -> None:
    async with stdio("--ignore-sigterm") as fu:
        await fu.ask(modern("tools/list"))
        fu.process.terminate()
        await fu.ask(modern("tools/list"))
        fu.close_stdin()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fu.process.wait(), 0.3)


async def test_children_outlive_it() -> None:
    switches = ("--fork-children", "2", "--ignore-sigterm", "--own-group", "--control", "0")
    async with stdio(*switches) as fu:
        await fu.ask(modern("tools/list"))
        port = int(bytes(fu.stderr).decode().partition("control 127.0.0.1:")[2])
        children = (await Control(port).state())["children"]
        try:
            assert [os.getpgid(child) == os.getpgid(fu.process.pid) for child in children] == [True, False]
            fu.process.kill()
            await eventually(lambda: not alive(fu.process.pid))
            for child in children:
                os.kill(child, signal.SIGTERM)
            await eventually(lambda: not alive(children[0]))
            assert alive(children[1])
        finally:
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


async def test_switches_from_a_file_that_may_not_exist(tmp_path: Path) -> None:
    file = tmp_path / "switches"
    async with stdio("--switches", str(file)) as fu:
        await fu.ask(call("echo"))
    file.write_text("--die-on\nstart\n")
    async with stdio("--switches", str(file)) as fu:
        assert await fu.ended() == 1
