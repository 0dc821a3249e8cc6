"""Other clients' files: no server is lost, no literal secret is left, and the block loads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import jsonc
from gateway.config.importer import Imported, import_clients
from gateway.config.literal_secrets import secret_name, secret_value
from gateway.config.loader import ConfigError, loads
from gateway.config.model import GatewayConfig

pytestmark = pytest.mark.case("CONFIG-05")


def load_block(imported: Imported, **env: str) -> GatewayConfig:
    variables = {name: f"value-of-{name}" for name in imported.variables} | env
    return loads(f"version: 1\n{imported.yaml}tenants: {{}}\n", "imported.yaml", variables)


def servers(**entries: Any) -> str:
    return json.dumps({"mcpServers": entries})


def test_a_desktop_client_s_file_becomes_readable_yaml() -> None:
    imported = import_clients("""
{
  "mcpServers": {
    "files": {"command": "npx", "args": ["-y", "@example/files@1.2", "/srv/my docs"], "cwd": "/srv"},
    "forge": {"command": "docker", "args": ["run", "-i"], "env": {"FORGE_TOKEN": "abc", "LEVEL": 3, "ON": "on"}},
    "wiki": {"url": "https://wiki.example/mcp", "headers": {"Authorization": "Bearer abc", "X-Team": "red"}},
    "idle": {"type": "http", "url": "https://idle.example/mcp", "disabled": true}
  }
}""")
    assert (
        imported.yaml
        == """\
upstreams:
  files:
    command: npx
    args: [-y, "@example/files@1.2", "/srv/my docs"]
    cwd: /srv
  forge:
    command: docker
    args: [run, -i]
    env:
      FORGE_TOKEN: "${FORGE_TOKEN}"
      LEVEL: "3"
      "ON": "on"
  wiki:
    url: "https://wiki.example/mcp"
    headers:
      Authorization: "Bearer ${WIKI_AUTHORIZATION}"
      X-Team: red
  idle:
    url: "https://idle.example/mcp"
    disabled: true
