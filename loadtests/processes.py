"""Targets as processes on a core of their own, and the CPU time of a whole process tree (Linux)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def cpu_ns(pid: int) -> int:
    """User and system time of a process with all its threads, ended ones too, and of its ended children.

    The process CPU clock has nanosecond resolution; ended children come from /proc/PID/stat in ticks of 10 ms.
    """
    # clock id of another process, as clock_getcpuclockid(3) makes it
    own = time.clock_gettime_ns((~pid << 3) | 2)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return own + (int(fields[13]) + int(fields[14])) * _TICK_NS


def tree(pid: int) -> list[int]:
    """A process and all its living descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def tree_cpu_ns(pid: int) -> int:
    """CPU time of the whole tree; processes that end while it is read count from their parent's next reading on."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            total += cpu_ns(one)
    return total


def pin(pid: int, core: int) -> None:
    """Bind every thread of a process to one core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), {core})


@contextlib.contextmanager
def process(*command: str, core: int, cwd: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on one core, with its children; SIGTERM at the end, SIGKILL five seconds later."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            ["taskset", "-c", str(core), *command], cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
