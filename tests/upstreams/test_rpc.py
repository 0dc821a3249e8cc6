"""Envelopes: what comes in is classified once, what goes out is spliced, never encoded twice."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.upstreams import rpc
from gateway.upstreams.rpc import Garbage, Notification, Request, Response, RpcError, classify


def test_a_result_stays_raw() -> None:
    assert classify(b'{"jsonrpc":"2.0","id":7,"result":{"a": 1.0}}') == Response(7, result=b'{"a": 1.0}')


def test_an_error_is_read() -> None:
    message = b'{"jsonrpc":"2.0","id":"x","error":{"code":-32602,"message":"no","data":{"hint":"use id"}}}'

    assert classify(message) == Response("x", error=RpcError(-32602, "no", {"hint": "use id"}))


@pytest.mark.parametrize(
    "error", [b'"boom"', b"{}", b'{"code":"x"}', b'{"code":1.5,"message":"m"}', b'{"code":1,"data":1e999}']
)
def test_a_malformed_error_is_still_an_error(error: bytes) -> None:
    found = classify(b'{"jsonrpc":"2.0","id":1,"error":' + error + b"}")

    assert isinstance(found, Response)
    assert found.error is not None
    assert found.error.message


def test_an_error_without_a_message_gets_one() -> None:
    found = classify(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":""}}')

    assert isinstance(found, Response)
    assert found.error == RpcError(-32000, "the upstream gave no message (code -32000)")


def test_requests_and_notifications_are_told_apart_by_the_id() -> None:
    assert classify(b'{"jsonrpc":"2.0","id":1,"method":"ping"}') == Request(1, "ping")
    assert classify(b'{"jsonrpc":"2.0","method":"n","params":{"a":1}}') == Notification("n", b'{"a":1}')


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (b"[1,2,3]", None),
        (b'{"level":"info"}', None),
        (b'{"jsonrpc":"1.0","id":3,"result":{}}', 3),
        (b'{"jsonrpc":"2.0","id":3}', 3),
        (b'{"jsonrpc":"2.0","id":3,"result":{"conten', 3),
        (b'{"id" : 3, "jsonrpc":"2.0","result":{"conten', 3),
        (b'{"jsonrpc":"2.0","id":"abc","result":NaN}', "abc"),
        (b'{"jsonrpc":"2.0","result":{"x":NaN},"id":3}', 3),
        (b'{"jsonrpc":"2.0","id":3,"result":' + b"[" * 5000 + b"]" * 5000 + b"}", 3),
        (b'{"jsonrpc":"2.0","result":' + b"[" * 5000 + b"]" * 5000 + b',"id":3,"jsonrpc":"2.0"}', 3),
        (b'{"jsonrpc":"2.0","id":3,"result":"\xff"}', 3),
        # the id of a record in the result is not the id of the call
        (b'{"jsonrpc":"2.0","result":{"id":5,"x":', None),
        # a request of the server that cannot be read answers none of ours
        (b'{"jsonrpc":"2.0","id":3,"method":"sampl', None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":true,"result":{}}', None),
    ],
)
def test_garbage_names_the_call_that_it_was_meant_for(message: bytes, named: object) -> None:
    found = classify(message)

    assert isinstance(found, Garbage)
    assert found.id == named
    assert found.reason


def test_half_an_emoji_does_not_spoil_a_result() -> None:
    found = classify(rb'{"jsonrpc":"2.0","id":1,"result":{"cut":"\ud83d","whole":"\ud83d\ude00","no":"\\ud83d"}}')

    assert isinstance(found, Response)
    assert json.loads(found.result or b"") == {"cut": "\ufffd", "whole": "😀", "no": "\\ud83d"}


def test_numbers_that_come_back_as_strings_are_the_same_id() -> None:
    assert rpc.same_id(7, 7)
    assert rpc.same_id("7", 7)
    assert not rpc.same_id("07", 7)
    assert not rpc.same_id(None, 7)


def test_arguments_travel_byte_for_byte() -> None:
    arguments = b'{"n": 12345678901234567890123, "f": 1.0, "s": "\\u00e9"}'

    sent = rpc.request(1, "tools/call", rpc.modern_params({"name": "t", "arguments": msgspec.Raw(arguments)}))

    assert arguments in sent


def test_modern_parameters_carry_who_asks_and_keep_the_callers_meta() -> None:
    for params in ({"_meta": {"traceparent": "00-1"}}, b'{"_meta":{"traceparent":"00-1"}}'):
        meta = json.loads(rpc.request(1, "m", rpc.modern_params(params)))["params"]["_meta"]

        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "codemode-gateway"
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {}
        assert meta["traceparent"] == "00-1"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("ping", {"result": {}}),
        ("roots/list", {"result": {"roots": []}}),
        ("sampling/createMessage", {"error": {"code": -32601, "message": "the gateway serves no such request"}}),
    ],
)
def test_what_a_server_may_ask(method: str, answer: dict[str, object]) -> None:
    assert json.loads(rpc.answer_to(Request("q", method))) == {"jsonrpc": "2.0", "id": "q"} | answer
