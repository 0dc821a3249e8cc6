"""CPU per request of the gateway, as ratios to a bare Starlette JSON handler in the same run.

Method: the bare handler and the gateway run on one core, the load and the upstream on another. Answers are checked
before anything is measured. Rounds are interleaved over the rows; a row's figure is the median of its rounds: CPU time
of the target's whole process tree (the sandbox workers included, the upstream not) divided by the requests. A ratio is
the median of the quotients of a row's round and the bare handler's round beside it.

    python -m loadtests.baseline [--rounds 9] [--connections 16]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from loadtests.load import Connections, HttpTarget
from loadtests.processes import process, tree_cpu_ns

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
MODERN = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
GATEWAY = [sys.executable, "-c", "from gateway.cli import main; main()"]
SETTLE_S = 0.3
"""Deferred work (ledger, metering) is counted too: the clock is read a moment after the last answer."""

ECHO = "await good__echo(text='x' * 100)"
SCRIPTS = {
    "execute_code, no call": "1 + 1",
    "execute_code, 1 call": f"({ECHO})['text'][:2]",
    "execute_code, 10 calls": f"out = []\nfor _ in range(10):\n    out.append(({ECHO})['text'][:1])\n''.join(out)",
    "execute_code, 10 parallel": (
        f"import asyncio\nasync def one():\n    return ({ECHO})['text'][:1]\n"
        "''.join(await asyncio.gather(*[one() for _ in range(10)]))"
    ),
}


@dataclass
class Row:
    """One line of the table."""

    label: str
    pid: int
    target: HttpTarget
    volleys: int
    micros: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def mcp_target(port: int, key: str, path: str, name: str, arguments: dict[str, Any], needle: str) -> HttpTarget:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments, "_meta": META},
    }
    headers = (
        ("Accept", "application/json, text/event-stream"),
        ("Authorization", f"Bearer {key}"),
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", name),
    )
    wanted = needle.encode()
    return HttpTarget(
        port,
        path,
        headers,
        json.dumps(body).encode(),
        lambda answer: wanted in answer and b'"isError":true' not in answer,
    )


def write_config(folder: Path, port: int, admin: int, upstream: str) -> None:
    limits = {"requestsPerMinute": 10_000_000, "toolCallsPerMinute": 100_000_000, "concurrentExecutions": 64}
    config = {
        "version": 1,
        "server": {"port": port},
        "admin": {"port": admin},
        "upstreams": {"good": {"url": upstream}},
        "tenants": {"bench": {"upstreams": {"good": ["*"]}, "limits": limits}},
        "kernels": {"python": {"engine": "monty", "workers": 16}},
    }
    (folder / "gateway.yaml").write_text(json.dumps(config))


def make_key(folder: Path) -> str:
    done = subprocess.run(
        [*GATEWAY, "keys", "create", "--tenant", "bench"], cwd=folder, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


async def wait_ready(url: str, want: str) -> None:
    async with httpx2.AsyncClient() as client, asyncio.timeout(60):
        while True:
            try:
                if want in (await client.get(url)).text:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.1)


async def measure(rows: list[Row], rounds: int, connections: int, progress: Progress) -> None:
    """Check, warm up, then interleaved rounds; the first row is the unit."""
    task = progress.add_task("rounds", total=(rounds + 1) * len(rows))
    for number in range(rounds + 1):
        unit = 0.0
        for row in rows:
            progress.update(task, description=f"round {number}/{rounds}: {row.label}")
            async with Connections(row.target, connections) as sockets:
                await sockets.volleys(2)
                before = tree_cpu_ns(row.pid)
                requests = await sockets.volleys(row.volleys)
                await asyncio.sleep(SETTLE_S)
                micros = (tree_cpu_ns(row.pid) - before) / requests / 1000
            progress.advance(task)
            if row is rows[0]:
                unit = micros
            if number:  # round 0 warms up
                row.micros.append(micros)
                row.ratios.append(micros / unit)


def report(rows: list[Row], rounds: int, connections: int) -> dict[str, Any]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    head = {
        "method": f"{connections} connections, one request each sent together, wait for all; {rounds} rounds, medians; "
        "CPU of the process tree without the upstream; ratio to the bare handler's neighbouring round",
        "machine": f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    lines: list[dict[str, Any]] = [
        {
            "row": row.label,
            "cpuMicros": round(statistics.median(row.micros), 1),
            "ratio": round(statistics.median(row.ratios), 2),
            "ratioMin": round(min(row.ratios), 2),
            "ratioMax": round(max(row.ratios), 2),
        }
        for row in rows
    ]
    console = Console()
    for key, value in head.items():
        console.print(f"{key}: {value}", highlight=False)
    table = Table("request", "CPU µs", "× bare handler", "min – max", box=None, header_style="bold")
    for line in lines:
        table.add_row(
            line["row"],
            f"{line['cpuMicros']:,.0f}",
            f"{line['ratio']:.2f}",
            f"{line['ratioMin']:.2f} – {line['ratioMax']:.2f}",
        )
    console.print(table)
    return {**head, "rows": lines}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    server_core, load_core = cores[0], cores[-1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare, port, admin, upstream = (free_port() for _ in range(4))
        write_config(folder, port, admin, f"http://127.0.0.1:{upstream}/mcp")
        key = make_key(folder)
        os.sched_setaffinity(0, {load_core})
        faulty = (sys.executable, str(ROOT / "tests" / "faulty"), "--http", str(upstream))
        handler = (sys.executable, str(ROOT / "loadtests" / "bare.py"), str(bare))
        with (
            process(*faulty, core=load_core, cwd=folder, log=folder / "upstream.log"),
            process(*handler, core=server_core, cwd=folder, log=folder / "bare.log") as bare_process,
            process(*GATEWAY, "serve", core=server_core, cwd=folder, log=folder / "gateway.log") as gateway_process,
        ):
            await wait_ready(f"http://127.0.0.1:{admin}/readyz", '"good":"ready"')

            def row(label: str, path: str, name: str, arguments: dict[str, Any], needle: str, volleys: int) -> Row:
                return Row(label, gateway_process.pid, mcp_target(port, key, path, name, arguments, needle), volleys)

            rows = [
                Row(
                    "bare Starlette JSON POST",
                    bare_process.pid,
                    HttpTarget(
                        bare,
                        "/mcp",
                        (),
                        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x"}).encode(),
                        lambda b: b"ok" in b,
                    ),
                    60,
                ),
                row("/mcp/direct tools/call", "/mcp/direct", "good__echo", {"text": "x" * 100}, "xxxx", 40),
                row("docs_search", "/mcp", "docs_search", {"query": "add two numbers"}, "good__add", 30),
            ]
            needles = {"execute_code, no call": '"text":"2"', "execute_code, 1 call": '"text":"xx"'}
            rows += [
                row(label, "/mcp", "execute_code", {"code": code}, needles.get(label, '"text":"xxxxxxxxxx"'), 10)
                for label, code in SCRIPTS.items()
            ]
            with Progress(console=Console(stderr=True), transient=True) as progress:
                await measure(rows, options.rounds, options.connections, progress)
            results = report(rows, options.rounds, options.connections)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "baseline.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
