"""How the command line refuses: exit code 2 for usage, 1 for the thing asked about, text on stderr, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import gateway


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["serve", "--nope"], "No such option: --nope"),
        (["serve", "--port", "x"], "Invalid value for '--port'"),
        (["call", "docs_search"], "Missing option '--key'"),
        (["call", "--key", "k", "tool", "--args", "{"], "--args is no JSON"),
        (["keys", "create", "--tenant", "acme", "--expires", "soon"], "Invalid value"),
    ],
)
async def test_wrong_usage_is_exit_code_2(args: list[str], said: str, tmp_path: Path) -> None:
    code, out, err = await gateway(*args, folder=tmp_path, GATEWAY_KEY="")
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


async def test_what_cannot_be_done_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    code, out, err = await gateway("check", "--config", "missing.yaml", folder=tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith("missing.yaml:1:1: ")
    assert err.count("\n") == 1


async def test_no_command_shows_what_there_is(tmp_path: Path) -> None:
    code, _, err = await gateway(folder=tmp_path)
    assert code == 2
    assert "serve" in err
