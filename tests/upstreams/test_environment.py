"""What a child inherits and how its command is found."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gateway.upstreams.child import STDERR_LINES, StderrTail
from gateway.upstreams.environment import CommandNotFound, child_environment, find_command, secrets_of
from gateway.upstreams.redact import Redactor


def test_only_what_is_named_is_inherited() -> None:
    own = {"HOME": "/h", "LC_ALL": "C", "UV_CACHE_DIR": "/c", "GATEWAY_ADMIN_TOKEN": "t", "DATABASE_URL": "d"}

    environment = child_environment({"MINE": "1"}, own)

    assert set(environment) == {"HOME", "LC_ALL", "UV_CACHE_DIR", "MINE", "PATH"}


def test_what_is_declared_wins() -> None:
    assert child_environment({"HOME": "/mine"}, {"HOME": "/h"})["HOME"] == "/mine"


def test_the_folder_of_the_interpreter_is_the_last_of_the_path() -> None:
    tools = str(Path(sys.executable).parent)

    assert child_environment({}, {"PATH": "/usr/bin"})["PATH"] == f"/usr/bin{os.pathsep}{tools}"
    assert child_environment({}, {"PATH": tools})["PATH"] == tools


def test_a_command_is_found_on_the_childs_path_or_relative_to_its_folder(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)

    assert find_command("tool", {"PATH": str(tmp_path)}, tmp_path) == str(tool)
    assert find_command("./tool", {"PATH": ""}, tmp_path) == str(tmp_path / "tool")


def test_why_a_command_cannot_be_started_names_no_folder(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    for command, cwd, reason in [
        ("nowhere-to-be-found", tmp_path, "command 'nowhere-to-be-found' was not found on PATH"),
        (str(tmp_path / "gone"), tmp_path, "command 'gone' does not exist"),
        (str(tmp_path / "plain"), tmp_path, "command 'plain' is not executable"),
        ("sh", tmp_path / "gone", "its working directory does not exist"),
    ]:
        with pytest.raises(CommandNotFound) as caught:
            find_command(command, {"PATH": os.defpath}, cwd)
        assert str(caught.value) == reason


def test_secrets_are_declared_values_telling_names_and_telling_options() -> None:
    environment = {"UV_INDEX_PASSWORD": "in-herited", "HOME": "/h", "A": "de-clared"}

    secrets = secrets_of(
        environment, {"A": "de-clared"}, ("run", "--api-key", "fol-lowing", "--token=equ-als", "--key")
    )

    assert set(secrets) - {""} == {"in-herited", "de-clared", "fol-lowing", "equ-als"}


def test_the_tail_of_stderr_is_bounded_in_bytes_and_lines() -> None:
    tail = StderrTail(Redactor(()))
    for number in range(5000):
        tail.add(f"line {number}\n\n".encode())

    lines = tail.lines()

    assert lines[-1] == "line 4999"
    assert len(lines) == STDERR_LINES


def test_a_secret_that_the_cut_goes_through_leaves_no_half() -> None:
    tail = StderrTail(Redactor(["s3cret-" * 20]))
    for number in range(400):
        tail.add(b"s3cret-" * 20 + b"\n" * (number % 7 == 0))

    assert tail.lines()
    assert set("".join(tail.lines())) <= set("•…")
