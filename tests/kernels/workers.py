"""The worker processes of the kernels in this process, as the system sees them (Linux)."""

from __future__ import annotations

import os
from pathlib import Path


def worker_pids() -> list[int]:
    """The worker processes of this process, without those that have ended and wait for their burial."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    return [pid for pid in pids if "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()]


def worker_environments() -> set[bytes]:
    return {Path(f"/proc/{pid}/environ").read_bytes() for pid in worker_pids()}
