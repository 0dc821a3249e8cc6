"""JSON that all parsers read alike, and what else there is."""

from __future__ import annotations

import json

import pytest

from gateway.edge.strict import MAX_DEPTH, MAX_VALUES, SLICE, NotStrict, decode_strictly

pytestmark = pytest.mark.case("HTTP-06")

LONG = b"x" * (2 * SLICE)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'[1,"a",null,true,-0.5e-3]',
        b'{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}',
        b'{ "a" : 1 ,\n"b"\t:\r2 }',
        rb'{"a":":","b":"\":","c":"\\","d":"\\\":\"","\"e\"":"{\"x\":1}"}',
        '{"ключ":"値 😀 \\ud83d\\ude00 \\u0000"}'.encode(),
        b'{"n":12345678901234567890,"m":-12345678901234567890123}',
        b'{"a":"' + LONG + b'","b":"' + LONG + b':"}',
    ],
)
def test_plain_json_is_decoded(body: bytes) -> None:
    assert decode_strictly(body) == json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"b":{"c":1,"c":2}}',
        b'[[{"a":1},{"a":1,"a":1}]]',
        rb'{"a":1,"\u0061":2}',
        b'{"a" : 1,"a"\n:2}',
        rb'{"a":"\"","a":"\\"}',
        b'{"x":"' + LONG + b'","a":1,"y":"' + LONG + b'","a":2}',
    ],
)
def test_two_members_of_one_name_are_refused(body: bytes) -> None:
    with pytest.raises(NotStrict, match="two members"):
        decode_strictly(body)


@pytest.mark.parametrize("offset", range(6))
@pytest.mark.parametrize("escape", [rb"\"", rb"\\", rb"\\\"", rb"\":\"", rb"\u003a"])
def test_an_escape_at_the_end_of_a_slice_is_not_cut(offset: int, escape: bytes) -> None:
    filler = b"x" * (SLICE - 4 - offset)
    body = b'{"' + filler + escape * 5 + b'":1,"b":2%s}'
    assert len(decode_strictly(body % b"")) == 2
    with pytest.raises(NotStrict, match="two members"):
        decode_strictly(body % b',"b":3')


@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_has_a_limit(start: bytes, end: bytes) -> None:
    def nested(depth: int) -> bytes:
        return start * depth + b"1" + end * depth

    decode_strictly(nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 900, 20_000):
        with pytest.raises(NotStrict):
            decode_strictly(nested(depth))
    with pytest.raises(NotStrict):
        decode_strictly(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1",
        b"[1] [2]",
        b"[1,]",
        b"{'a':1}",
        b"[NaN]",
        b"[Infinity]",
        b"[-Infinity]",
        b"[1e999]",
        b"[-1e999]",
        b"[" + b"9" * 5_000 + b"]",
        b"[01]",
        rb'["\ud800"]',
        rb'["\udc00"]',
        rb'["\ud800\u0041"]',
        b'["\xed\xa0\x80"]',
        b'["\xff"]',
        b'["\x01"]',
        b'["\xc0\xaf"]',
        b"\xef\xbb\xbf[1]",
        "[1]".encode("utf-16"),
        "[1]".encode("utf-16-le"),
        "[1]".encode("utf-32"),
    ],
)
def test_what_some_parsers_accept_is_refused(body: bytes) -> None:
    with pytest.raises(NotStrict, match="not valid JSON in UTF-8"):
        decode_strictly(body)


def test_the_number_of_values_is_limited_whatever_they_are() -> None:
    assert len(decode_strictly(b"[" + b"1," * (MAX_VALUES - 2) + b"1]")) == MAX_VALUES - 1
    for value in (b"1", b"[]", b'{"a":1}', b'"a"'):
        with pytest.raises(NotStrict, match="values"):
            decode_strictly(b"[" + (value + b",") * MAX_VALUES + b"1]")
    assert decode_strictly(b'"' + b"," * 4 * MAX_VALUES + b'"')
