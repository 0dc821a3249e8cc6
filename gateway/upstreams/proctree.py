"""Finding and ending every process that a child has started.

A signal to the process group misses children that made a group of their own; a walk from parent to child misses
orphans, whose parent is gone. Both keep the *session* of the leader unless they leave that too, so on Linux ``/proc``
is read for all of it: same session, or descended from the leader or from such a process. Elsewhere the process group
must do.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
HAS_PROC = (_PROC / "self" / "stat").exists()


@dataclass(frozen=True, slots=True)
class Process:
    """A process that is surely the one meant: a pid alone may have been given to another one.

    Attributes:
        started: clock ticks after boot.
    """

    pid: int
    started: int


def started_by(leader: int) -> set[Process]:
    """All living processes (zombies are not) of the session that ``leader`` leads, and everything descended from them.

    Reads all of ``/proc``: some milliseconds on a busy host, so call it in a thread. Empty where there is no ``/proc``.
    """
    found: set[Process] = set()
    children: dict[int, list[Process]] = {}
    members = [leader]
    for entry in _PROC.glob("[0-9]*") if HAS_PROC else ():
        stat = _stat(int(entry.name))
        if stat is None:
            continue
        process, parent, session = stat
        children.setdefault(parent, []).append(process)
        if session == leader:
            found.add(process)
            members.append(process.pid)
    while members:
        for process in children.get(members.pop(), ()):
            if process not in found:
                found.add(process)
                members.append(process.pid)
    return found


def alive(processes: Iterable[Process]) -> set[Process]:
    """Those of ``processes`` that still run."""
    return {process for process in processes if (stat := _stat(process.pid)) is not None and stat[0] == process}


def send(signal_number: signal.Signals, group: int, processes: Iterable[Process]) -> None:
    """Signal a process group and single processes; those that are gone meanwhile are no error."""
    try:
        os.killpg(group, signal_number)
    except (ProcessLookupError, PermissionError):  # PermissionError: on macOS, when only zombies are left
        pass
    for process in alive(processes):
        try:
            os.kill(process.pid, signal_number)
        except (ProcessLookupError, PermissionError):
            pass


def reap(processes: Iterable[Process]) -> None:
    """Collect those that died as our own children: orphans become ours where the gateway is the init of a container."""
    for process in processes:
        try:
            os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            pass


def group_exists(group: int) -> bool:
    """Whether any process, a zombie too, is left in the group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stat(pid: int) -> tuple[Process, int, int] | None:
    """(process, parent, session) from ``/proc/<pid>/stat``; None when it is gone or a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[19])), int(fields[1]), int(fields[3])
