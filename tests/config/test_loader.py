"""Files: what loads, what it means, and that a bad file is one clear error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.loader import MAX_BYTES, ConfigError, Problem, load, loads, sqlite_path
from gateway.config.model import HttpUpstream, StdioUpstream

EXAMPLE = Path(__file__).parent / "example.yaml"
MINIMAL = "version: 1\nupstreams: {}\ntenants: {}\n"


def problems(text: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loads(text, "f.yaml", env)
    return [str(problem) for problem in caught.value.problems]


def test_a_file_of_every_section_means_what_it_says() -> None:
    loaded = load(EXAMPLE, {"WIKI_TOKEN": "t-1"})
    config = loaded.config
    assert (config.server.port, config.server.max_body, config.admin.token) == (8181, 1024 * 1024, "")
    assert isinstance(config.upstreams["files"], StdioUpstream)
    assert config.upstreams["files"].args == ("-y", "@example/files", "/srv/docs")
    wiki = config.upstreams["wiki"]
    assert isinstance(wiki, HttpUpstream)
    assert (wiki.headers, wiki.call_timeout) == ({"Authorization": "Bearer t-1"}, 30.0)
    assert config.upstreams["legacy"].prefix == ""
    assert config.tenants["acme"].upstreams["wiki"] == ("search_*", "!search_all")
    assert config.tenants["acme"].manifest.memory_limit_bytes == 64 * 1024 * 1024
    assert config.kernels["javascript"].queue_timeout == 0.25


def test_only_version_upstreams_and_tenants_are_required_and_the_defaults_fit_together() -> None:
    text = "version: 1\nupstreams: {a: {command: a}}\ntenants: {t: {upstreams: {a: ['*']}}}\n"
    config = loads(text, "f.yaml", {})
    assert (config.server.port, config.admin.port, config.server.host) == (8080, 9090, "127.0.0.1")
    assert config.tenants["t"].manifest.allowed_hosts == ()
    assert config.tenants["t"].kernel in config.kernels
    assert problems("{}") == [
        "f.yaml:1:1: version: is required",
        "f.yaml:1:1: upstreams: is required",
        "f.yaml:1:1: tenants: is required",
    ]


def test_relative_paths_begin_in_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "gateway.yaml").write_text(MINIMAL)
    monkeypatch.chdir(tmp_path)
    loaded = load("sub/gateway.yaml", {})
    assert (loaded.path, loaded.folder) == (Path("sub/gateway.yaml"), tmp_path / "sub")
    assert sqlite_path("sqlite:///gateway.db", loaded.folder) == tmp_path / "sub" / "gateway.db"
    assert sqlite_path("sqlite:////var/lib/g.db", loaded.folder) == Path("/var/lib/g.db")
    with pytest.raises(ValueError, match="must be sqlite:///FILE"):
        sqlite_path("postgresql://x", loaded.folder)


@pytest.mark.parametrize("url", ["sqlite://gateway.db", "sqlite:///", "sqlite:///:memory:", "sqlite:///?mode=ro"])
def test_a_store_that_would_not_be_the_file_that_is_meant_is_refused(url: str) -> None:
    assert "must be sqlite:///FILE" in problems(MINIMAL + f"state: {{keys: '{url}'}}")[0]


@pytest.mark.parametrize("key", ["public_url", "allowed_origins", "max_body"])
def test_snake_case_is_no_second_spelling(key: str) -> None:
    assert "unknown key; did you mean" in problems(MINIMAL + f"server: {{{key}: x}}")[0]


def test_one_line_says_the_first_problem_and_how_many_more_there_are() -> None:
    error = ConfigError((Problem("f", 9, 1, "b", "is bad"), Problem("f", 2, 3, "a", "is worse")))
    assert error.one_line() == "f:2:3: a: is worse (and 1 more)"
    assert str(error) == "f:2:3: a: is worse\nf:9:1: b: is bad"
    assert ConfigError((Problem("f", 1, 1, "", "it is empty"),)).one_line() == "f:1:1: it is empty"


def test_a_missing_value_of_a_list_or_mapping_is_reported_at_its_key() -> None:
    assert problems("version: 1\nupstreams:\ntenants:\n  t:\n    upstreams:\n      - a\n") == [
        "f.yaml:2:1: upstreams: must be a mapping",
        "f.yaml:5:5: tenants.t.upstreams: must be a mapping",
    ]


def test_secrets_are_in_no_repr_and_in_no_error() -> None:
    secret = "s3cr3t-value"
    text = """
