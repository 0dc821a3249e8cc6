"""More clients in use, each as its users run it and in an environment of its own; the gateway never shares one.

===============  =====================================================================================
Python SDK 1.x   ``uv run --isolated``, the script ``clients/mcp_1.py``; legacy era
fastmcp 4.x      the same with ``clients/fastmcp_4.py``; modern era
MCP Inspector    its command line, which speaks either era; installed by npm from ``clients/package.json``
mcp-remote       a bridge for clients that know stdio only, from there too; legacy era
===============  =====================================================================================

The clients are what is tested here, so one faulty upstream stands for the servers. A package that cannot be fetched
fails its tests with what uv or npm said of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import pytest_asyncio

from tests.running import Running, config, faulty, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real]

FOLDER = Path(__file__).parent / "clients"
INSPECTOR = FOLDER / "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
MCP_REMOTE = FOLDER / "node_modules/mcp-remote/dist/proxy.js"
FETCH_S = 240.0
VISIT_S = 60.0
ANSWER_S = 20.0

LEGACY, MODERN = "2025-11-25", "2026-07-28"
TWO_TOOLS = ["docs_search", "execute_code"]
USAGE = "codemode-gateway/usage"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"  # only results of the modern era have it

# Inspector needs Node 22: the environment's own comes first, what a machine has is often older.
BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)]), "NO_COLOR": "1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with serving(tmp_path_factory.mktemp("gateway"), config({"good": faulty()})) as running:
        await running.wait_for(good="ready")
        yield running


# ---------------------------------------------------------------- programs


@dataclass(frozen=True)
class Finished:
    """A program that has ended: exit code and what it wrote."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        try:
            return json.loads(self.out)
        except ValueError:
            pytest.fail(f"exit code {self.code}, {self.out!r}: {self.err}")


async def finished(*command: str | Path, within_s: float = VISIT_S, stdin: str = "", **env: str) -> Finished:
    """Run a program in :data:`FOLDER` to its end; it and its children are killed at the deadline."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=FOLDER,
        env={**ENVIRONMENT, **env},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(within_s):
            out, err = await process.communicate(stdin.encode())
    except TimeoutError:
        pytest.fail(f"did not end within {within_s:g} s: {' '.join(map(str, command))}")
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return Finished(process.returncode or 0, out.decode(), err.decode())


# ---------------------------------------------------------------- clients from PyPI

PLAN: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "/mcp": {
        "docs": ("docs_search", {"query": "the sum of two integers"}),
        "run": ("execute_code", {"code": "(await good__add(a=1, b=2))['sum']"}),
        "failed": ("execute_code", {"code": "await good__fail(message='out of ink')"}),
    },
    "/mcp/direct": {
        "add": ("good__add", {"a": 1, "b": 2}),
        "failed": ("good__fail", {"message": "out of ink"}),
    },
}
"""Path → label → tool and arguments.

A client connects to each path, lists the tools and makes the calls. It prints, for each path, ``version``, ``tools``
(names) and ``answers``: label → ``{error, text, structured}``, where ``error`` says that the client's own way of
reporting a tool's error was seen.
"""

WHERE_AM_I = """
import importlib.metadata, importlib.util, json, sys
version = importlib.metadata.version(sys.argv[1])
print(json.dumps({"version": version, "gateway": importlib.util.find_spec("gateway") is not None}))
"""


@dataclass(frozen=True)
class Package:
    """A client from PyPI, and the era that it is expected to choose."""

    name: str
    version: str
    script: str
    era: str

    async def python(self, *args: str, **options: Any) -> Finished:
        """Run Python beside the package; ``-I``: without this process's PYTHON* variables and working folder."""
        alone = ("--no-project", "--isolated", "--no-python-downloads", "--python", sys.executable)
        wanted = f"{self.name}=={self.version}"
        return await finished(BIN / "uv", "run", *alone, "--with", wanted, "python", "-I", *args, **options)


@dataclass(frozen=True)
class Visit:
    """What a client from PyPI saw; ``installed``: what it says of its environment."""

    package: Package
    installed: dict[str, Any]
    code: dict[str, Any]
    direct: dict[str, Any]


PACKAGES = [Package("mcp", "1.30.*", "mcp_1.py", LEGACY), Package("fastmcp", "4.1.6", "fastmcp_4.py", MODERN)]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PACKAGES, ids=lambda package: package.name)
async def visit(gateway: Running, request: pytest.FixtureRequest) -> Visit:
    package: Package = request.param
    fetched = await package.python("-c", WHERE_AM_I, package.name, within_s=FETCH_S)
    assert fetched.code == 0, f"{package.name} {package.version} could not be fetched from PyPI: {fetched.err}"
    key = gateway.keys["acme"]
    done = await package.python(package.script, gateway.url, stdin=json.dumps(PLAN), GATEWAY_KEY=key)
    assert done.code == 0, done.err
    seen = done.json()
    return Visit(package, fetched.json(), seen["/mcp"], seen["/mcp/direct"])


