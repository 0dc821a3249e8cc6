"""Resources and prompts of several upstreams look like those of one, and each is reachable under a name of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gateway.errors import ErrorClass, GatewayError
from gateway.facade.base import Refused
from gateway.facade.features import KINDS, Features, Source

EVERYTHING: Mapping[str, Any] = {"resources": {}, "prompts": {}}
Offers = Mapping[str, Mapping[str, list[str]]]
"""Upstream → list method → names or URIs."""


def house(offers: Offers, **prefixes: str) -> Features:
    """Upstreams that offer these; prompts of the ones not named have no prefix."""
    members = {"resources/list": "uri", "resources/templates/list": "uriTemplate", "prompts/list": "name"}

    async def ask(upstream: str, method: str, params: Mapping[str, Any]) -> bytes:
        entries = [{members[method]: name, "description": upstream} for name in offers[upstream].get(method, ())]
        return msgspec.json.encode({KINDS[method]: entries})

    return Features([Source(name, prefixes.get(name, ""), EVERYTHING) for name in sorted(offers)], ask)


def shown(entries: list[dict[str, Any]]) -> dict[str, str]:
    """Name or URI → whose it is."""
    names = [entry.get("uri") or entry.get("uriTemplate") or entry["name"] for entry in entries]
    assert len(set(names)) == len(names)
    return {name: entry["description"] for name, entry in zip(names, entries, strict=True)}


RESOURCES: Offers = {
    "a": {"resources/list": ["x://1", "x://a"], "resources/templates/list": ["x://page/{n}"]},
    "b": {"resources/list": ["x://1", "x://b"], "resources/templates/list": ["x://page/{number}", "y://{z}"]},
}


@pytest.mark.case("PASS-04")
async def test_the_first_upstream_keeps_a_uri_and_the_others_is_shown_under_a_longer_one() -> None:
    features = house(RESOURCES)
    assert shown(await features.entries("resources/list")) == {
        "x://1": "a",
        "x://a": "a",
        "x://b": "b",
        "codemode-gateway://b/x://1": "b",
    }


@pytest.mark.case("PASS-04")
async def test_templates_that_differ_only_in_their_variables_collide() -> None:
    assert shown(await house(RESOURCES).entries("resources/templates/list")) == {
        "x://page/{n}": "a",
        "y://{z}": "b",
        "codemode-gateway://b/x://page/{number}": "b",
    }


@pytest.mark.case("PASS-04")
@pytest.mark.parametrize(
    ("uri", "owner", "own"),
    [
        ("x://1", "a", "x://1"),
        ("x://b", "b", "x://b"),
        ("codemode-gateway://b/x://1", "b", "x://1"),
        ("codemode-gateway://a/x://1", "a", "x://1"),  # also where it is not needed
        ("x://page/7", "a", "x://page/7"),
        ("codemode-gateway://b/x://page/7", "b", "x://page/7"),
        ("codemode-gateway://b/x://page/{number}", "b", "x://page/{number}"),
        ("x://page/{number}", "b", "x://page/{number}"),  # the very template, before one that it would fit
        ("y://anything", "b", "y://anything"),
    ],
)
async def test_every_uri_leads_to_its_upstream(uri: str, owner: str, own: str) -> None:
    owned = await house(RESOURCES).resource_owner(uri)
    assert (owned.source.name, owned.uri, owned.prefix + owned.uri) == (owner, own, uri)


async def test_of_templates_that_fit_the_one_with_more_text_wins() -> None:
    features = house(
        {"a": {"resources/templates/list": ["x://{all}"]}, "b": {"resources/templates/list": ["x://page/{n}"]}}
    )
    assert (await features.resource_owner("x://page/7")).source.name == "b"
    assert (await features.resource_owner("x://other")).source.name == "a"


@pytest.mark.parametrize("uri", ["z://1", "codemode-gateway://c/x://1", "codemode-gateway://", ""])
async def test_a_uri_that_nobody_serves_is_refused(uri: str) -> None:
    with pytest.raises(Refused) as refused:
        await house(RESOURCES).resource_owner(uri)
    assert refused.value.data == {"uri": uri}


async def test_nobody_can_take_the_longer_uri_of_another() -> None:
    features = house({"a": {"resources/list": ["codemode-gateway://b/x://1"]}, "b": {"resources/list": ["x://1"]}})
    assert shown(await features.entries("resources/list")) == {
        "x://1": "b",
        "codemode-gateway://a/codemode-gateway://b/x://1": "a",
    }
    assert (await features.resource_owner("codemode-gateway://b/x://1")).source.name == "b"


PROMPTS: Offers = {
    "a": {"prompts/list": ["greet", "only"]},
    "b": {"prompts/list": ["greet"]},
    "c": {"prompts/list": ["greet", "b__greet"]},
    "d": {"prompts/list": ["greet"]},
}


@pytest.mark.case("PASS-04")
async def test_prompts_without_prefix_that_collide_get_one() -> None:
    features = house(PROMPTS, d="d__")
    listed = shown(await features.entries("prompts/list"))
    assert listed["greet"] == "a"
    assert listed["c__greet"] == "c"
    assert listed["d__greet"] == "d"
    assert listed["b__greet"] == "c"  # by itself; a longer form takes nobody's name
    for name, upstream in listed.items():
        assert (await features.prompt_owner(name))[0].name == upstream
    assert await features.prompt_owner("d__greet") == (Source("d", "d__", EVERYTHING), "greet")


@pytest.mark.parametrize("name", ["", "nothing", "b__only", "e__greet"])
async def test_an_unknown_prompt_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        await house(PROMPTS).prompt_owner(name)


async def test_an_upstream_that_fails_or_answers_nonsense_spoils_no_list() -> None:
    answers: dict[str, list[bytes]] = {
        "a": [b"[]"],
        "b": [b'{"resources": [7, {"uri": 7}, {"uri": ""}, {}, {"uri": "b://1"}, {"uri": "b://1"}]}'],
        "c": [b'{"resources": [{"uri": "c://1"}], "nextCursor": "2"}', b"not JSON"],
        "d": [b'{"resources": {"uri": "d://1"}}'],
    }

    async def ask(upstream: str, method: str, params: Mapping[str, Any]) -> bytes:
        await asyncio.sleep(0)
        if upstream == "e":
            raise GatewayError(ErrorClass.UPSTREAM_TIMEOUT, "too late")
        return answers[upstream].pop(0)

    features = Features([Source(name, "", EVERYTHING) for name in "abcde"], ask)
    assert [entry["uri"] for entry in await features.entries("resources/list")] == ["b://1", "c://1"]


async def test_a_list_that_never_ends_is_read_until_its_cursor_repeats() -> None:
    async def ask(upstream: str, method: str, params: Mapping[str, Any]) -> bytes:
        return b'{"prompts": [{"name": "p"}], "nextCursor": "again"}'

    features = Features([Source("a", "a__", EVERYTHING)], ask)
    assert await features.entries("prompts/list") == [{"name": "a__p"}]


async def test_only_upstreams_with_the_capability_are_asked() -> None:
    async def ask(upstream: str, method: str, params: Mapping[str, Any]) -> bytes:
        raise AssertionError(f"{upstream} was asked for {method}")

    features = Features([Source("a", "a__", {"tools": {}})], ask)
    for method in KINDS:
        assert await features.entries(method) == []
