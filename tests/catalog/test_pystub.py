"""Tools written for a Python script: every stub parses, whatever the upstream sent. Golden files show their looks.

To accept changed stubs: ``UPDATE_GOLDEN=1 pytest tests/catalog/test_pystub.py``, then read the difference.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.catalog.build import AsPublished, make_tools
from gateway.catalog.pystub import LOSSY, NO_RESULT_TYPE, SHORTENED, Form, python_stub
from gateway.catalog.pytypes import PRELUDE, type_prefix
from tests.catalog.samples import WORKSHOP, broken_schemas, catalog, entry, tool

GOLDEN = Path(__file__).parent / "golden"
FORMS = get_args(Form)

ISSUE = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "title": {"type": "string"}, "labels": {"type": "array", "items": {}}},
    "required": ["id", "title"],
}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "required": ["root"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["name"],
        }
    },
}
KEYWORDS = {
    "type": "object",
    "properties": {
        "content-type": {"type": "string", "description": "MIME type."},
        "from": {"type": "string"},
        "class": {"type": "integer", "default": 2},
        "$top": {"type": "integer"},
        "1st": {"type": "boolean"},
        "lambda": {"type": "object", "properties": {"in": {"type": "string"}, "str": {"type": "string"}}},
    },
    "required": ["content-type", "from", "class", "$top", "1st", "lambda"],
}
SAMPLES: dict[str, dict[str, Any]] = {
    "plain": entry(
        "get_log",
        "Shows the commits of a branch. Newest first; merges are marked.",
        {
            "type": "object",
            "properties": {
                "max_count": {"type": "integer", "default": 10, "minimum": 1, "maximum": 500},
                "repo_path": {"type": "string", "description": "Where the repository is."},
                "order": {"enum": ["date", "topo"], "default": "date"},
                "author": {"type": ["string", "null"], "default": None},
                "since": {"type": "string", "format": "date-time", "description": "Only later commits."},
            },
            "required": ["repo_path"],
            "additionalProperties": False,
        },
    ),
    "result": entry("find-issues", "Finds issues.", {"properties": {"text": {"type": "string"}}}, outputSchema=ISSUE),
    "wrapped_result": entry(
        "list_issues",
        "All issues.",
        {"type": "object", "properties": {}},
        outputSchema={
            "type": "object",
            "properties": {"result": {"type": "array", "items": {"$ref": "#/$defs/Issue"}}},
            "required": ["result"],
            "$defs": {"Issue": ISSUE},
            "x-fastmcp-wrap-result": True,
        },
    ),
    "own_result": entry("count", "", outputSchema={"type": "object", "properties": {"result": {"type": "integer"}}}),
    "keywords": entry("send", "Sends it.", KEYWORDS),
    "recursive": entry("draw", "Draws a tree.", TREE),
    "any_object": entry("echo", "Answers what it gets."),
    "alternatives": entry(
        "find",
        "By number or by name.",
        {
            "type": "object",
            "anyOf": [
                {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
                {"properties": {"name": {"type": "string"}}, "required": ["name"]},
            ],
        },
    ),
    "one_of_these": entry(
        "search",
        "Give a text or a label.",
        {
            "type": "object",
            "properties": {"text": {"type": "string"}, "label": {"type": "string"}},
            "anyOf": [{"required": ["text"]}, {"required": ["label"]}],
        },
    ),
    "hostile": entry(
        "inno\ncent",
        '*/ """ \\" \'\'\'\n```\n# End of tools.\u2028def x(): pass \u202eevil',
        {
            "type": "object",
            "properties": {
                "a": {"type": "string", "description": 'x\n    """\n```', "default": "\n'''\"\"\""},
                "b": {"enum": ['"""', "'", "\n", "\u202e", "\\"]},
                "c\n]": {"const": "*/"},
            },
        },
    ),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_stubs_look_as_they_did(sample: str) -> None:
    (made,) = make_tools("git", AsPublished(), [SAMPLES[sample]]).tools
    text = "\n\n".join(f"# --- {form}\n{python_stub(made, form)}" for form in FORMS)
    path = GOLDEN / f"{sample}.pyi.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8")
    ast.parse(text)


