"""Which texts of a message are counted."""

from __future__ import annotations

import pytest

from gateway.metering.context import call_text, compact, result_text


@pytest.mark.parametrize(
    ("sent", "counted"),
    [
        (b'{ "a" : [1,  2.50], "b": "two  spaces" }', '{"a":[1,2.50],"b":"two  spaces"}'),
        (b'{"a": "na\\u00efve"}', '{"a":"na\u00efve"}'),
        (b'{"a": 123456789012345678901234567890}', '{"a":123456789012345678901234567890}'),
        (b"{broken", "{broken"),
        (b'{"a":' * 50_000, '{"a":' * 50_000),
        (b"", ""),
    ],
    ids=["spaces", "escapes", "a number of any size", "no JSON", "deep nonsense", "nothing"],
)
def test_json_counts_without_what_only_a_serialiser_put_there(sent: bytes, counted: str) -> None:
    assert compact(sent) == counted


def test_a_call_counts_as_a_model_would_have_written_it() -> None:
    assert (
        call_text("weather__über", b'{"city": "Z\\u00fcrich"}')
        == '{"name":"weather__über","arguments":{"city":"Zürich"}}'
    )


def test_a_result_counts_its_text_and_only_without_text_its_structured_content() -> None:
    text = {"type": "text", "text": "one"}
    embedded = {"type": "resource", "resource": {"uri": "test://x", "text": "two"}}
    image = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
    assert result_text([text, image, embedded], b'{"n": 1}') == "one\ntwo"
    assert result_text([image], b'{"n": 1}') == '{"n":1}'
    assert result_text([image], b"") == ""
