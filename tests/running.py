"""A real gateway for black-box tests: ``gateway serve`` as a process, spoken to over HTTP.

:func:`serving` writes a config, makes a key for each tenant and starts the process; :class:`Running` is what a test
talks to. Nothing of the gateway is imported here.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tests.companions import faulty_command

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
START_S = 30.0
GATEWAY = [sys.executable, "-c", "from gateway.cli import main; main()"]
EVERYTHING = ["*"]


def faulty(*switches: str, **options: Any) -> dict[str, Any]:
    """The faulty upstream on stdio, as an entry of ``upstreams``."""
    command, args = faulty_command(*switches)
    return {"command": command, "args": list(args), **options}


def config(
    upstreams: Mapping[str, Any], tenants: Mapping[str, Any] | Sequence[str] = ("acme",), **sections: Any
) -> dict[str, Any]:
    """A whole config. Tenants given by name only see everything."""
    if not isinstance(tenants, Mapping):
        tenants = {name: {} for name in tenants}
    everything = dict.fromkeys(upstreams, EVERYTHING)
    return {
        "version": 1,
        "server": {"port": 0},
        "admin": {"port": 0},
        "upstreams": dict(upstreams),
        "tenants": {name: {"upstreams": everything, **tenant} for name, tenant in tenants.items()},
        **sections,
    }


@dataclass(frozen=True)
class Answer:
    """The answer to one tool call.

    Attributes:
        text: its first text block.
        is_error: ``isError``.
        usage: the metering block of ``_meta``.
        result: the whole result object.
    """

    text: str
    is_error: bool
    usage: dict[str, Any]
    result: dict[str, Any]

    def json(self) -> Any:
        assert not self.is_error, self.text
        return json.loads(self.text)


@dataclass
class Running:
    """A gateway process and a raw client for it.

    Attributes:
        url: the tenant listener, without path.
        admin: the admin listener, without path.
        keys: tenant → key.
        folder: where its config and databases are.
        log: what it wrote to stderr so far, line by line.
    """

    process: asyncio.subprocess.Process
    url: str
    admin: str
    keys: dict[str, str]
    folder: Path
    client: httpx2.AsyncClient
    log: list[str] = field(default_factory=list)

    async def post(
        self,
        body: Any,
        *,
        tenant: str = "acme",
        path: str = "/mcp",
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Any JSON body, or exact bytes."""
        sent = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {self.keys[tenant]}",
            **(headers or {}),
        }
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(self.url + path, content=content, headers=sent)

    async def rpc(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        tenant: str = "acme",
        path: str = "/mcp",
        request_id: int | str = 1,
        meta: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """One modern request; the whole JSON-RPC response."""
        all_params = dict(params or {})
        all_params["_meta"] = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}, **(meta or {})}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        if "name" in all_params:
            headers["Mcp-Name"] = all_params["name"]
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": all_params}
        response = await self.post(body, tenant=tenant, path=path, headers=headers)
        text = response.text
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            text = [line[5:] for line in text.splitlines() if line.startswith("data:")][-1]
        answer: dict[str, Any] = json.loads(text)
        return answer

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, tenant: str = "acme", path: str = "/mcp"
    ) -> Answer:
        """One ``tools/call``."""
        response = await self.rpc("tools/call", {"name": name, "arguments": arguments}, tenant=tenant, path=path)
        assert "result" in response, response
        result = response["result"]
        text = next((block["text"] for block in result["content"] if block["type"] == "text"), "")
        usage = result.get("_meta", {}).get("codemode-gateway/usage", {})
        return Answer(text, bool(result.get("isError")), usage, result)

    async def run(self, code: str, *, tenant: str = "acme") -> Answer:
        """``execute_code``."""
        return await self.call("execute_code", {"code": code}, tenant=tenant)

    async def search(self, query: str = "", *, tenant: str = "acme", **more: Any) -> str:
        """``docs_search``."""
        answer = await self.call("docs_search", {"query": query, **more}, tenant=tenant)
        assert not answer.is_error, answer.text
        return answer.text

    async def direct(self, name: str, arguments: Mapping[str, Any], *, tenant: str = "acme") -> Answer:
        """One tool call in direct mode."""
        return await self.call(name, arguments, tenant=tenant, path="/mcp/direct")

    async def admin_get(self, path: str) -> Any:
        """JSON of the admin listener."""
        return (await self.client.get(self.admin + path)).json()

    async def upstream(self, name: str) -> dict[str, Any]:
        """What the operator sees of one upstream."""
        rows = (await self.admin_get("/api/upstreams"))["upstreams"]
        return next(row for row in rows if row["name"] == name)

    async def wait_for(self, **states: str) -> None:
        """Wait until tenants see upstreams in these states: ``wait_for(good="ready", bad="down")``."""
        async with asyncio.timeout(START_S):
            while True:
                rows = {row["name"]: row for row in (await self.admin_get("/api/upstreams"))["upstreams"]}
                if all(rows[name]["state"] == state and rows[name]["inCatalog"] for name, state in states.items()):
                    return
                await asyncio.sleep(0.02)

    async def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """All samples by (name, labels). The page is at most one second old, so poll it."""
        page = (await self.client.get(self.admin + "/metrics")).text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    async def metric(self, name: str, **labels: str) -> float:
        """One sample; 0 when it does not exist."""
        return (await self.metrics()).get((name, frozenset(labels.items())), 0.0)

    async def stop(self, within_s: float = 15.0) -> int:
        """SIGTERM; the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(within_s):
            return await self.process.wait()


async def gateway(
    *args: str, folder: Path, stdin: bytes | None = None, prefix: Sequence[str] = (), **env: str
) -> tuple[int, str, str]:
    """Run one command to its end: (exit code, stdout, stderr). ``prefix``: a command that runs it, such as setpriv."""
    return await _finished([*prefix, *GATEWAY, *args], folder, stdin, env)


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Of a gateway process. Where Python may keep no bytecode, each start would compile 300 modules: half its time."""
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": _bytecode()} if sys.dont_write_bytecode else {}
    return {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **bytecode, **env}