class TestPythonClients:
    async def test_it_does_not_share_the_gateways_environment(self, visit: Visit) -> None:
        assert visit.installed["version"].startswith(visit.package.version.removesuffix("*"))
        assert not visit.installed["gateway"]

    async def test_it_is_served_in_the_era_that_it_chooses(self, visit: Visit) -> None:
        assert visit.code["version"] == visit.package.era
        assert visit.direct["version"] == visit.package.era

    async def test_it_sees_exactly_two_tools(self, visit: Visit) -> None:
        assert visit.code["tools"] == TWO_TOOLS

    async def test_it_finds_documentation_and_runs_a_script(self, visit: Visit) -> None:
        answers = visit.code["answers"]
        assert "async def good__add(*, a: int, b: int)" in answers["docs"]["text"]
        assert answers["run"] == {"error": False, "text": "3", "structured": None}

    async def test_it_catches_the_error_of_a_tool(self, visit: Visit) -> None:
        failed = visit.code["answers"]["failed"]
        assert failed["error"]
        assert failed["text"].splitlines()[0] == "TOOL_ERROR: good__fail: out of ink (line 1)"

    async def test_direct_mode_lists_and_calls_the_tools_themselves(self, visit: Visit) -> None:
        assert {"good__add", "good__echo", "good__fail"} <= set(visit.direct["tools"])
        assert not set(TWO_TOOLS) & set(visit.direct["tools"])
        assert visit.direct["answers"] == {
            "add": {"error": False, "text": "3", "structured": {"sum": 3}},
            "failed": {"error": True, "text": "out of ink", "structured": None},
        }


# ---------------------------------------------------------------- clients from npm


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node_modules() -> None:
    """As package.json wants them; no network when they are there already, or in npm's cache."""
    wanted = json.loads((FOLDER / "package.json").read_text())["dependencies"]
    if wanted == {name: installed_version(name) for name in wanted}:
        return
    done = await finished(BIN / "npm", "install", within_s=FETCH_S)
    assert done.code == 0, f"{', '.join(wanted)} could not be fetched from npm: {done.err}"


def installed_version(package: str) -> str:
    """ "" when it is not there."""
    with contextlib.suppress(FileNotFoundError):
        return str(json.loads((FOLDER / "node_modules" / package / "package.json").read_text())["version"])
    return ""


@dataclass(frozen=True)
class Inspector:
    """The command line of MCP Inspector in one era."""

    gateway: Running
    home: Path
    era: str

    async def run(self, method: str, *args: str, path: str = "/mcp", key: str = "") -> Finished:
        header = f"Authorization: Bearer {key or self.gateway.keys['acme']}"
        where = (self.gateway.url + path, "--transport", "http", "--protocol-era", self.era, "--header", header)
        options = ("--format", "json", "--stored-auth-only", "--method", method, *args)
        return await finished(BIN / "node", INSPECTOR, "--cli", *where, *options, HOME=str(self.home))

    async def call(self, tool: str, *args: str, path: str = "/mcp", exit_code: int = 0) -> dict[str, Any]:
        """The result of ``tools/call``; each of ``args`` is ``name=value``."""
        done = await self.run("tools/call", "--tool-name", tool, "--tool-arg", *args, path=path)
        result: dict[str, Any] = done.json()["result"]
        assert done.code == exit_code, done
        return result


@pytest.mark.usefixtures("node_modules")
class TestInspector:
    @pytest.fixture(params=["legacy", "modern"])
    def inspector(self, gateway: Running, tmp_path: Path, request: pytest.FixtureRequest) -> Inspector:
        return Inspector(gateway, tmp_path, request.param)

    async def test_it_sees_exactly_two_tools(self, inspector: Inspector) -> None:
        done = await inspector.run("tools/list")
        assert [tool["name"] for tool in done.json()["result"]["tools"]] == TWO_TOOLS

    async def test_it_is_served_in_the_era_that_was_asked_for(self, inspector: Inspector) -> None:
        result = await inspector.call("execute_code", "code=(await good__add(a=1, b=2))['sum']")
        assert result["content"] == [{"type": "text", "text": "3"}]
        assert result["_meta"][USAGE]["toolCalls"] == 1
        assert (SERVER_INFO in result["_meta"]) == (inspector.era == "modern")

    async def test_code_that_it_takes_for_a_number_is_explained(self, inspector: Inspector) -> None:
        """``code=1`` goes out as the number 1: it reads arguments as JSON where it can."""
        result = await inspector.call("execute_code", "code=1", exit_code=5)
        assert result["isError"]
        assert result["content"][0]["text"].splitlines() == [
            "INVALID_ARGUMENTS: code must be a non-empty string; it is a number",
            'hint: {"code": "1 + 1"}',
        ]

    async def test_direct_mode_calls_a_tool_itself(self, inspector: Inspector) -> None:
        result = await inspector.call("good__add", "a=1", "b=2", path="/mcp/direct")
        assert result["structuredContent"] == {"sum": 3}

    async def test_a_wrong_key_is_reported_as_such(self, inspector: Inspector) -> None:
        done = await inspector.run("tools/list", key="cmg_live_wrong")
        assert done.code == 3, done
        assert json.loads(done.err.strip().splitlines()[-1])["error"]["code"] == "auth_required"