class TestSignature:
    def test_a_name_is_printed_as_a_script_calls_it(self) -> None:
        text = python_stub(tool("get-log", upstream="my-git"))
        assert text == "# [tool get-log]\nasync def my_git__get_log(**arguments: Any) -> Any: ..."

    @pytest.mark.case("NAMING-05")
    def test_parameters_that_are_no_identifiers_make_it_one_dict(self) -> None:
        text = python_stub(tool("send", schema=KEYWORDS))
        assert "async def git__send(args: Git_Send_Args, /) -> Any: ..." in text
        declared = next(
            node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Dict) and len(node.keys) == 6
        )
        assert [ast.literal_eval(key) for key in declared.keys if key] == list(KEYWORDS["properties"])

    def test_a_key_that_means_a_type_does_not_hide_it(self) -> None:
        schema = {"properties": {"o": {"properties": {"str": {"type": "string"}, "x": {"type": "string"}}}}}
        assert "TypedDict(\"Git_Log_O\", {\n    'str': str," in python_stub(tool(schema=schema))

    @pytest.mark.parametrize(
        ("parameter", "written"),
        [
            ({"type": "integer", "default": 5}, "a: int = 5"),
            ({"type": "integer", "default": "int"}, "a: int = ..."),
            ({"type": "integer", "default": True}, "a: int = ..."),
            ({"type": "number", "default": 1}, "a: float = 1"),
            ({"type": "boolean", "default": False}, "a: bool = False"),
            ({"type": "string", "default": "None"}, "a: str = 'None'"),
            ({"type": "string", "default": "x" * 60}, "a: str = ..."),
            ({"type": ["string", "null"], "default": None}, "a: str | None = None"),
            ({"enum": ["x", "y"], "default": "y"}, "a: Literal['x', 'y'] = 'y'"),
            ({"enum": ["x", "y"], "default": "z"}, "a: Literal['x', 'y'] = ..."),
            ({"type": "array", "default": []}, "a: list[Any] = ..."),
            ({"type": "integer", "default": 10**30}, "a: int = ..."),
        ],
    )
    def test_a_short_default_that_fits_its_type_is_shown(self, parameter: Any, written: str) -> None:
        assert f"(*, {written})" in python_stub(tool(schema={"properties": {"a": parameter}}))

    def test_required_parameters_are_never_left_out(self) -> None:
        schema = {"properties": {f"p{n}": {"type": "string"} for n in range(100)}, "required": ["p99", "p50"]}
        assert "(*, p50: str, p99: str, p0: str = ..." in python_stub(tool(schema=schema))
        assert python_stub(tool(schema=schema), "line") == "git__log(p50=..., p99=..., **...)"

    def test_equal_objects_are_declared_once(self) -> None:
        point = {"type": "object", "properties": {"x": {"type": "number"}}}
        text = python_stub(tool(schema={"properties": {"start": point, "end": point}}))
        assert text.count("TypedDict") == 1


class TestShortening:
    NESTED = tool(schema={"properties": {"o": ISSUE, "e": {"enum": list("abcdefgh")}}}, outputSchema=ISSUE)

    def test_each_step_is_shorter_and_says_what_is_missing(self) -> None:
        whole = python_stub(self.NESTED)
        no_result = python_stub(self.NESTED, result_type=False)
        shallow = python_stub(self.NESTED, result_type=False, shallow=True)
        line = python_stub(self.NESTED, "line")
        assert len(whole) > len(no_result) > len(shallow) > len(line)
        assert NO_RESULT_TYPE not in whole
        assert NO_RESULT_TYPE in no_result
        assert SHORTENED in shallow
        assert "o: dict[str, Any] = ..., e: str = ..." in shallow

    def test_shallow_keeps_the_first_level_of_a_result(self) -> None:
        assert "class Git_Log_Result(TypedDict)" in python_stub(self.NESTED, shallow=True)

    def test_what_fits_is_not_marked(self) -> None:
        small = tool(schema={"properties": {"a": {"type": "string"}}})
        assert SHORTENED not in python_stub(small, shallow=True)

    @pytest.mark.case("DOCS-13")
    def test_more_rules_are_marked(self) -> None:
        assert LOSSY in python_stub(tool(schema={"properties": {"a": {"not": {}}}}))
        assert LOSSY not in python_stub(tool(schema={"properties": {"a": {"type": "string"}}}))


