"""The ladder of 2026-07-28, rung by rung, and the choice of the era."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.edge.eras import (
    META_CAPABILITIES,
    META_VERSION,
    check_modern,
    decode_header_value,
    era_of,
    error_status,
)
from gateway.edge.http import Headers
from gateway.edge.wire import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Request,
    WireError,
)

META = {META_VERSION: "2026-07-28", META_CAPABILITIES: {}}


def request(method: str = "tools/list", meta: Any = META, **params: Any) -> Request:
    return Request(method, 1, json.dumps(params).encode(), meta)


def headers(**given: str) -> Headers:
    sent = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/list", **given}
    return Headers((name.replace("_", "-").encode(), value.encode()) for name, value in sent.items())


def refusal(request: Request, headers: Headers) -> int:
    with pytest.raises(WireError) as refused:
        check_modern(request, headers)
    return refused.value.code


@pytest.mark.parametrize(
    ("version", "era"),
    [
        (None, "legacy"),
        ("2024-11-05", "legacy"),
        ("2025-11-25", "legacy"),
        ("2026-07-28", "modern"),
        ("2031-01-01", "modern"),
        ("", "modern"),
    ],
)
def test_the_header_chooses_the_era(version: str | None, era: str) -> None:
    assert era_of(version) == era


def test_a_right_request_passes() -> None:
    check_modern(request(), headers())
    check_modern(request("tools/call", name="t"), headers(mcp_method="tools/call", mcp_name="  t "))


@pytest.mark.parametrize("meta", [{}, {META_VERSION: "2026-07-28"}, {META_CAPABILITIES: {}}])
def test_both_meta_keys_are_required(meta: Any) -> None:
    assert refusal(request(meta=meta), headers()) == INVALID_PARAMS


@pytest.mark.parametrize("meta", [{**META, META_CAPABILITIES: []}, {**META, META_VERSION: 7}])
def test_meta_keys_have_their_types(meta: Any) -> None:
    assert refusal(request(meta=meta), headers()) == INVALID_PARAMS


def test_header_and_body_must_agree() -> None:
    assert refusal(request(), headers(mcp_method="tools/call")) == HEADER_MISMATCH
    assert refusal(request(meta={**META, META_VERSION: "2025-11-25"}), headers()) == HEADER_MISMATCH
    call = request("tools/call", name="a")
    assert refusal(call, headers(mcp_method="tools/call", mcp_name="b")) == HEADER_MISMATCH
    assert refusal(call, headers(mcp_method="tools/call")) == HEADER_MISMATCH
    assert refusal(request("tools/call"), headers(mcp_method="tools/call")) == INVALID_PARAMS


def test_a_routing_header_comes_once() -> None:
    twice = Headers([(b"mcp-protocol-version", b"2026-07-28"), (b"mcp-method", b"tools/list"), (b"mcp-method", b"x")])
    assert refusal(request(), twice) == HEADER_MISMATCH


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(WireError) as refused:
        check_modern(request(meta={**META, META_VERSION: "2031-01-01"}), headers(mcp_protocol_version="2031-01-01"))
    assert refused.value.code == UNSUPPORTED_VERSION
    assert refused.value.data == {"supported": ["2026-07-28"], "requested": "2031-01-01"}


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        ("plain", "plain"),
        ("=?base64?bWl0IFVtbGF1dDogw7w=?=", "mit Umlaut: ü"),
        ("=?base64?!!!?=", None),
        ("=?base64?bWl0?", "=?base64?bWl0?"),
        ("=?base64?/w==?=", None),
        ("=?base64?YQ=?=", None),
        ("=?BASE64?YQ==?=", "=?BASE64?YQ==?="),
    ],
)
def test_encoded_names(value: str, decoded: str | None) -> None:
    assert decode_header_value(value) == decoded


def test_status_of_errors() -> None:
    assert error_status("modern", METHOD_NOT_FOUND) == 404
    assert error_status("modern", INVALID_PARAMS) == 400
    assert error_status("modern", INTERNAL_ERROR) == 200
    assert error_status("legacy", METHOD_NOT_FOUND) == 200
    assert error_status("legacy", HEADER_MISMATCH) == 400
