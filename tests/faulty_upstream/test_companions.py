"""The companions: recorder, raw client, poll, and the command that starts from anywhere."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.companions import FAULTY, Answer, RawClient, Recorder, eventually, faulty_command, free_port
from tests.faulty_upstream.conversation import call


async def test_recorder_records_and_answers_as_told() -> None:
    async with Recorder(Answer(302, {"Location": "/there"}, b"")) as recorder, RawClient(recorder.port) as client:
        await client.request("PUT", "/here?q=1", b"body", {"X-One": "1"})
        response = await client.response()
        assert (response.status, response.headers["location"]) == (302, "/there")
        recorder.answer = lambda request: Answer(body=request.body.upper())
        await client.request("POST", "/", b"again")
        assert (await client.response()).body == b"AGAIN"
    first, _ = recorder.requests
    assert (first.method, first.target, first.path, first.body) == ("PUT", "/here?q=1", "/here", b"body")
    assert first.header("x-one") == "1"


async def test_recorder_drips() -> None:
    async with Recorder(Answer(body=b"slow", piece_s=0.02)) as recorder, RawClient(recorder.port) as client:
        await client.request("GET", "/")
        await client.head()
        assert len(await client.read()) < 4


async def test_eventually_returns_the_value_or_says_what_it_waited_for() -> None:
    values = iter([0, 0, 7])
    assert await eventually(lambda: next(values)) == 7
    with pytest.raises(AssertionError, match=r"within 0\.05 s"):
        await eventually(lambda: False, within_s=0.05)


async def test_a_free_port_can_be_listened_on() -> None:
    port = free_port()
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", port)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("how", ["command", "module", "folder"])
def test_the_faulty_upstream_starts_from_anywhere(how: str, tmp_path: Path) -> None:
    command, arguments = faulty_command()
    repository = str(Path(FAULTY).parents[1])
    argv, cwd = {
        "command": ([command, *arguments], str(tmp_path)),
        "module": ([sys.executable, "-m", "tests.faulty"], repository),
        "folder": ([sys.executable, str(Path(FAULTY) / "__main__.py")], str(tmp_path)),
    }[how]
    done = subprocess.run(argv, cwd=cwd, input=call("echo", a=1) + b"\n", capture_output=True, timeout=10, check=True)
    assert b'"structuredContent":{"a": 1}' in done.stdout
    assert done.stderr == b""


def test_stdin_that_is_no_pipe_is_refused_not_waited_for() -> None:
    command, arguments = faulty_command()
    done = subprocess.run([command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    assert (done.returncode, done.stderr) == (2, b"faulty: stdin and stdout must be pipes; or give --http PORT\n")


def test_a_wrong_switch_is_one_line_and_exit_code_2() -> None:
    command, arguments = faulty_command("--bogus")
    done = subprocess.run([command, *arguments], capture_output=True, timeout=10, check=False)
    assert (done.returncode, done.stderr) == (2, b"faulty: unknown switch '--bogus'; see --help\n")