"""
    )
    assert imported.variables == ("FORGE_TOKEN", "WIKI_AUTHORIZATION")
    assert imported.notes == (
        "forge: the value of FORGE_TOKEN looks secret: set variable FORGE_TOKEN",
        "wiki: the value of Authorization looks secret: set variable WIKI_AUTHORIZATION",
    )
    assert sorted(load_block(imported).upstreams) == ["files", "forge", "idle", "wiki"]


def test_an_editor_s_file_with_inputs_comments_and_trailing_commas() -> None:
    imported = import_clients("""{
  // what the editor asks for
  "inputs": [{"type": "promptString", "id": "wiki-key", "password": true},],
  "servers": {
    "wiki": {"type": "stdio", "command": "wiki", /* two
      lines */ "env": {"WIKI_KEY": "${input:wiki-key}", "HOME_DIR": "${userHome}", "URL": "http://a//b"},
      "envFile": ".env"},
    "web": {"type": "http", "url": "https://${env:WEB_HOST}/mcp", "headers": {"X-Api-Key": "${WEB_KEY:-none}"},},
  },
}""")
    config = load_block(imported, WIKI_KEY="k", WEB_HOST="web.example", WORKSPACE="w")
    wiki: Any = config.upstreams["wiki"]
    web: Any = config.upstreams["web"]
    assert wiki.env == {"WIKI_KEY": "k", "HOME_DIR": "value-of-USER_HOME", "URL": "http://a//b"}
    assert (web.url, web.headers) == ("https://web.example/mcp", {"X-Api-Key": "none"})
    assert imported.variables == ("WIKI_KEY", "USER_HOME", "WEB_HOST")
    assert "input wiki-key: set variable WIKI_KEY instead" in imported.notes
    assert "wiki: not imported: envFile" in imported.notes
    assert "wiki: userHome is filled in by the editor: set a variable" in imported.notes


def test_settings_that_hold_servers_below_mcp_and_other_things_beside() -> None:
    imported = import_clients('{"editor.fontSize": 12, "mcp": {"servers": {"a": {"command": "a"}}}, "mcpServers": {}}')
    assert list(load_block(imported).upstreams) == ["a"]
    assert imported.notes == ("not imported: editor.fontSize",)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("text", "it is not an object"),
        ({}, "it has neither a command nor a URL"),
        ({"command": "x", "url": "http://x"}, "it has both a command and a URL"),
        ({"command": "x", "type": "telepathy"}, "its type is not known here"),
        ({"command": ["x"]}, "command holds something that is no text"),
        ({"command": ""}, "command must not be empty"),
        ({"command": "x", "args": "-y"}, "args is not a list"),
        ({"command": "x", "env": []}, "env is not an object"),
        ({"command": "x", "env": {"A=B": "c"}}, 'env."A=B" is not a usable name of an environment variable'),
        ({"command": "x", "env": {"${A}": "c"}}, "a name in env is not usable"),
        ({"command": "x", "args": ["\0"]}, "args holds characters that are no text"),
        ({"url": "ftp://x"}, "url must be a URL that begins with http:// or https://, without spaces"),
        ({"url": "http://x:99999"}, "url must have a host and, if any, a port from 1 to 65535"),
        ({"url": "http://x", "headers": {"a b": "c"}}, 'headers."a b" is not a usable header name'),
    ],
)
def test_a_server_that_cannot_be_imported_is_named_with_the_reason(entry: Any, reason: str) -> None:
    imported = import_clients(servers(good={"command": "x"}, bad=entry))
    assert imported.notes == (f"bad: left out: {reason}",)
    assert list(load_block(imported).upstreams) == ["good"]


def test_a_server_of_the_old_event_stream_transport_keeps_its_type() -> None:
    imported = import_clients(servers(old={"type": "sse", "url": "http://old.example/sse"}))
    upstream = load_block(imported).upstreams["old"]
    assert (upstream.type, upstream.disabled, imported.notes) == ("sse", False, ())


def test_names_become_legal_and_unique_also_in_scripts() -> None:
    names = ["My Server", "my__x", "a-b", "a_b", "on", "123", "  ", "é", "_x_", "n" * 80, "n" * 81, "a.b"]
    imported = import_clients(servers(**{name: {"command": "x", "args": [name]} for name in names}))
    upstreams: Any = load_block(imported).upstreams
    assert [upstream.args[0] for upstream in upstreams.values()] == names
    legal = ["My-Server", "my_x", "a-b", "a_b-2", "on", "123", "server", "server-2", "x"]
    assert list(upstreams) == [*legal, "n" * 56, "n" * 56 + "-2", "a-b-3"]
    assert '"My Server": named My-Server here, since its name is not usable or taken' in imported.notes


def test_a_secret_is_shared_by_name_only_while_it_is_the_same() -> None:
    def entry(value: str) -> dict[str, Any]:
        return {"command": "x", "env": {"API_KEY": value}}

    imported = import_clients(servers(a=entry("one"), b=entry("one"), c=entry("two"), d={"url": "http://d/?api_key=x"}))
    upstreams: Any = load_block(imported, API_KEY="one", C_API_KEY="two").upstreams
    assert [upstreams[name].env["API_KEY"] for name in "abc"] == ["one", "one", "two"]
    assert imported.variables == ("API_KEY", "C_API_KEY", "D_API_KEY")


def test_no_literal_secret_is_left_wherever_it_stood() -> None:
    secret = "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1"
    imported = import_clients(
        servers(
            a={
                "command": "x",
                "args": [
                    "--token",
                    "short-one",
                    "--key=short-two",
                    secret,
                    "-e",
                    "DB_PASSWORD=short-three",
                    f"X={secret}",
                ],
                "env": {"PLAIN": secret, "DB_PASSWORD": "short-four"},
            },
            b={
                "url": f"https://user:short-five@h.example/mcp?apiKey=short-six&q={secret}&page=1",
                "headers": {"X-Custom": secret, "Cookie": "short-seven", "Authorization": "Basic short-eight"},
            },
        )
    )
    everything = "\n".join([imported.yaml, *imported.variables, *imported.notes])
    assert "short-" not in everything
    assert secret not in everything
    assert "page=1" in imported.yaml
    b: Any = load_block(imported).upstreams["b"]
    assert b.headers["Authorization"] == "Basic value-of-B_AUTHORIZATION"


def test_dollars_of_the_other_client_mean_what_they_meant() -> None:
    values = ["$HOME", "$$", "${not a variable}", "$${X}", "${", "${file:/etc/passwd}", "a${X}b", "${input:my-key}"]
    imported = import_clients(servers(a={"command": "x", "args": values}))
    a: Any = load_block(imported, X="[x]", MY_KEY="[key]").upstreams["a"]
    assert list(a.args) == [*values[:6], "a[x]b", "[key]"]
    assert imported.variables == ("X", "MY_KEY")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1:1: not valid JSON: Expecting value"),
        ("{\n  // c\n  'a': 1}", "3:3: not valid JSON: Expecting property name enclosed in double quotes"),
        ('{"a": 1 /* open\n}', "1:9: not valid JSON: a comment is not closed"),
        ('{"a": [1,, 2]}', "1:10: not valid JSON: Expecting value"),
        ('{"a": [,]}', "1:8: not valid JSON: Expecting value"),
        ('{"a": "b\n"}', "1:9: not valid JSON: Invalid control character at"),
        ('{"a": NaN}', "1:7: not valid JSON: a number that cannot be used"),
        ('{"a": ' + "9" * 5000 + "}", "1:7: not valid JSON: a number that cannot be used"),
        ("[" * 100_000, "1:33: nested too deeply: 32 levels at most"),
        ("[]", "1:1: there is neither mcpServers nor servers in it"),
        ('{"mcpServers": []}', "1:1: there is neither mcpServers nor servers in it"),
        (" " * (1 << 20) + "{}", "1:1: it is larger than 1024 KiB"),
    ],
)
def test_what_is_no_client_config_is_one_clear_error(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        import_clients(text, "mcp.json")
    (found,) = str(caught.value).splitlines()
    assert found.startswith(f"mcp.json:{problem}")


def test_a_server_that_is_given_twice_is_noted() -> None:
    imported = import_clients('{"mcpServers": {"a": {"command": "one"}, "a": {"command": "two"}}}')
    assert imported.notes == ("a is given twice in one object; the last one counts",)
    assert "two" in imported.yaml


def test_comments_and_commas_inside_of_texts_stay() -> None:
    text = '\ufeff{"a": "// no, /* no */ ,}", "b": "\\"//\\\\", /**/ "c": [1, 2,], } // end'
    assert jsonc.parse(text) == ({"a": "// no, /* no */ ,}", "b": '"//\\', "c": [1, 2]}, ())


@pytest.mark.parametrize(
    "name", ["GITHUB_TOKEN", "api-key", "X-Api-Key", "client_secret", "PGPASSWORD", "Authorization"]
)
def test_names_of_secrets(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize("name", ["HOME", "LOG_LEVEL", "X-Team", "Accept", "--verbose", "PATH"])
def test_names_of_other_things(name: str) -> None:
    assert not secret_name(name)


@pytest.mark.parametrize(
    "value",
    ["sk-abcdefghij", "ghp_0123456789abcdef", "0f5d8c1e9b7a46d2a3c4e5f60718293a", "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1"],
)
def test_values_that_look_random(value: str) -> None:
    assert secret_value(value)


@pytest.mark.parametrize(
    "value",
    [
        *("@example/server-filesystem", "example-server==2025.1.14", "/Users/Someone/Documents/Project-2024/src"),
        *("production", "true", "8080", "https://example.com/mcp", "eu-central-1", "ghcr.io/example/server:v1.2.3"),
    ],
)
def test_values_that_are_words_paths_and_versions(value: str) -> None:
    assert not secret_value(value)


# ---------------------------------------------------------------- whatever the file holds

words = st.text(max_size=12) | st.sampled_from(
    [
        *("on", "0123", "12:30", "null", "~", "${A}", "$${A}", "${a b}", "${input:x-y}", "#", ": ", "- ", "<<", "a\nb"),
        *("\u2028", "\ud800", "\0", "\x7f", "\ufeff", "\U0001f600", "'", '"', "\\", "{", "}", "[", "!x", "&x", "*x"),
        *("--token", "k=v", "", " ", "-", "--", "?", "=", "@", "`", "%", "|", ">"),
    ]
)
plain = words | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False)
maps = st.dictionaries(words, plain, max_size=4)
stdio = st.fixed_dictionaries(
    {"command": words}, optional={"args": st.lists(plain, max_size=4), "env": maps, "cwd": words, "x": plain}
)
http = st.fixed_dictionaries(
    {"url": st.sampled_from(["http://a.example/mcp", "https://${H}/", "http://a?b=c&key=d"]) | words},
    optional={"headers": maps, "type": st.sampled_from(["http", "sse"]) | words, "disabled": plain},
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(words, stdio | http | plain, max_size=4))
def test_whatever_was_imported_loads_and_every_server_is_accounted_for(entries: dict[str, Any]) -> None:
    imported = import_clients(json.dumps({"mcpServers": entries}))
    config = load_block(imported, H="h.example", A="http://a.example", X_Y="http://b.example")
    left_out = [note for note in imported.notes if ": left out: " in note]
    assert len(config.upstreams) + len(left_out) == len(entries)
