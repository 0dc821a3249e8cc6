"""What ``await tool()`` gives a script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.catalog.build import AsPublished, make_tools
from gateway.catalog.tool import Tool
from gateway.errors import ErrorClass, GatewayError
from gateway.facade.script import plain_value
from gateway.upstreams.base import CallResult


def tool(output_schema: dict[str, Any] | None = None) -> Tool:
    entry = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": output_schema}
    return make_tools("up", AsPublished(), [entry]).tools[0]


def result(*texts: str, structured: Any = None, is_error: bool = False, content: Any = None) -> CallResult:
    blocks = tuple({"type": "text", "text": text} for text in texts) if content is None else content
    raw = b"" if structured is None else json.dumps(structured).encode()
    return CallResult(raw=b"{}", content=blocks, structured=raw, is_error=is_error)


def test_structured_content_comes_first() -> None:
    assert plain_value(tool(), result("text", structured={"a": 1})) == {"a": 1}


def test_a_wrapped_result_is_unwrapped_only_where_it_is_marked() -> None:
    marked = tool({"type": "object", "x-fastmcp-wrap-result": True})
    assert plain_value(marked, result(structured={"result": [1]})) == [1]
    assert plain_value(tool({"type": "object"}), result(structured={"result": [1]})) == {"result": [1]}
    assert plain_value(marked, result(structured={"result": 1, "more": 2})) == {"result": 1, "more": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ("[]", []),
        ("42", 42),
        ("true", True),
        ("plain words", "plain words"),
        ("{not json}", "{not json}"),
        ("", ""),
        ("12345678901234567890123", "12345678901234567890123"),
        ("0123", "0123"),
        ("NaN", "NaN"),
    ],
)
def test_text_is_json_when_it_is(text: str, value: Any) -> None:
    assert plain_value(tool(), result(text)) == value


def test_several_texts_are_one() -> None:
    assert plain_value(tool(), result("a", "b")) == "a\nb"


def test_other_blocks_stay_a_list() -> None:
    blocks = ({"type": "image", "data": "AA==", "mimeType": "image/png"}, {"type": "text", "text": "x"})
    assert plain_value(tool(), result(content=blocks)) == list(blocks)


def test_a_failed_tool_raises_its_own_text() -> None:
    with pytest.raises(GatewayError) as failed:
        plain_value(tool(), result("no such row", is_error=True))
    assert failed.value.error_class is ErrorClass.TOOL_ERROR
    assert failed.value.message == "up__t: no such row"
    with pytest.raises(GatewayError, match="without a message"):
        plain_value(tool(), result(is_error=True))


def test_a_huge_result_is_refused_before_it_is_converted() -> None:
    huge = CallResult(raw=b"x" * (5 * 1024 * 1024), content=(), structured=b"", is_error=False)
    with pytest.raises(GatewayError) as failed:
        plain_value(tool(), huge)
    assert failed.value.error_class is ErrorClass.OUTPUT_LIMIT