version: 1
admin: {token: "${S}"}
upstreams:
  a: {command: x, args: ["${S}"], env: {A: "${S}"}}
  b: {url: "https://u:${S}@h/?k=${S}", headers: {X: "${S}"}}
tenants: {t: {upstreams: {}, manifest: {env: {A: "${S}"}}}}
state: {pepper: "${S}"}
"""
    assert secret not in repr(loads(text, "f.yaml", {"S": secret}))
    wrong = """
version: ${S}
server: {port: ${S}, publicUrl: "${S}", maxBody: ${S}}
upstreams: {a: {url: "${S}", type: ${S}, prefix: "${S} ", callTimeout: ${S}, disabled: ${S}, tools: ${S}}}
tenants: {t: {mode: ${S}, kernel: ${S}, upstreams: {a: ${S}}, manifest: {wallMs: ${S}}}}
state: {keys: "${S}", quotas: "${S}"}
"""
    found = problems(wrong, S=secret)
    assert len(found) == 16
    assert secret not in "".join(found)


@pytest.mark.case("CONFIG-08")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "1:1: the file is empty"),
        (b"# nothing but a comment\n", "1:1: the file is empty"),
        (b"---\n", "1:1: must be a mapping"),
        (b"just a text", "1:1: must be a mapping"),
        (b"- a\n- list", "1:1: must be a mapping"),
        (b"version: 1\nname: \xff\n", "2:7: it is not UTF-8 text"),
        (b"\x7fELF\x02\x01\x00", "1:1: character U+007F is not allowed: it is invisible, or no text"),
        (b"version: 1\na: b\x00", "2:5: character U+0000 is not allowed: it is invisible, or no text"),
        (b"version: 1\n" + b"#" * MAX_BYTES, "1:1: it cannot be read: it is larger than 1024 KiB"),
    ],
)
def test_a_file_that_is_no_config_is_one_problem(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(caught.value) == f"{path}:{message}"


@pytest.mark.case("CONFIG-08")
def test_a_path_that_is_no_readable_file_is_one_problem(tmp_path: Path) -> None:
    missing, pipe, closed = tmp_path / "none.yaml", tmp_path / "pipe", tmp_path / "closed.yaml"
    os.mkfifo(pipe)
    closed.write_text(MINIMAL)
    closed.chmod(0)
    expected = {
        str(missing): "there is no such file; `gateway init` writes one",
        str(tmp_path): "it cannot be read: it is a folder",
        str(pipe): "it cannot be read: it is no regular file",
        str(closed / "below"): "it cannot be read: Not a directory",
        "nul\0": "it cannot be read: its name holds a NUL character",
    }
    if os.geteuid() != 0:  # root reads everything
        expected[str(closed)] = "it cannot be read: Permission denied"
    for path, message in expected.items():
        with pytest.raises(ConfigError) as caught:
            load(path, {})
        assert str(caught.value) == f"{path}:1:1: {message}"


FRAGMENTS = [
    *("version: 1", "upstreams:", "tenants:", " a:", "\n", "  ", "{", "}", "[", "]", ",", "- ", "'", '"', "|\n", "? "),
    *("&a ", "*a", "!!x ", "<<: ", "${A}", "${A", "$${", ": ", "#", "%YAML 1.1", "---", "\t", "\r\n", "\ufeff", "\\"),
    *('"\\UFFFFFFFF"', "1e999", "9" * 5000, "%YAML 1." + "9" * 5000),
]


@settings(max_examples=150, deadline=None)
@given(st.text() | st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_no_text_does_anything_but_load_or_report_problems(text: str) -> None:
    reported: tuple[Problem, ...] = ()
    try:
        loads(text, "f.yaml", {"A": "a"})
    except ConfigError as error:
        reported = error.problems
    lines = text.count("\n") + text.count("\r") + 1
    for problem in reported:
        assert 1 <= problem.line <= lines
        assert problem.column >= 1
        assert len(str(problem).splitlines()) == 1
