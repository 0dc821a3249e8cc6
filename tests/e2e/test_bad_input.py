"""Bad input of operators and clients: one clear line, the right code, and nothing lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.running import META, MODERN, Running, config, faulty, gateway, serving, write_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOTH = pytest.mark.parametrize("path", ["/mcp", "/mcp/direct"])
LEGACY_LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


# ---- operators: the config -------------------------------------------------------------------------------------------

WRONG = """\
version: 1
upstreams:
  good: {command: python3, argz: []}
  web: {url: "https://example.org/mcp", headers: {Authorization: "Bearer ${NO_SUCH_TOKEN}"}}
tenants:
  acme:
    upstreams: {good: ["*"], nobody: ["*"]}
    manifest: {cpuMs: -5}
    mode: on
server: {port: "80"}
"""


@pytest.mark.case("CONFIG-01")
@pytest.mark.case("CONFIG-02")
async def test_check_names_every_error_with_its_place(tmp_path: Path) -> None:
    write_config(tmp_path, WRONG)
    code, out, err = await gateway("check", folder=tmp_path)
    assert (code, out) == (1, "")
    lines = err.splitlines()
    for place, words in [
        ("gateway.yaml:3:", "argz"),
        ("gateway.yaml:4:", "NO_SUCH_TOKEN"),
        ("gateway.yaml:9:", "'on'"),
    ]:
        assert any(line.startswith(place) and words in line for line in lines), err
    assert "Traceback" not in err


@pytest.mark.case("CONFIG-02")
async def test_serve_refuses_an_unset_variable_and_starts_nothing(tmp_path: Path) -> None:
    write_config(
        tmp_path, config({"web": {"url": "https://example.org/mcp", "headers": {"X-Key": "${NO_SUCH_TOKEN}"}}})
    )
    code, _, err = await gateway("serve", folder=tmp_path)
    assert code == 1
    assert one_line(err).startswith("gateway.yaml:")
    assert "NO_SUCH_TOKEN" in err
    assert os.listdir(tmp_path) == ["gateway.yaml"]


async def test_an_unknown_kernel_engine_is_named(tmp_path: Path) -> None:
    write_config(tmp_path, config({}, kernels={"python": {"engine": "warp"}}))
    for code, _, err in await asyncio.gather(*(gateway(command, folder=tmp_path) for command in ("check", "serve"))):
        assert code == 1
        line = one_line(err)
        assert line.startswith("gateway.yaml:")
        assert "kernels.python.engine" in line
        assert "'warp'" in line
        assert "monty" in line, "it says what there is"


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    assert "Traceback" not in line
    return line


# ---- operators: sockets and files ------------------------------------------------------------------------------------


async def refused(folder: Path, *prefix: str, **sections: Any) -> str:
    """``gateway serve`` ends by itself with exit code 1; its one line."""
    write_config(folder, config({"good": faulty()}, **sections))
    code, out, err = await gateway("serve", folder=folder, prefix=prefix)
    assert (code, out) == (1, ""), err
    return one_line(err)


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        lines = await asyncio.gather(
            *(refused(made(tmp_path / name), **{name: {"port": port}}) for name in ("server", "admin"))
        )
    assert lines == [f"cannot listen on 127.0.0.1:{port}: Address already in use"] * 2


LEDGER = ("ledger", {"metering": {"ledger": "sqlite:///folder/it.db"}})
KEYS = ("key store", {"state": {"keys": "sqlite:///folder/it.db"}})


async def test_a_directory_in_the_place_of_a_database_is_named_and_left_alone(tmp_path: Path) -> None:
    async def check(what: str, sections: Mapping[str, Any]) -> None:
        folder = made(tmp_path / what)
        precious = made(folder / "folder" / "it.db") / "precious"
        precious.write_text("still here")
        line = await refused(folder, **sections)
        assert line.startswith(what)
        assert str(precious.parent) in line
        assert precious.read_text() == "still here"

    await asyncio.gather(check(*LEDGER), check(*KEYS))


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    async def check(what: str, sections: Mapping[str, Any]) -> None:
        folder = made(tmp_path / what)
        locked = made(folder / "folder", mode=0o500)
        line = await refused(folder, *ordinary_user(), **sections)
        assert line.startswith(what)
        assert str(locked) in line
        assert "denied" in line or "unable to open" in line

    await asyncio.gather(check(*LEDGER), check(*KEYS))


def made(folder: Path, mode: int = 0o700) -> Path:
    folder.mkdir(parents=True, mode=mode)
    return folder


def ordinary_user() -> list[str]:
    """A command prefix under which file modes count, also for root."""
    if os.geteuid():
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root ignores file modes, and there is no setpriv to change that")
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]


async def test_a_damaged_key_store_is_named_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"not a database, " * 1_000)
    line = await refused(tmp_path)
    assert line.startswith("key store")
    assert str(tmp_path / "gateway.db") in line
    assert (tmp_path / "gateway.db").read_bytes() == b"not a database, " * 1_000
    code, _, err = await gateway("keys", "create", "--tenant", "acme", folder=tmp_path)
    assert code == 1
    assert one_line(err) == line


async def test_keys_create_refuses_what_it_cannot_grant(tmp_path: Path) -> None:
    write_config(tmp_path, config({}))

    async def check(exit_code: int, words: str, *arguments: str) -> None:
        code, out, err = await gateway("keys", "create", *arguments, folder=tmp_path)
        assert (code, out) == (exit_code, ""), err
        assert words in err
        assert "Traceback" not in err

    await asyncio.gather(
        check(1, "unknown tenant 'nobody'; the config has acme", "--tenant", "nobody"),
        check(2, "must be a duration such as", "--tenant", "acme", "--expires", "soon"),
        check(1, "its lifetime must be above zero", "--tenant", "acme", "--expires", "0s"),
        check(1, "unknown scope 'root'", "--tenant", "acme", "--scopes", "root"),
    )
    code, out, _ = await gateway("keys", "list", "--json", folder=tmp_path)
    assert (code, json.loads(out)) == (0, [])


# ---- clients: HTTP ---------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with serving(tmp_path_factory.mktemp("bad_input"), config({"good": faulty()})) as running:
        await running.wait_for(good="ready")
        yield running
        # whatever came, it serves as before and has nothing to complain about
        assert (await running.run("await good__echo(n=1)")).json() == {"n": 1}
        assert not [line for line in running.log if "Traceback" in line or '"level":"error"' in line]


@BOTH
@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"Host": "evil.example"}, 421, "Host"),
        ({"Origin": "https://evil.example"}, 403, "Origin"),
        ({"Content-Type": "text/plain"}, 415, "Content-Type"),
        ({"Accept": "text/html"}, 406, "Accept"),
        ({"Authorization": ""}, 401, "API key"),
        ({"Authorization": "Bearer cmg_live_nonsense"}, 401, "API key"),
        ({"Authorization": "Basic YWNtZTpwYXNz"}, 401, "API key"),
        ({"X-API-Key": "cmg_live_second"}, 400, "one credential"),
    ],
    ids=lambda value: next(iter(value.items()))[0] + str(value) if isinstance(value, dict) else None,
)
async def test_http_refusals(headers: Mapping[str, str], status: int, words: str, path: str, running: Running) -> None:
    response = await running.post(LEGACY_LIST, path=path, headers=headers)
    assert response.status_code == status
    error = response.json()["error"]
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert response.headers.get("www-authenticate", "").startswith("Bearer") == (status == 401)


@BOTH
async def test_a_request_without_a_key_is_refused(path: str, running: Running) -> None:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    response = await running.client.post(running.url + path, json=LEGACY_LIST, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"


@BOTH
async def test_x_api_key_works_too(path: str, running: Running) -> None:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "X-API-Key": running.keys["acme"],
    }
    response = await running.client.post(running.url + path, json=LEGACY_LIST, headers=headers)
    assert response.status_code == 200
    assert response.json()["result"]["tools"]


@BOTH
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_only_post_is_served(method: str, path: str, running: Running) -> None:
    headers = {"Authorization": f"Bearer {running.keys['acme']}", "Accept": "text/event-stream"}
    response = await running.client.request(method, running.url + path, headers=headers)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


@BOTH
async def test_a_body_of_five_mebibytes_is_refused(path: str, running: Running) -> None:
    response = await running.post(b'{"padding":"' + b"x" * (5 * 1024 * 1024) + b'"}', path=path)
    assert response.status_code == 413
    assert "4194304 bytes" in response.json()["error"]["message"]


@BOTH
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"jsonrpc":"2.0","id":1,', -32700),
        (b"\xff\xfe{}", -32700),
        (b"", -32700),
        (b'{"params":' * 100_000, -32700),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b"[]", -32600),
        (b'"ping"', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
    ],
    ids=lambda value: value[:44].decode("latin-1") if isinstance(value, bytes) else None,
)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_bodies_that_are_no_single_request(era: str, body: bytes, code: int, path: str, running: Running) -> None:
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "ping"} if era == "modern" else {}
    response = await running.post(body, path=path, headers=headers)
    assert response.status_code == 400
    answer = response.json()
    assert answer["error"]["code"] == code
    assert answer["id"] is None
    assert "\n" not in answer["error"]["message"]


@BOTH
async def test_an_unknown_method_is_404_in_the_modern_era_and_200_before(path: str, running: Running) -> None:
    old = await running.post({"jsonrpc": "2.0", "id": "a", "method": "tools/guess"}, path=path)
    meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
    new = await running.post(
        {"jsonrpc": "2.0", "id": "a", "method": "tools/guess", "params": {"_meta": meta}},
        path=path,
        headers={"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/guess"},
    )
    assert (old.status_code, new.status_code) == (200, 404)
    for response in (old, new):
        assert response.json()["error"]["code"] == -32601
        assert response.json()["id"] == "a"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("docs_search", {"query": 3}, "query must be a string"),
        ("docs_search", {"names": [1]}, "names must be a list of strings"),
        ("docs_search", {"includeSchemas": "yes"}, "includeSchemas must be true or false"),
        ("docs_search", {"limit": 5}, "unknown argument 'limit'"),
        ("execute_code", {}, "code must be a non-empty string; it is missing"),
        ("execute_code", {"code": ["1"]}, "code must be a non-empty string; it is an array"),
        ("execute_code", {"code": "1", "timeout": 5}, "unknown argument 'timeout'"),
    ],
)
async def test_wrong_arguments_are_told_to_the_model(
    name: str, arguments: dict[str, Any], words: str, running: Running
) -> None:
    answer = await running.call(name, arguments)
    assert answer.is_error
    first, *rest = answer.text.splitlines()
    assert first.startswith("INVALID_ARGUMENTS: ")
    assert words in first
    assert len(rest) <= 1


@BOTH
@pytest.mark.parametrize(
    "params",
    [{"name": "execute_code", "arguments": [1]}, {"name": 7, "arguments": {}}, {"arguments": {}}, {"name": "no_tool"}],
    ids=str,
)
async def test_calls_that_no_model_could_mend_are_errors_of_the_protocol(
    params: dict[str, Any], path: str, running: Running
) -> None:
    response = await running.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, path=path)
    assert response.status_code == 200
    error = response.json()["error"]
    assert error["code"] == -32602
    assert "\n" not in error["message"]


async def test_wrong_arguments_of_a_tool_never_reach_it(running: Running) -> None:
    answer = await running.run("await good__add(a='one', b=2)")
    assert answer.is_error
    assert answer.text.startswith("INVALID_ARGUMENTS: good__add: a: must be an integer")
    assert "async def good__add(*, a: int, b: int)" in answer.text, "it shows what is right"
