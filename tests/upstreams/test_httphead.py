"""Requests as bytes: URLs, headers, encoded values; credentials are used and never shown."""

from __future__ import annotations

import pytest

from gateway.upstreams.httphead import BadTarget, encode_value, parse_target, request_head
from gateway.upstreams.redact import Redactor


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://host/mcp", (False, "host", 80, "host", "/mcp")),
        ("https://host", (True, "host", 443, "host", "/")),
        ("https://host:8443/a?b=c%20d&e", (True, "host", 8443, "host:8443", "/a?b=c%20d&e")),
        ("http://[::1]:80/é x", (False, "::1", 80, "[::1]:80", "/%C3%A9%20x")),
        ("http://bücher.example/", (False, "xn--bcher-kva.example", 80, "xn--bcher-kva.example", "/")),
    ],
)
def test_where_a_url_leads(url: str, where: tuple[object, ...]) -> None:
    target = parse_target(url, {})

    assert (target.tls, target.host, target.port, target.authority, target.path) == where


@pytest.mark.parametrize(
    "url", ["ftp://host/", "http:///x", "http://host:99999/", "http://[::1/", "http://host/\ud800"]
)
def test_a_url_that_leads_nowhere(url: str) -> None:
    with pytest.raises(BadTarget):
        parse_target(url, {})


def test_the_user_part_of_a_url_becomes_basic_authentication_unless_a_header_says_otherwise() -> None:
    url = "https://me:p%40ss@host/"

    assert b"Authorization: Basic bWU6cEBzcw==\r\n" in parse_target(url, {}).head
    assert parse_target(url, {"authorization": "Bearer t"}).head == b"authorization: Bearer t\r\n"


def test_configured_headers_cannot_replace_those_of_the_protocol() -> None:
    target = parse_target("http://host/", {"Content-Length": "0", "MCP-Session-Id": "x", "X-Mine": "yes\n"})

    assert target.head == b"X-Mine: yes\r\n"


@pytest.mark.parametrize("headers", [{"A b": "x"}, {"A": "x\r\nB: y"}, {"A": "x\0y"}])
def test_a_header_that_would_smuggle_another_is_refused_without_its_value(headers: dict[str, str]) -> None:
    with pytest.raises(BadTarget) as caught:
        parse_target("http://host/", headers)
    assert "B: y" not in str(caught.value)


def test_a_request_is_complete() -> None:
    head = request_head(parse_target("http://host/mcp", {"X-Mine": "é"}), "POST", {"mcp-method": "tools/call"}, 12)

    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /mcp HTTP/1.1"
    assert {b"host: host", b"content-length: 12", b"mcp-method: tools/call", "X-Mine: é".encode()} <= set(lines)
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ("plain name", "plain name"),
        ("café", "=?base64?Y2Fmw6k=?="),
        (" edge", "=?base64?IGVkZ2U=?="),
        ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
        ("a\r\nb", "=?base64?YQ0KYg==?="),
        ("", ""),
    ],
)
def test_names_that_a_header_cannot_carry_are_encoded(value: str, encoded: str) -> None:
    assert encode_value(value) == encoded


def test_credentials_are_known_to_the_redactor_and_absent_from_the_repr() -> None:
    target = parse_target(
        "https://me:pass-word@host/keys/0123456789abcdef?token=tok-en", {"Authorization": "Bearer abcd"}
    )
    shown = Redactor(target.secrets).one_line(
        "me pass-word 0123456789abcdef tok-en abcd \x1b[31mred\x1b[0m\n\u202enext"
    )

    assert shown == "me ••• ••• ••• ••• red next"
    assert all(secret not in repr(target) for secret in ("pass-word", "0123456789abcdef", "tok-en", "abcd"))


def test_a_url_inside_of_any_text_loses_its_user_part() -> None:
    assert Redactor(()).one_line("at https://u:p@host/x") == "at https://•••@host/x"


def test_long_text_is_cut() -> None:
    assert len(Redactor(()).one_line("x" * 5000, 100)) == 100
