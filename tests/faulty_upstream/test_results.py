"""What a call returns, and how the answer itself is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.companions import RawClient, faulty_http
from tests.faulty_upstream.conversation import call, exchange, legacy, modern, post, stdio

ADD = call("add", a=1, b=2)


async def results_of(*kinds: str) -> list[dict[str, Any]]:
    """The result objects of one call for each kind, from one process."""
    switches = [word for number, kind in enumerate(kinds, 1) for word in ("--result", f"{kind}:after={number},times=1")]
    async with stdio(*switches) as fu:
        return [(await fu.ask(ADD))["result"] for _ in kinds]


async def test_result() -> None:
    expected: dict[str, tuple[list[str], object, bool]] = {
        "text": (["text"], None, False),
        "structured": ([], {"sum": 3}, False),
        "iserror": (["text"], None, True),
        "iserror:empty": ([], None, True),
        "iserror:multi": (["text", "text", "text"], None, True),
        "image": (["image"], None, False),
        "audio": (["audio"], None, False),
        "multi": (["text", "text", "image", "resource_link", "resource", "resource"], None, False),
        "schema-mismatch": (["text"], {"sum": "not a number"}, False),
        "schema-mismatch:missing": (["text"], {}, False),
    }
    for kind, result in zip(expected, await results_of(*expected), strict=True):
        types = [block["type"] for block in result["content"]]
        seen = (types, result.get("structuredContent"), result.get("isError", False))
        assert (kind, seen) == (kind, expected[kind])


async def test_result_huge_and_a_huge_error() -> None:
    for result in await results_of("huge:300KB", "iserror:300KB"):
        assert result["content"][0]["text"] == "x" * 300_000


async def test_result_huge_over_http_is_chunked() -> None:
    async with faulty_http("--result", "huge:2MiB") as fu:
        response = await exchange(fu.port, ADD)
        assert response.headers["transfer-encoding"] == "chunked"
        assert len(response.json()["result"]["content"][0]["text"]) == 2 << 20


async def test_result_of_two_gigabytes_begins_at_once() -> None:
    async with faulty_http("--result", "huge:2GiB") as fu, RawClient(fu.port) as client:
        await post(client, ADD)
        assert len(await client.read()) > 0
        client.abort()


async def test_result_emoji() -> None:
    async with stdio("--result", "emoji:1000") as fu:
        await fu.send(ADD)
        line = await fu.line()
        assert "👩‍🔧🧰".encode() in line
        text = json.loads(line)["result"]["content"][0]["text"]
        assert 980 < len(text.encode()) <= 1000


async def test_result_raw_is_sent_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    raw = b'{"content":[],"structuredContent":{"big":123456789012345678901234567890,"nan":NaN,"n":1.0}}'
    file.write_bytes(raw + b"\n")
    async with stdio("--result", f"raw:{file}") as fu:
        await fu.send(ADD)
        assert await fu.line() == b'{"jsonrpc":"2.0","id":1,"result":' + raw + b"}\n"


async def test_error_with_message_and_data() -> None:
    async with stdio("--error", '-32000:no: not now:{"hint":"use id"}:every=2') as fu:
        assert "result" in await fu.ask(ADD)
        await fu.send(ADD)
        assert await fu.line() == (
            b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no: not now","data":{"hint":"use id"}}}\n'
        )


@pytest.mark.parametrize(
    ("how", "begins"),
    [("malformed", b'{"jsonrpc":"2.0","id":1,'), ("not-rpc", b'{"greeting":')],
)
async def test_replies_that_are_no_answer(how: str, begins: bytes) -> None:
    async with stdio("--reply", how) as fu:
        await fu.send(ADD)
        line = await fu.line()
        assert line.startswith(begins)
        if how == "malformed":
            with pytest.raises(json.JSONDecodeError):
                json.loads(line)


async def test_reply_deep() -> None:
    async with stdio("--reply", "deep:5000") as fu:
        await fu.send(ADD)
        line = await fu.line()
        assert line.count(b'{"a":') == 5000
        assert line.startswith(b'{"jsonrpc":"2.0","id":1,"result":')


async def test_reply_at_another_point() -> None:
    async with stdio("--reply", "not-rpc:point=list") as fu:
        assert "greeting" in await fu.ask(modern("tools/list"))
        assert "result" in await fu.ask(ADD)


@pytest.mark.parametrize(
    ("how", "answers"),
    [
        ("dup", [(1, "result"), (1, "result")]),
        ("error-then-result", [(1, "error"), (1, "result")]),
        ("unasked", [("never-asked", "result"), (1, "result")]),
    ],
)
async def test_more_answers_than_one(how: str, answers: list[tuple[object, str]]) -> None:
    async with stdio("--reply", how) as fu:
        await fu.send(ADD)
        seen = [json.loads(await fu.line()) for _ in answers]
    async with faulty_http("--reply", how) as http:
        streamed = (await exchange(http.port, ADD)).events()
    for messages in (seen, streamed):
        assert [(each["id"], "error" if "error" in each else "result") for each in messages] == answers


async def test_a_late_reply_comes_even_after_a_cancel() -> None:
    async with stdio("--reply", "late:0.3:times=1") as fu:
        await fu.send(ADD, legacy("notifications/cancelled", {"requestId": 1}, None), call("echo", 2))
        assert [json.loads(await fu.line())["id"] for _ in range(2)] == [2, 1]


@pytest.mark.parametrize(("form", "sent"), [("string", b'"1"'), ("null", b"null"), ("zero", b"0")])
async def test_reply_id(form: str, sent: bytes) -> None:
    async with stdio("--reply-id", form) as fu:
        await fu.send(ADD)
        assert (await fu.line()).startswith(b'{"jsonrpc":"2.0","id":' + sent + b',"result":')