@dataclass
class Bridge:
    """A running ``mcp-remote``, spoken to as by a client that knows stdio only."""

    process: asyncio.subprocess.Process
    log: IO[bytes]
    last_id: int = 0

    async def say(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await self.process.stdin.drain()

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The whole JSON-RPC response; what else it says meanwhile is passed over."""
        self.last_id += 1
        await self.say(id=self.last_id, method=method, params=params)
        assert self.process.stdout is not None
        answer: dict[str, Any] = {}
        async with asyncio.timeout(ANSWER_S):
            while answer.get("id") != self.last_id:
                line = await self.process.stdout.readline()
                assert line, f"mcp-remote ended: {self.said()}"
                answer = json.loads(line)
        return answer

    async def open(self) -> dict[str, Any]:
        answer = await self.ask(
            "initialize", protocolVersion=LEGACY, capabilities={}, clientInfo={"name": "stdio only", "version": "1"}
        )
        await self.say(method="notifications/initialized")
        result: dict[str, Any] = answer["result"]
        return result

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self.ask("tools/call", name=tool, arguments=arguments)
        result: dict[str, Any] = answer["result"]
        return result

    async def close(self) -> int:
        """End its input, as clients do; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(ANSWER_S):
            return await self.process.wait()

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read().decode()


@contextlib.asynccontextmanager
async def bridge(gateway: Running, path: str, home: Path) -> AsyncIterator[Bridge]:
    header = {"AUTH_HEADER": f"Bearer {gateway.keys['acme']}"}  # it fills this in: the key is in no list of processes
    with (home / "mcp-remote.log").open("w+b") as log:
        process = await asyncio.create_subprocess_exec(
            BIN / "node",
            MCP_REMOTE,
            gateway.url + path,
            *("--transport", "http-only", "--header", "Authorization:${AUTH_HEADER}"),
            env={**ENVIRONMENT, **header, "HOME": str(home)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
        try:
            yield Bridge(process, log)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.mark.usefixtures("node_modules")
class TestMcpRemote:
    async def test_it_carries_code_mode_over_stdio(self, gateway: Running, tmp_path: Path) -> None:
        async with bridge(gateway, "/mcp", tmp_path) as stdio:
            opened = await stdio.open()
            assert opened["protocolVersion"] == LEGACY
            assert opened["serverInfo"]["name"] == "codemode-gateway"
            listed = await stdio.ask("tools/list")
            assert [tool["name"] for tool in listed["result"]["tools"]] == TWO_TOOLS
            docs = await stdio.call("docs_search", query="the sum of two integers")
            assert "async def good__add(" in docs["content"][0]["text"]
            run = await stdio.call("execute_code", code="(await good__add(a=1, b=2))['sum']")
            assert run["content"] == [{"type": "text", "text": "3"}]
            assert run["_meta"][USAGE]["toolCalls"] == 1
            failed = await stdio.call("execute_code", code="await good__fail(message='out of ink')")
            assert failed["isError"]
            assert failed["content"][0]["text"].startswith("TOOL_ERROR: good__fail: out of ink")
            assert await stdio.close() == 0, stdio.said()

    async def test_it_carries_direct_mode_over_stdio(self, gateway: Running, tmp_path: Path) -> None:
        async with bridge(gateway, "/mcp/direct", tmp_path) as stdio:
            await stdio.open()
            listed = await stdio.ask("tools/list")
            assert "good__add" in [tool["name"] for tool in listed["result"]["tools"]]
            added = await stdio.call("good__add", a=1, b=2)
            assert added["structuredContent"] == {"sum": 3}
            unknown = await stdio.ask("tools/call", name="good__no_such_tool", arguments={})
            assert unknown["error"]["code"] == -32602
            assert await stdio.close() == 0, stdio.said()
