"""What a script can reach: the environment and folders of its manifest; no network, no process, no other file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.errors import ErrorClass
from gateway.kernels.monty_os import WRITE_BYTES_LIMIT
from tests.kernels.conftest import Lab
from tests.kernels.workers import worker_environments

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with one file and links to a secret beside it."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "ok.txt").write_text("fine")
    (tmp_path / "secret.txt").write_text("canary")
    (folder / "absolute").symlink_to(tmp_path / "secret.txt")
    (folder / "relative").symlink_to("../secret.txt")
    (folder / "folder").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.case("CAPS-09")
async def test_a_script_sees_exactly_the_environment_of_its_manifest(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "canary")
    code = "import os\n[dict(os.environ), os.getenv('A'), os.getenv('CANARY'), os.getenv('B', 'none')]"
    assert await lab.value(code, env={"A": "1"}) == [{"A": "1"}, "1", None, "none"]
    assert await lab.value("import os\ndict(os.environ)") == {}


@pytest.mark.case("KERNELS-08")
async def test_the_environment_of_a_worker_process_is_empty(single: Lab) -> None:
    assert worker_environments() == {b""}


async def test_allowed_folders_are_read_under_the_name_of_the_manifest(lab: Lab, data: Path) -> None:
    code = f"from pathlib import Path\n[open('{data}/ok.txt').read(), Path('{data}/ok.txt').read_text()]"
    assert await lab.value(code, allowed_read_paths=(str(data),)) == ["fine", "fine"]


@pytest.mark.case("CAPS-06")
@pytest.mark.case("CAPS-10")
@pytest.mark.parametrize(
    "path",
    [
        "{data}/../secret.txt",
        "{data}/absolute",
        "{data}/relative",
        "{data}/folder/secret.txt",
        "{data}/pipe",
        "/etc/passwd",
        "/proc/self/environ",
        "/dev/zero",
        "secret.txt",
    ],
)
async def test_nothing_outside_an_allowed_folder_is_read(lab: Lab, data: Path, path: str) -> None:
    error = await lab.error(f"open('{path.format(data=data)}').read()", allowed_read_paths=(str(data),))
    assert error.error_class == ErrorClass.CAPABILITY_DENIED
    assert error.hint == f"readable: {data}; writable: nothing"


@pytest.mark.case("CAPS-06")
@pytest.mark.parametrize("name", ["%2e%2e/secret.txt", "x" * 10_000, "a\\0b"])
async def test_odd_names_are_errors_that_read_nothing(lab: Lab, data: Path, name: str) -> None:
    error = await lab.error(f"open('{data}/{name}').read()", allowed_read_paths=(str(data),))
    assert error.error_class in (ErrorClass.RUNTIME_ERROR, ErrorClass.CAPABILITY_DENIED)


async def test_a_script_without_files_is_told_so(lab: Lab) -> None:
    error = await lab.error("open('notes.txt')")
    assert error.error_class == ErrorClass.CAPABILITY_DENIED
    assert error.hint
    assert "no files" in error.hint


@pytest.mark.case("CAPS-07")
async def test_only_write_paths_are_written(lab: Lab, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "link").symlink_to(data, target_is_directory=True)
    paths = {"allowed_read_paths": (str(data),), "allowed_write_paths": (str(out),)}
    assert await lab.value(f"open('{out}/new.txt', 'w').write('hello')", **paths) == 5
    assert (out / "new.txt").read_text() == "hello"
    for target in (f"{data}/ok.txt", f"{out}/link/ok.txt", f"{out}/../data/ok.txt"):
        error = await lab.error(f"open('{target}', 'w').write('x')", **paths)
        assert error.error_class == ErrorClass.CAPABILITY_DENIED
    assert (data / "ok.txt").read_text() == "fine"


async def test_a_path_in_both_lists_is_writable(lab: Lab, data: Path) -> None:
    both = (str(data),)
    code = f"open('{data}/n.txt', 'w').write('x')\nopen('{data}/n.txt').read()"
    assert await lab.value(code, allowed_read_paths=both, allowed_write_paths=both) == "x"


@pytest.mark.case("CAPS-07")
async def test_writing_has_a_quota(lab: Lab, data: Path) -> None:
    code = f"with open('{data}/big', 'w') as f:\n    while True: f.write('x' * 1_000_000)"
    error = await lab.error(code, allowed_write_paths=(str(data),))
    assert error.error_class == ErrorClass.QUOTA_EXCEEDED
    assert (data / "big").stat().st_size <= WRITE_BYTES_LIMIT


@pytest.mark.case("CAPS-10")
async def test_a_file_larger_than_memory_is_not_read_at_once(lab: Lab, data: Path) -> None:
    with (data / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    error = await lab.error(f"open('{data}/sparse').read()", allowed_read_paths=(str(data),))
    assert error.error_class == ErrorClass.MEMORY_LIMIT


async def test_an_allowed_path_that_is_missing_is_said_at_the_run(lab: Lab, tmp_path: Path) -> None:
    error = await lab.error("1", allowed_read_paths=(str(tmp_path / "gone"),))
    assert error.error_class == ErrorClass.CAPABILITY_DENIED
    assert "gone" in error.message


@pytest.mark.case("KERNELS-06")
@pytest.mark.case("KERNELS-08")
@pytest.mark.case("CAPS-12")
@pytest.mark.parametrize(
    "code",
    [
        "().__class__.__base__.__subclasses__()",
        "up__echo.__globals__",
        "up__echo.__code__",
        "'{0.__class__}'.format(up__echo)",
        "getattr(up__echo, '__self__')",
        "(lambda: 0).__globals__",
        "__import__('os')",
        "__builtins__",
        "globals()",
        "import ctypes",
        "import socket",
        "import subprocess",
        "import urllib.request",
        "import pickle",
        "import os\nos.system('id')",
        "import os\nos.fork()",
        "import os\nos.kill(1, 9)",
        "import sys\nsys.modules",
        "import sys\nsys._getframe()",
        "try:\n    1/0\nexcept Exception as e:\n    r = e.__traceback__.tb_frame\nr",
    ],
)
async def test_no_way_leads_to_the_interpreter_the_network_or_the_system(lab: Lab, code: str) -> None:
    error = await lab.error(code)
    assert error.error_class in (ErrorClass.UNSUPPORTED_SYNTAX, ErrorClass.RUNTIME_ERROR)
