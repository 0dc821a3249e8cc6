"""The names of tools: unique, callable as they are shown, and helpful when they are slightly wrong."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.running import Running, config, faulty, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "u" * 60
ODD = ["get-x", "get_x", "get.x", "getX", "1x", "class", "获取"]
KEYS = ["content-type", "from", "class", "$top", "1st", "lambda"]
NESTED = ["in", "x-y"]
DIRECT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def tool(name: str, description: str = "Returns its own name.", schema: Mapping[str, Any] | None = None) -> Any:
    return {"name": name, "description": description, "inputSchema": schema or {"type": "object"}}


def an_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


SEND = an_object(
    {key: {"type": "string"} for key in KEYS} | {"nested": an_object({key: {"type": "integer"} for key in NESTED})}
)
UPSTREAMS = {
    "a": [tool("search", "Searches notes.")],
    "b": [tool("search", "Searches mail.")],
    "odd": [*map(tool, ODD), tool("get-x", "The same name again.")],
    "git": [tool("search_code"), tool("log"), tool("commit")],
    # the decoys come first for "deliver", so that send is shown as a line there
    "args": [tool("send", "Can deliver odd keys.", SEND), *map(tool, ("deliver", "deliver_now", "deliver_later"))],
    "hidden": [tool("search_repos")],
}


def offering(folder: Path, name: str, tools: list[Any]) -> dict[str, Any]:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(tools))
    return faulty("--tools-file", str(file))


def long_named() -> dict[str, Any]:
    """Two tools whose names are equal in their first 116 characters."""
    return faulty("--tools", "2", "--name-len", "120")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("naming")
    upstreams = {name: offering(folder, name, tools) for name, tools in UPSTREAMS.items()}
    upstreams |= {LONG: long_named(), "p": faulty(), "q": faulty()}
    seen = {name: ["*"] for name in upstreams if name != "hidden"}
    tenants = {"acme": {"upstreams": seen}, "beta": {"upstreams": {"hidden": ["*"]}}}
    async with serving(folder, config(upstreams, tenants)) as running:
        await running.wait_for(**dict.fromkeys(upstreams, "ready"))
        yield running


async def direct_names(running: Running) -> list[str]:
    answer = await running.rpc("tools/list", path="/mcp/direct")
    return [tool["name"] for tool in answer["result"]["tools"]]


async def raw_name(running: Running, call: str) -> Any:
    """What the tool at the other end is called by its own server."""
    return (await running.run(f"(await {call})['tool']")).text


async def functions(running: Running, names: list[str]) -> list[str]:
    """The functions that docs_search shows for these names, in their order."""
    text = await running.search(names=names)
    return [node.name for node in ast.parse(text).body if isinstance(node, ast.AsyncFunctionDef)]


def candidates(text: str) -> list[str]:
    found = re.search(r"did you mean (.*)\?", text)
    return found[1].split(", ") if found else []


# ---------------------------------------------------------------- long


@pytest.mark.case("NAMING-01")
async def test_long_names_are_callable_by_their_full_name(running: Running) -> None:
    for last in "12":
        own = "tool_" + "x" * 111 + f"000{last}"
        assert await raw_name(running, f"{LONG}__{own}()") == own
        assert await raw_name(running, f"call_tool('{LONG}__{own}')") == own


@pytest.mark.case("NAMING-01")
async def test_long_direct_names_are_legal_distinct_stable_and_lead_to_their_tools(
    running: Running, tmp_path: Path
) -> None:
    names = await direct_names(running)
    assert len(set(names)) == len(names)
    assert all(DIRECT_NAME.fullmatch(name) for name in names)
    found = {}
    for name in names:
        if name.startswith("u"):
            found[(await running.direct(name, {"a": 1, "b": 2, "message": "m"})).result["content"][0]["text"]] = name
    ours = {text: name for text, name in found.items() if text.startswith("tool_")}
    assert {text[-4:] for text in ours} == {"0001", "0002"}
    assert len(set(ours.values())) == 2

    async with serving(tmp_path, config({LONG: long_named()}, ("acme", "beta"))) as again:
        await again.wait_for(**{LONG: "ready"})
        for text, name in ours.items():
            assert (await again.direct(name, {})).text == text


# ---------------------------------------------------------------- the same name twice


@pytest.mark.case("NAMING-02")
async def test_two_upstreams_may_have_a_tool_of_the_same_name(running: Running) -> None:
    for form in ("{name}()", "call_tool('{name}')", "call_tool('{name}', {{}})"):
        for upstream in "ab":
            assert await raw_name(running, form.format(name=f"{upstream}__search")) == "search"
    text = await running.search("search")
    assert text.index("Searches notes.") < text.index("async def a__search(")
    assert text.index("Searches mail.") < text.index("async def b__search(")
    assert {"a__search", "b__search"} <= set(await direct_names(running))


@pytest.mark.case("NAMING-02")
async def test_each_qualified_call_reaches_its_own_upstream(running: Running) -> None:
    """Which process answers, told by the processes themselves."""
    code = "[(await p__whoami())['pid'], (await q__whoami())['pid'], (await call_tool('p__whoami'))['pid']]"
    first, second, again = (await running.run(code)).json()
    assert first == again != second
    assert (await running.direct("q__whoami", {})).result["structuredContent"]["pid"] == second


@pytest.mark.case("NAMING-02")
async def test_a_bare_name_is_unknown_and_names_all_candidates(running: Running) -> None:
    answer = await running.run("await call_tool('search')")
    assert answer.text.startswith("UNKNOWN_TOOL: ")
    assert candidates(answer.text)[:2] == ["a__search", "b__search"]


# ---------------------------------------------------------------- identifiers


@pytest.mark.case("NAMING-03")
async def test_every_tool_has_an_attribute_of_its_own(running: Running) -> None:
    shown = await functions(running, [f"odd__{name}" for name in ODD])
    assert len(set(shown)) == len(ODD)
    assert all(name.isidentifier() and name.isascii() for name in shown)
    for name, own in zip(shown, ODD, strict=True):
        assert await raw_name(running, f"{name}()") == own
        assert await raw_name(running, f"call_tool('{name}')") == own
        assert await raw_name(running, f"call_tool('odd__{own}')") == own


@pytest.mark.case("NAMING-03")
async def test_direct_names_of_odd_tools_lead_back(running: Running) -> None:
    names = [name for name in await direct_names(running) if name.startswith("odd__")]
    assert [(await running.direct(name, {})).result["structuredContent"]["tool"] for name in sorted(names)]
    reached = {(await running.direct(name, {})).result["structuredContent"]["tool"] for name in names}
    assert reached == set(ODD)
    for name in names:
        assert await raw_name(running, f"call_tool('{name}')") in ODD


@pytest.mark.case("NAMING-03")
async def test_what_cannot_be_told_apart_is_reported_at_load(running: Running) -> None:
    (line,) = [line for line in running.log if "'get-x' comes twice" in line]
    assert "upstream odd" in line
    assert '"level":"warning"' in line
    assert (await running.upstream("odd"))["dropped"] == 1


# ---------------------------------------------------------------- nearly right


@pytest.mark.case("NAMING-04")
async def test_outer_spaces_do_not_count(running: Running) -> None:
    assert await raw_name(running, "call_tool('  git__search_code\\n')") == "search_code"
    assert await functions(running, [" git__search_code "]) == ["git__search_code"]


@pytest.mark.case("NAMING-04")
@pytest.mark.parametrize(
    "spelling",
    [
        " Git__search_code ",
        "GIT__SEARCH_CODE",
        "git__serch_code",
        "git__search_codes",
        "git.search_code",
        "git_search_code",
        "git-search-code",
        "git/search_code",
        "search_code",
        "mcp__git__search_code",
    ],
)
async def test_a_slightly_wrong_name_gets_the_right_one(running: Running, spelling: str) -> None:
    answer = await running.run(f"await call_tool('{spelling}')")
    assert answer.text.startswith("UNKNOWN_TOOL: ")
    assert candidates(answer.text)[0] == "git__search_code"
    assert len(candidates(answer.text)) <= 3
    assert f"did you mean {candidates(answer.text)[0]}" in await running.search(names=[spelling])


@pytest.mark.case("NAMING-04")
async def test_a_wrong_attribute_gets_the_right_one_too(running: Running) -> None:
    answer = await running.run("x = 1\nawait git__serch_code()")
    assert answer.text.startswith("UNKNOWN_TOOL: no tool named 'git__serch_code' (line 2)")
    assert candidates(answer.text) == ["git__search_code"]


@pytest.mark.case("NAMING-04")
@pytest.mark.parametrize("spelling", ["hidden__search_repos", "search_repos", "hidden__search_repo", "Hidden.search"])
async def test_candidates_are_the_tenants_own_tools(running: Running, spelling: str) -> None:
    answer = await running.run(f"await call_tool('{spelling}')")
    assert answer.text.startswith("UNKNOWN_TOOL: ")
    assert "hidden" not in answer.text.replace(f"'{spelling}'", "")
    assert all(name.partition("__")[0] in ("a", "b", "git") for name in candidates(answer.text))
    assert "hidden__search_repos" not in await running.search(spelling)
    assert (await running.call("execute_code", {"code": "(await hidden__search_repos())['tool']"}, tenant="beta")).text


@pytest.mark.case("NAMING-04")
@pytest.mark.parametrize(
    "call",
    [
        "docs_search('search code')",
        "docs_search(query='search code')",
        "docs_search({'query': 'search code'})",
        "search_docs('search code')",
        "call_tool('docs_search', {'query': 'search code'})",
        "call_tool('search_docs', query='search code')",
    ],
)
async def test_the_search_of_the_facade_works_inside_a_script(running: Running, call: str) -> None:
    assert (await running.run(f"await {call}")).text == await running.search("search code")


@pytest.mark.case("NAMING-04")
async def test_the_search_of_the_facade_takes_its_arguments_inside_a_script(running: Running) -> None:
    answer = await running.run("await docs_search(names=['git__log'], includeSchemas=True)")
    assert answer.text == await running.search(names=["git__log"], includeSchemas=True)
    for wrong in ("docs_search(5)", "docs_search('a', 'b')", "docs_search(name='git__log')", "docs_search(names=5)"):
        assert (await running.run(f"await {wrong}")).text.startswith("INVALID_ARGUMENTS: ")


@pytest.mark.case("NAMING-04")
@pytest.mark.parametrize("call", ["execute_code('1')", "execute_code(code='1')", "call_tool('execute_code', {})"])
async def test_execute_code_inside_a_script_says_what_to_do_instead(running: Running, call: str) -> None:
    answer = await running.run(f"await {call}")
    assert answer.is_error
    assert "call the tools directly" in answer.text


# ---------------------------------------------------------------- arguments


@pytest.mark.case("NAMING-05")
async def test_odd_argument_names_can_be_passed_as_they_are_documented(running: Running) -> None:
    text = await running.search(names=["args__send"])
    *types, function = ast.parse(text).body
    assert isinstance(function, ast.AsyncFunctionDef)
    assert [argument.arg for argument in function.args.posonlyargs] == ["args"]
    declared = {ast.literal_eval(key) for node in types for key in ast.walk(node) if isinstance(key, ast.Constant)}
    assert {*KEYS, *NESTED} <= declared

    line = next(line for line in (await running.search("deliver")).splitlines() if line.startswith("args__send("))
    call, _, comment = line.partition("  # ")
    assert comment == "Can deliver odd keys."
    arguments: dict[str, Any] = {key: key for key in KEYS} | {"nested": dict.fromkeys(NESTED, 7)}
    for key, value in arguments.items():
        call = call.replace(f"{key!r}: ...", f"{key!r}: {value!r}")
    assert "..." not in call
    assert (await running.run(f"await {call}")).json() == {"tool": "send", "arguments": arguments}
    assert (await running.run(f"await call_tool('args__send', {arguments!r})")).json()["arguments"] == arguments
    assert (await running.direct("args__send", arguments)).result["structuredContent"]["arguments"] == arguments


@pytest.mark.case("NAMING-05")
async def test_a_missing_odd_argument_is_named(running: Running) -> None:
    answer = await running.run("await args__send({'from': 'me'})")
    assert answer.text.startswith("INVALID_ARGUMENTS: ")
    assert "content-type" in answer.text
