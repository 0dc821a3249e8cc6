"""Which era a server speaks: the table of verdicts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.upstreams import era
from gateway.upstreams.base import Era
from gateway.upstreams.era import doubts_era, judge_probe
from gateway.upstreams.rpc import Response, RpcError

MODERN = "2026-07-28"


def result(value: Any) -> Response:
    return Response(1, result=json.dumps(value).encode())


def error(code: int, **data: Any) -> Response:
    return Response(1, error=RpcError(code, "no", data or None))


@pytest.mark.parametrize(
    ("answer", "status", "verdict"),
    [
        (result({"supportedVersions": [MODERN, "2027-01-01"]}), 200, "modern"),
        (result({"supportedVersions": ["2025-11-25"]}), 200, "legacy"),
        (result({"supportedVersions": ["2027-01-01"]}), 200, "incompatible"),
        (result({}), 200, "legacy"),
        (result([]), None, "legacy"),
        (error(-32022, supported=[MODERN]), 400, "again"),
        (error(-32022, supported=["2027-01-01"]), 400, "incompatible"),
        (error(-32022, supported=["2025-11-25"]), 400, "legacy"),
        (error(-32022), None, "legacy"),
        (error(-32020), 400, "modern"),
        (error(-32021), 400, "modern"),
        (error(-32601), None, "legacy"),
        (error(-32602), None, "legacy"),
        (error(-32601), 404, "legacy"),
        (None, None, "legacy"),
        (None, 400, "legacy"),
        (None, 404, "legacy"),
        (None, 405, "legacy"),
        (None, 401, "none"),
        (error(-32600), 403, "none"),
        (None, 429, "none"),
        (None, 500, "none"),
        (error(-32603), 503, "none"),
        (None, 302, "none"),
        (None, 202, "none"),
    ],
)
def test_the_verdict_on_a_probe(answer: Response | None, status: int | None, verdict: str) -> None:
    assert judge_probe(answer, status).kind == verdict


def test_what_a_modern_server_tells() -> None:
    verdict = judge_probe(
        result(
            {
                "supportedVersions": [MODERN],
                "capabilities": {
                    "tools": {"listChanged": True},
                    "prompts": {"listChanged": "true"},
                    "resources": {"subscribe": True, "listChanged": True},
                },
                "instructions": "be kind",
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "2"}},
            }
        )
    )

    assert verdict.info is not None
    assert (verdict.info.era, verdict.info.version, verdict.info.name) == ("modern", MODERN, "s")
    assert verdict.info.instructions == "be kind"
    assert era.announced_lists(verdict.info) == ("tools", "resources")
    assert era.announces_updates(verdict.info)
    assert era.listen_params(("tools",)) == {"notifications": {"toolsListChanged": True}}


def test_what_a_legacy_server_tells() -> None:
    info = era.info_from_initialize(b'{"protocolVersion":"2024-11-05","capabilities":null,"serverInfo":{"name":"s"}}')

    assert info is not None
    assert (info.era, info.version, info.name, dict(info.capabilities)) == ("legacy", "2024-11-05", "s", {})
    assert era.announced_lists(info) == ()
    assert not era.announces_updates(info)


@pytest.mark.parametrize("raw", [b"{}", b"[]", b"null", b'{"protocolVersion":"1999-01-01"}', b'{"protocolVersion":5}'])
def test_a_handshake_without_a_version_of_ours_is_none(raw: bytes) -> None:
    assert era.info_from_initialize(raw) is None


@pytest.mark.parametrize(
    ("speaks", "method", "answer", "status", "doubt"),
    [
        ("legacy", "tools/call", error(-32022, supported=[MODERN]), 400, "yes"),
        ("legacy", "tools/list", error(-32602), 400, "yes"),
        ("legacy", "tools/call", error(-32602), 400, "perhaps"),
        ("legacy", "tools/call", error(-32602), 200, "no"),
        ("legacy", "tools/call", None, 404, "no"),
        ("modern", "tools/call", None, 404, "yes"),
        ("modern", "tools/call", error(-32600), 400, "yes"),
        ("modern", "tools/call", error(-32602), 400, "no"),
        ("modern", "tools/call", error(-32601), 404, "no"),
        ("modern", "tools/call", None, 503, "no"),
        ("modern", "tools/call", error(-32602), None, "no"),
    ],
)
def test_which_answers_make_sense_only_in_the_other_era(
    speaks: Era, method: str, answer: Response | None, status: int | None, doubt: str
) -> None:
    assert doubts_era(speaks, method, answer, status) == doubt
