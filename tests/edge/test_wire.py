"""The JSON-RPC envelope: what is one request, and what is refused how."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.edge.wire import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    Reply,
    Request,
    WireError,
    error_bytes,
    parse_call,
    parse_message,
    parse_params,
    result_bytes,
)


def test_a_request_keeps_its_params_raw() -> None:
    request = parse_message(b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"x": 1e2,"_meta":{"k":1}}}')
    assert isinstance(request, Request)
    assert (request.method, request.id) == ("tools/call", "a")
    assert request.params == b'{"x": 1e2,"_meta":{"k":1}}'
    assert request.meta == {"k": 1}


def test_a_notification_has_no_id() -> None:
    request = parse_message(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    assert isinstance(request, Request)
    assert request.id is None


def test_numbers_stay_as_they_were_written() -> None:
    request = parse_message(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":12345678901234567890123,"x":1.10}}')
    assert isinstance(request, Request)
    assert request.params == b'{"n":12345678901234567890123,"x":1.10}'


def test_zero_is_an_id() -> None:
    assert parse_message(b'{"jsonrpc":"2.0","id":0,"method":"ping"}').id == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", PARSE_ERROR),
        (b"{", PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1,"method":"m"} x', PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', PARSE_ERROR),
        ('{"jsonrpc":"2.0","id":1,"method":"m"}'.encode("utf-16"), PARSE_ERROR),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"m"}', PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}", PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":NaN}}', PARSE_ERROR),
        (b"null", INVALID_REQUEST),
        (b'[{"jsonrpc":"2.0","id":1,"method":"m"}]', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":null,"result":{}}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","result":{}}', INVALID_REQUEST),
        (b'{"jsonrpc":"1.0","id":1,"method":"m"}', INVALID_REQUEST),
        (b'{"id":1,"method":"m"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":null,"method":"m"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":true,"method":"m"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"m"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":{},"method":"m"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":[]}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":null}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":7}}', INVALID_PARAMS),
        (json.dumps({"jsonrpc": "2.0", "id": "x" * 257, "method": "m"}).encode(), INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":18446744073709551616,"method":"m"}', INVALID_REQUEST),
        (rb'{"jsonrpc":"2.0","id":"a\u0000","method":"m"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}', PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"name":"a","name":"b"}}', PARSE_ERROR),
        (rb'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\ud800"}}', PARSE_ERROR),
    ],
)
def test_what_is_no_single_request_is_refused(body: bytes, code: int) -> None:
    with pytest.raises(WireError) as refused:
        parse_message(body)
    assert refused.value.code == code


def test_arguments_may_be_absent_or_null() -> None:
    assert bytes(parse_call(b'{"name":"t"}').arguments) == b"{}"
    assert bytes(parse_call(b'{"name":"t","arguments":null}').arguments) == b"{}"
    assert bytes(parse_call(b'{"name":"t","arguments":{"a": 1}}').arguments) == b'{"a": 1}'


@pytest.mark.parametrize(
    "params", [b"{}", b'{"name":1}', b'{"name":"t","arguments":[]}', b'{"name":"t","arguments":"{}"}']
)
def test_a_call_needs_a_name_and_an_object(params: bytes) -> None:
    with pytest.raises(WireError) as refused:
        parse_call(params)
    assert refused.value.code == INVALID_PARAMS


def test_params_must_decode() -> None:
    assert parse_params(b'{"a":[1]}') == {"a": [1]}
    with pytest.raises(WireError):
        parse_params(b'{"a":"\\ud800"}')


def test_a_result_may_hold_raw_json() -> None:
    raw = msgspec.Raw(b'{"b": [1,  2]}')
    assert result_bytes(7, {"a": raw}) == b'{"jsonrpc":"2.0","id":7,"result":{"a":{"b": [1,  2]}}}'


def test_an_error_names_its_request_or_null() -> None:
    assert json.loads(error_bytes("q", WireError(-1, "no"))) == {
        "jsonrpc": "2.0",
        "id": "q",
        "error": {"code": -1, "message": "no"},
    }
    assert json.loads(error_bytes(None, WireError(-1, "no", {"a": 1})))["id"] is None


def test_a_client_answers_what_it_was_asked() -> None:
    assert parse_message(b'{"jsonrpc":"2.0","id":7,"result":{"a": 1}}') == Reply(7, b'{"a": 1}')
    refused = parse_message(b'{"jsonrpc":"2.0","id":"q","error":{"code":-1,"message":"no"}}')
    assert refused == Reply("q", None, -1, "no")
