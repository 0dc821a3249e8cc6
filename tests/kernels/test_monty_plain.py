"""The parts of the Python kernel that need no worker: the check of a manifest, the cut of a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.model import Manifest
from gateway.kernels.monty import MontyKernel
from gateway.kernels.monty_errors import one_line


def test_messages_are_one_line_without_control_characters() -> None:
    assert one_line("a\nb\x00\x1b[31mc\t d") == "a b [31mc d"
    assert len(one_line("word " * 10_000)) == 2_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "ok.txt").write_text("fine")
    return folder


@pytest.mark.case("CAPS-08")
def test_the_config_check_names_what_cannot_be_enforced(data: Path, tmp_path: Path) -> None:
    check = MontyKernel.check_manifest
    assert check(Manifest()) == []
    assert check(Manifest(allowed_read_paths=(str(data),), allowed_write_paths=(str(data),))) == []
    (hosts,) = check(Manifest(allowed_hosts=("api.example.test",)))
    assert hosts.startswith("allowedHosts: ")
    (missing,) = check(Manifest(allowed_read_paths=(str(tmp_path / "gone"),)))
    assert missing == f"allowedReadPaths: {tmp_path}/gone does not exist"
    (file,) = check(Manifest(allowed_write_paths=(str(data / "ok.txt"),)))
    assert file == f"allowedWritePaths: {data}/ok.txt is not a folder"
    (overlap,) = check(Manifest(allowed_read_paths=(str(tmp_path),), allowed_write_paths=(str(data),)))
    assert overlap == f"allowed paths must not lie inside each other: {data} is inside {tmp_path}"