@functools.cache
def _bytecode() -> str:
    return _temporary("gateway-bytecode-")


def _temporary(prefix: str) -> str:
    """A folder that is removed when the tests have ended."""
    folder = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


async def _finished(
    command: Sequence[str], folder: Path, stdin: bytes | None, env: Mapping[str, str]
) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=_environment(env),
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(), err.decode()


def write_config(folder: Path, content: Mapping[str, Any] | str) -> Path:
    """Write ``gateway.yaml``; JSON is YAML."""
    path = folder / "gateway.yaml"
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1), encoding="utf-8")
    return path


KEYS_CREATE = """
import sys
from gateway.cli import main
for tenant in sys.argv[1:]:
    sys.argv = ["gateway", "keys", "create", "--tenant", tenant]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""


async def make_keys(folder: Path, tenants: Iterable[str], **env: str) -> dict[str, str]:
    """One key a tenant, by the command an operator uses; all in one process, because starting it takes longest."""
    names = list(tenants)
    code, out, err = await _finished([sys.executable, "-c", KEYS_CREATE, *names], folder, None, env)
    assert code == 0, err
    return dict(zip(names, out.split(), strict=True))


_stores: dict[tuple[str, ...], tuple[str, dict[str, str]]] = {}
"""Folders with a key store, by tenants, and the keys: making one takes as long as starting a gateway."""


async def _copied_keys(folder: Path, tenants: tuple[str, ...]) -> dict[str, str]:
    """The same as :func:`make_keys` in an empty folder, from a store that is made once for the same tenants."""
    if tenants not in _stores:
        made = _temporary("gateway-keys-")
        write_config(Path(made), config({}, tenants))
        _stores[tenants] = (made, await make_keys(Path(made), tenants))
    made, keys = _stores[tenants]
    for name in ("gateway.db", "gateway.db.pepper"):
        shutil.copy2(os.path.join(made, name), folder)
    return keys


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@contextlib.asynccontextmanager
async def serving(folder: Path, content: Mapping[str, Any], **env: str) -> AsyncIterator[Running]:
    """Serve a config; listening when the block begins, whatever its upstreams do; ended with the block."""
    write_config(folder, content)
    has_store = "state" in content or (folder / "gateway.db") in _files(folder)
    tenants = tuple(content["tenants"])
    keys = await (make_keys(folder, tenants, **env) if has_store else _copied_keys(folder, tenants))
    process = await asyncio.create_subprocess_exec(
        *GATEWAY,
        "serve",
        cwd=folder,
        env=_environment(env),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    reading: asyncio.Task[None] | None = None
    log: list[str] = []
    try:
        found: dict[str, str] = {}
        async with asyncio.timeout(START_S):
            while set(found) != {"tenants", "admin"}:
                line = (await process.stderr.readline()).decode()
                assert line, f"the gateway ended: {''.join(log)}"
                log.append(line)
                word, _, rest = line.partition(" ")
                if word in ("tenants", "admin") and "http" in rest:
                    found[word] = rest.strip().removesuffix("/mcp").rstrip("/")
        reading = asyncio.create_task(_collect(process.stderr, log))
        async with httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=200)) as client:
            yield Running(process, found["tenants"], found["admin"], keys, folder, client, log)
    finally:
        await end(process)
        if reading is not None:
            await reading


async def end(process: asyncio.subprocess.Process) -> None:
    """Ask a program to end, as an operator would; make it end when it does not."""
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(15):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _collect(stream: asyncio.StreamReader, log: list[str]) -> None:
    while line := await stream.readline():
        log.append(line.decode(errors="replace"))