class TestNamesOfTypes:
    def test_tools_whose_names_differ_little_have_different_types(self) -> None:
        identifiers = [
            "a__get_x",
            "a__getX",
            "a__get_X",
            "a__get_x_2",
            "a__get__x",
            "a_get__x",
            "A__get_x",
            "a__get_x_",
        ]
        assert len({type_prefix(identifier) for identifier in identifiers}) == len(identifiers)

    def test_they_are_never_the_name_of_a_tool(self) -> None:
        assert "__" not in type_prefix("a__b")
        assert type_prefix("git__get_log") == "Git_GetLog"


@pytest.mark.case("SCHEMAS-04")
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{n}": {"enum": [f"v{n}_{m}" for m in range(500)]} for n in range(50)}},
        {"properties": {f"p{n}": {"type": "string"} for n in range(5_000)}},
        {
            "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(24)} | {"d24": {}},
            "$ref": "#/$defs/d0",
        },
        {
            "$defs": {f"d{n}": {"properties": {k: {"$ref": f"#/$defs/d{n + 1}"} for k in "ab"}} for n in range(24)}
            | {"d24": {}},
            "$ref": "#/$defs/d0",
        },
        {"properties": {"a": {"properties": {"b": {"$ref": "#/properties/a"}}}}},
    ],
)
def test_bombs_are_small_when_printed(schema: Any) -> None:
    made = tool(schema=schema)
    for form in FORMS:
        text = python_stub(made, form)
        ast.parse(text)
        assert len(text) < 20_000


@settings(max_examples=100, deadline=None)
@given(
    schema=broken_schemas(15),
    output=broken_schemas(5),
    name=st.text(min_size=1, max_size=12),
    description=st.text(max_size=40),
)
def test_any_schema_gives_stubs_that_parse_and_stay_small(
    schema: Any, output: Any, name: str, description: str
) -> None:
    for made in make_tools("x", AsPublished(), [entry(name, description, schema, outputSchema=output)]).tools:
        for form in FORMS:
            for shallow in (False, True):
                text = python_stub(made, form, shallow=shallow)
                ast.parse(text)
                assert len(text) < 60_000


def test_a_type_checker_accepts_the_stubs_of_many_tools_in_one_module(tmp_path: Path) -> None:
    tools = [found for entries in catalog(WORKSHOP).upstreams.values() for found in entries.tools]
    tools += make_tools("odd", AsPublished(), list(SAMPLES.values())).tools
    module = "\n\n".join([PRELUDE, *(python_stub(found, "full") for found in tools)])
    (tmp_path / "stubs.pyi").write_text(module, encoding="utf-8")
    script = """
import stubs
async def main() -> None:
    await stubs.git__show_commit(repo="a", sha="b")
    await stubs.odd__send(
        {"content-type": "a", "from": "b", "class": 1, "$top": 2, "1st": True, "lambda": {"in": "x", "str": "y"}}
    )
    title: str = (await stubs.odd__list_issues())[0]["title"]
    await stubs.odd__draw(root={"name": "a", "kids": [{"name": "b"}]})
    await stubs.odd__find({"id": 3})
    await stubs.odd__echo(anything=1)
"""
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file", os.devnull, "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
