"""Runs the conformance suite, a program of node, and reads its verdict.

The suite itself decides what passes: it is given a file of expected failures (a *baseline*) and exits with 1 for a
failure that is not in it, for an entry that no longer fails, and, other than without a baseline, for a warning.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.running import end

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PACKAGE = FOLDER / "node_modules" / "@modelcontextprotocol" / "conformance"
REVISIONS = ("2025-11-25", "2026-07-28")
INSTALL_S = 240.0
RUN_S = 240.0
START_S = 60.0

_BIN = Path(sys.executable).parent
# The suite needs Node 22 and gets the environment's own: what a machine has is often older.
_ENVIRONMENT = {**os.environ, "PATH": os.pathsep.join([str(_BIN), os.environ.get("PATH", os.defpath)]), "NO_COLOR": "1"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ALONE_GREEN = "OVERALL: PASSED"  # what a single client scenario has for a summary
_SECTIONS = {
    "Expected failures (in baseline):": "expected",
    "Stale baseline entries (now passing - remove from baseline):": "stale",
    "Unexpected failures (not in baseline):": "unexpected",
}


@dataclass(frozen=True)
class Verdict:
    """What the suite found in one or more runs.

    Attributes:
        passed: scored scenarios without any failure.
        expected: failures that the baseline names, ``scenario`` or ``scenario:check``.
        unexpected: failures that it does not name.
        stale: entries of it that pass.
        exit_code: 0 when there is nothing unexpected and nothing stale.
        output: all that the suite has said.
    """

    passed: frozenset[str] = frozenset()
    expected: frozenset[str] = frozenset()
    unexpected: frozenset[str] = frozenset()
    stale: frozenset[str] = frozenset()
    exit_code: int = 0
    output: str = ""

    def __or__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.passed | other.passed,
            self.expected | other.expected,
            self.unexpected | other.unexpected,
            self.stale | other.stale,
            self.exit_code or other.exit_code,
            self.output + other.output,
        )

    def without(self, scenarios: Set[str]) -> Verdict:
        """The same with nothing about these, as if they had not been run."""

        def others(entries: frozenset[str]) -> frozenset[str]:
            return frozenset(entry for entry in entries if entry.partition(":")[0] not in scenarios)

        unexpected, stale = others(self.unexpected), others(self.stale)
        explained = self.unexpected | self.stale and not (unexpected | stale)
        code = 0 if explained else self.exit_code
        return Verdict(others(self.passed), others(self.expected), unexpected, stale, code, self.output)

    def problems(self) -> list[str]:
        """One line for each reason why this is red; empty when it is green."""
        found = [f"fails and is not expected to: {name}" for name in sorted(self.unexpected)]
        found += [f"passes and is still in the baseline: {name}" for name in sorted(self.stale)]
        if not found and self.exit_code:
            found.append(f"the suite ended with exit code {self.exit_code}: {self.output[-2000:]}")
        return found


async def install() -> None:
    """``node_modules`` as package.json wants it; needs no network when it is there already.

    Raises:
        AssertionError: npm failed.
    """
    wanted = json.loads((FOLDER / "package.json").read_text())["dependencies"]["@modelcontextprotocol/conformance"]
    manifest = PACKAGE / "package.json"
    if manifest.exists() and json.loads(manifest.read_text())["version"] == wanted:
        return
    code, output = await _run([str(_BIN / "npm"), "install", "--no-audit", "--no-fund"], INSTALL_S)
    assert code == 0, f"npm install: {output}"


def required(revision: str, side: str) -> list[str]:
    """The scenarios that a revision scores, in the suite's order; ``side`` is ``server`` or ``client``."""
    content = yaml.safe_load((PACKAGE / "requirements" / f"{revision}.yaml").read_text())
    return [str(scenario) for scenario in content[side]]


async def server_run(url: str, revision: str, baseline: Path) -> Verdict:
    """All server scenarios of a revision against an address."""
    return await _suite(["server", "--url", url, "--requirements", revision], baseline, required(revision, "server"))


async def client_run(command: str, revision: str, baseline: Path) -> Verdict:
    """All client scenarios of a revision; ``command`` gets the address of the suite's server as its last argument.

    The suite runs them all at once, and some of them measure time. So what fails unexpectedly in the crowd is run again
    by itself, and that decides.
    """
    scored = required(revision, "client")
    options = ["client", "--command", command, "--timeout", "60000"]
    verdict = await _suite([*options, "--requirements", revision], baseline, scored)
    doubtful = {entry.partition(":")[0] for entry in verdict.unexpected}
    if not doubtful:
        return verdict
    verdict = verdict.without(doubtful)
    for scenario in sorted(doubtful):
        verdict |= await _suite([*options, "--spec-version", revision, "--scenario", scenario], baseline, [scenario])
    return verdict


async def _suite(arguments: Sequence[str], baseline: Path, scored: Sequence[str]) -> Verdict:
    command = [str(_BIN / "node"), str(PACKAGE / "dist" / "index.js"), *arguments, "--expected-failures", str(baseline)]
    code, output = await _run(command, RUN_S)
    output = _COLOUR.sub("", output)
    found = read_lists(output)
    failed = {entry.partition(":")[0] for entry in found["expected"] | found["unexpected"]}
    green = {scenario for scenario in scored if f"\n✓ {scenario}: " in output or _ALONE_GREEN in output}
    expected, unexpected, stale = (frozenset(found[kind]) for kind in ("expected", "unexpected", "stale"))
    return Verdict(frozenset(green - failed), expected, unexpected, stale, code, output)


def read_lists(output: str) -> dict[str, set[str]]:
    """The three lists at the end of a run: headings, and under each indented lines of a sign and an entry."""
    found: dict[str, set[str]] = {kind: set() for kind in _SECTIONS.values()}
    section = ""
    for line in output.splitlines():
        if not line.startswith("  "):
            section = _SECTIONS.get(line, "")
        elif section:
            found[section].add(line.split(maxsplit=1)[1])
    return found


async def _run(command: Sequence[str], within_s: float) -> tuple[int, str]:
    """Exit code and output of a program of node, run in :data:`FOLDER`; it and its children end with the deadline."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=FOLDER,
        env=_ENVIRONMENT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(within_s):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, output.decode(errors="replace")


@asynccontextmanager
async def companion(*arguments: str) -> AsyncIterator[str]:
    """A Python program of ours beside the suite, ended with the block; yields the one line that it writes.

    Raises:
        AssertionError: it wrote none.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = (await process.stdout.readline()).decode().strip()
        assert line, f"{' '.join(arguments)} did not start"
        yield line
    finally:
        await end(process)
