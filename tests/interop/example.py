"""The repository's example with files that a test knows: what both the clients' gateway and the demo start serve.

The servers and their pinned versions are those of ``gateway.yaml`` at the root; here they only get a place to work in.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "gateway.yaml"
START = "180s"
START_S = 240.0
"""For the first start on a machine, which downloads six servers; later ones take seconds."""

FILES = {"north.txt": "aurora\n", "south.txt": "breeze\ncalm\n"}
COMMITS = ("Add the north", "Add the south")
THREE_SERVERS = {"zone": "UTC", "commits": len(COMMITS), "files": sorted(FILES)}
"""What :func:`three_servers` returns."""


@dataclass(frozen=True)
class Places:
    """Where the example's servers work.

    Attributes:
        files: the folder of the filesystem server, with :data:`FILES`.
        repository: a git repository with :data:`COMMITS`, oldest first.
        memory: the file of the memory server, which does not exist yet.
    """

    files: Path
    repository: Path
    memory: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the example's config asks for."""
        return {"DEMO_FILES": str(self.files), "DEMO_MEMORY_FILE": str(self.memory)}


def make_places(folder: Path) -> Places:
    """Make them in an empty folder."""
    files, repository = folder / "files", folder / "repository"
    for path in (files, repository):
        path.mkdir()
    for name, text in FILES.items():
        (files / name).write_text(text, encoding="utf-8")
    _git(repository, "init", "--quiet", "--initial-branch=main")
    for number, message in enumerate(COMMITS):
        (repository / f"{number}.txt").write_text(message, encoding="utf-8")
        _git(repository, "add", ".")
        _git(repository, "commit", "--quiet", f"--message={message}")
    return Places(files, repository, folder / "memory.jsonl")


def three_servers(places: Places) -> str:
    """A script that calls three servers in parallel and returns one value."""
    return f"""
import asyncio
now, log, listing = await asyncio.gather(
    time__get_current_time(timezone="UTC"),
    git__git_log(repo_path={str(places.repository)!r}),
    files__list_directory(path={str(places.files)!r}),
)
files = [line.removeprefix("[FILE] ") for line in listing["content"].splitlines()]
{{"zone": now["timezone"], "commits": log.count("Commit: "), "files": sorted(files)}}
"""


def _git(repository: Path, *args: str) -> None:
    """Without the configuration of this machine: no hooks, no signatures, no identity are taken from it."""
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *args], cwd=repository, check=True, capture_output=True, timeout=30)


def sections() -> dict[str, Any]:
    """``upstreams`` and ``tenants`` of the example, with time for a first start."""
    content = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    upstreams = {name: {**entry, "startTimeout": START} for name, entry in content["upstreams"].items()}
    return {"upstreams": upstreams, "tenants": content["tenants"]}
