"""The command line from the first file to the bill: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.companions import eventually
from tests.running import Running, config, faulty, gateway, serving, write_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPOSITORY = Path(__file__).parents[2]
KEY = re.compile(r"cmg_[A-Za-z0-9_]+")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    content = config({"good": faulty()}, ["acme", "beta"])
    async with serving(tmp_path_factory.mktemp("commands"), content) as running:
        await running.wait_for(good="ready")
        yield running


async def test_init_writes_a_config_that_its_own_advice_works_on(tmp_path: Path) -> None:
    code, out, err = await gateway("init", folder=tmp_path)
    assert (code, out) == (0, "")
    advice = err.splitlines()[-1].removeprefix("next: ").split(", ")
    assert advice[-1] == "gateway serve"
    code, out, err = await gateway(*advice[0].split()[1:], folder=tmp_path)
    assert (code, out) == (0, ""), err
    code, out, err = await gateway(*advice[1].split()[1:], folder=tmp_path)
    assert code == 0, err
    assert KEY.fullmatch(out.strip())
    code, out, err = await gateway("init", folder=tmp_path)
    assert (code, out) == (1, "")
    assert err == "gateway.yaml exists already; --force overwrites it\n"


async def test_a_key_is_printed_once_and_lists_never_show_it(running: Running) -> None:
    code, key, err = await gateway("keys", "create", "--tenant", "beta", "--name", "laptop", folder=running.folder)
    assert code == 0
    assert KEY.fullmatch(key.strip())
    assert key.strip() not in err
    table, rows = await asyncio.gather(
        gateway("keys", "list", folder=running.folder),
        gateway("keys", "list", "--tenant", "beta", "--json", folder=running.folder),
    )
    secret = key.strip().split("_")[-1]
    for code, out, err in (table, rows):
        assert code == 0
        assert secret not in out + err
    assert "laptop" in table[1]
    (row,) = [row for row in json.loads(rows[1]) if row["name"] == "laptop"]
    assert (row["tenant"], row["state"], row["lastUsed"]) == ("beta", "live", None)
    assert row["expires"] - row["created"] == 90 * 86_400
    stored = (running.folder / "gateway.db").read_bytes() + (running.folder / "gateway.db-wal").read_bytes()
    assert secret.encode() not in stored


async def test_a_revoked_key_is_refused_within_a_second_and_a_rotated_one_is_replaced(running: Running) -> None:
    _, key, err = await gateway("keys", "create", "--tenant", "beta", folder=running.folder)
    key_id = err.split()[1]
    running.keys["old"] = key.strip()
    await eventually(lambda: accepted(running, "old"))

    code, key, err = await gateway("keys", "rotate", key_id, "--overlap", "0", folder=running.folder)
    rotated = time.monotonic()
    assert code == 0, err
    running.keys["new"] = key.strip()
    await eventually(lambda: refused(running, "old"))
    assert time.monotonic() - rotated <= 1
    assert await accepted(running, "new")

    new_id = err.split()[1]
    code, out, err = await gateway("keys", "revoke", new_id, folder=running.folder)
    revoked = time.monotonic()
    assert (code, out) == (0, "")
    await eventually(lambda: refused(running, "new"))
    assert time.monotonic() - revoked <= 1
    # and the others still work
    assert await accepted(running, "beta")
    code, out, err = await gateway("keys", "revoke", "nobody's", folder=running.folder)
    assert (code, out, err) == (1, "", 'there is no key "nobody\'s"\n')


async def accepted(running: Running, key: str) -> bool:
    return (await running.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, tenant=key)).status_code == 200


async def refused(running: Running, key: str) -> bool:
    return (await running.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, tenant=key)).status_code == 401


async def test_call_then_usage(running: Running) -> None:
    url = ("--url", running.url + "/mcp")
    key = running.keys["acme"]
    by_option, from_stdin, search, failing, wrong_key, nobody = await asyncio.gather(
        gateway("call", *url, "--key", running.keys["acme"], "execute_code", "--code", "1 + 1", folder=running.folder),
        gateway(
            "call",
            *url,
            "--usage",
            "execute_code",
            folder=running.folder,
            stdin=b"await good__add(a=1, b=2)",
            GATEWAY_KEY=key,
        ),
        gateway("call", *url, "docs_search", "--query", "add", folder=running.folder, GATEWAY_KEY=key),
        gateway("call", *url, "execute_code", "--code", "1 / 0", folder=running.folder, GATEWAY_KEY=key),
        gateway("call", *url, "docs_search", folder=running.folder, GATEWAY_KEY="cmg_live_wrong"),
        gateway("call", "--url", "http://127.0.0.1:1/mcp", "docs_search", folder=running.folder, GATEWAY_KEY=key),
    )
    assert by_option == (0, "2\n", "")
    code, out, err = from_stdin
    assert (code, json.loads(out)) == (0, {"sum": 3})
    assert json.loads(err)["toolCalls"] == 1
    assert search[0] == 0
    assert "good__add" in search[1]
    assert (failing[0], failing[1].split(":")[0]) == (1, "RUNTIME_ERROR")
    for code, out, err in (wrong_key, nobody):
        assert (code, out, err.count("\n")) == (1, "", 1), err
    assert "a valid API key is required" in wrong_key[2]

    await running.admin_get("/api/usage")  # writes what still waits
    table, as_json, as_csv, other = await asyncio.gather(
        *(
            gateway("usage", "--tenant", "acme", "--since", "1h", "--format", form, folder=running.folder)
            for form in ("table", "json", "csv")
        ),
        gateway("usage", "--tenant", "nobody", folder=running.folder),
    )
    (row,) = json.loads(as_json[1])
    assert (row["tenant"], row["requests"], row["errors"], row["toolCalls"]) == ("acme", 4, 1, 1)
    assert row["saved"] == row["tokensDirect"] - row["tokensCode"]
    (line,) = csv.DictReader(io.StringIO(as_csv[1]))
    assert line == {name: str(value) for name, value in row.items()}
    cells = table[1].split()
    for name in ("tenant", "requests", "acme", f"{row['tokensCode']:,}", f"{row['saved']:,}"):
        assert name in cells
    assert other[0] == 1
    assert other[2] == "unknown tenant 'nobody'; the config has acme, beta\n"


CLAUDE_DESKTOP = {
    "mcpServers": {
        "GitHub": {
            "command": "npx",
            "args": ["-y", "server-github"],
            "env": {"GITHUB_TOKEN": "ghp_1234567890abcdefgh"},
        },
        "search": {
            "url": "https://search.example/mcp",
            "headers": {"Authorization": "Bearer sk-live-abcdefghijklmnop"},
        },
    }
}


async def test_import_turns_a_clients_json_into_upstreams_without_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "claude_desktop_config.json").write_text(json.dumps(CLAUDE_DESKTOP))
    code, out, err = await gateway("import", "claude_desktop_config.json", folder=tmp_path)
    assert code == 0, err
    assert "ghp_" not in out + err
    assert "sk-live" not in out + err
    variables = err.splitlines()[-1].rpartition(": ")[2].split(", ")
    assert len(variables) == 2
    tenants = 'tenants: {acme: {upstreams: {GitHub: ["*"], search: ["*"]}}}\n'
    write_config(tmp_path, "version: 1\n" + out + tenants)
    with_all, with_none = await asyncio.gather(
        gateway("check", folder=tmp_path, stdin=None, **dict.fromkeys(variables, "x")),
        gateway("check", folder=tmp_path),
    )
    assert with_all[0] == 0, with_all[2]
    assert with_none[0] == 1
    for variable in variables:
        assert variable in with_none[2]

    code, out, err = await gateway("import", "-", folder=tmp_path, stdin=b"{} trailing")
    assert (code, out, err.count("\n")) == (1, "", 1)


async def test_doctor_schema_and_version(tmp_path: Path) -> None:
    doctor, schema, version = await asyncio.gather(
        *(gateway(*arguments, folder=tmp_path) for arguments in (("doctor", "--json"), ("schema",), ("--version",)))
    )
    assert doctor[0] == 0
    (monty,) = [engine for engine in json.loads(doctor[1]) if engine["engine"] == "monty"]
    assert monty["available"] is True
    assert monty["isolation"]
    assert schema == (0, (REPOSITORY / "gateway.schema.json").read_text(), "")
    assert version[0] == 0
    assert version[1].startswith("codemode-gateway ")


async def test_exit_codes_of_usage_errors(tmp_path: Path) -> None:
    lines: list[tuple[str, ...]] = [(), ("keys",), ("guess",), ("serve", "--prot", "1"), ("usage", "--format", "xml")]
    for code, out, err in await asyncio.gather(*(gateway(*line, folder=tmp_path) for line in lines)):
        assert code == 2
        assert "Traceback" not in out + err
    code, out, err = await gateway("check", folder=tmp_path)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("gateway.yaml:")


# ---- secrets ---------------------------------------------------------------------------------------------------------

CANARIES = {
    "environment": "canary-environment-5f2b",
    "argument": "canary-argument-5f2b",
    "header": "canary-header-5f2b",
    "userinfo": "canary-userinfo-5f2b",
    "query": "canary-query-5f2b",
    "admin": "canary-admin-5f2b",
    "manifest": "canary-manifest-5f2b",
    "pepper": "canary-pepper-5f2b-long-enough-to-be-one",
}


async def test_no_secret_is_ever_shown(tmp_path: Path) -> None:
    telling = 'echo "my token is $API_TOKEN, my key $2" >&2; exit 3'
    upstreams: dict[str, Any] = {
        "telling": {
            "command": "sh",
            "args": ["-c", telling, "telling", "--api-key", CANARIES["argument"]],
            "env": {"API_TOKEN": "${CANARY_ENVIRONMENT}"},
        },
        "closed": {
            "url": f"http://user:{CANARIES['userinfo']}@127.0.0.1:1/mcp?key={CANARIES['query']}",
            "headers": {"Authorization": f"Bearer {CANARIES['header']}"},
        },
        "good": faulty(env={"API_TOKEN": "${CANARY_ENVIRONMENT}"}),
    }
    content = config(
        upstreams,
        {"acme": {"manifest": {"env": {"SECRET": CANARIES["manifest"]}}}},
        admin={"port": 0, "token": CANARIES["admin"]},
        state={"pepper": CANARIES["pepper"]},
    )
    shown = []
    async with serving(tmp_path, content, CANARY_ENVIRONMENT=CANARIES["environment"]) as running:
        bearer = {"Authorization": f"Bearer {CANARIES['admin']}"}

        async def page(path: str) -> str:
            return (await running.client.get(running.admin + path, headers=bearer)).text

        async def all_tried() -> bool:
            rows = json.loads(await page("/api/upstreams"))["upstreams"]
            return {row["name"]: row["state"] for row in rows} == {"telling": "down", "closed": "down", "good": "ready"}

        await eventually(all_tried, within_s=20)
        shown.append(await running.search("anything"))
        shown.append((await running.run("await call_tool('closed__x', {})")).text)
        (wrong,) = [await running.post(b"{", headers={"Authorization": "Bearer " + running.keys["acme"][:-1] + "0"})]
        assert wrong.status_code == 401
        pages = ("/api/upstreams", "/api/tenants", "/api/usage", "/metrics", "/readyz")
        shown += [await page(path) for path in pages]
        assert "my token is" in shown[2], "the operator sees what the command said"
        secrets = [*CANARIES.values(), running.keys["acme"], running.keys["acme"].split("_")[-1]]
        shown += running.log
    check = await gateway("check", "--connect", folder=tmp_path, CANARY_ENVIRONMENT=CANARIES["environment"])
    assert check[0] == 1
    shown += [check[1], check[2], *running.log]
    for secret in secrets:
        assert not [text for text in shown if secret in text], secret
