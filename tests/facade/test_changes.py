"""Changes reach who asked for them, once, however many there are."""

from __future__ import annotations

import asyncio

import pytest

from gateway.facade.changes import RESOURCE_UPDATED, TOOLS_CHANGED, Changes, Wanted

TOOLS = Wanted(frozenset({TOOLS_CHANGED}))


async def test_only_the_tenants_own_streams_hear() -> None:
    hub = Changes()
    with hub.subscribed("acme", TOOLS) as acme, hub.subscribed("beta", TOOLS) as beta:
        hub.tell("acme", TOOLS_CHANGED)
        assert await acme.next() == [(TOOLS_CHANGED, "")]
        assert not beta.news
        assert sorted(hub.listeners()) == ["acme", "beta"]
    assert hub.listeners() == []


async def test_only_what_was_asked_for() -> None:
    hub = Changes()
    wanted = Wanted(frozenset({RESOURCE_UPDATED}), {("a", "a://1"): "a://1"})
    with hub.subscribed("acme", wanted) as stream:
        hub.tell("acme", TOOLS_CHANGED)
        hub.tell("acme", RESOURCE_UPDATED, "a", "a://2")
        hub.tell("acme", RESOURCE_UPDATED, "b", "a://1")
        assert not stream.news
        hub.tell("acme", RESOURCE_UPDATED, "a", "a://1")
        assert await stream.next() == [(RESOURCE_UPDATED, "a://1")]


@pytest.mark.parametrize(
    ("updated", "heard"),
    [
        ("x://tree", "gate://b/x://tree"),
        ("x://tree/leaf/vein", "gate://b/x://tree/leaf/vein"),
        ("x://tree-house", None),
        ("x://dir/", "gate://b/x://dir/"),
        ("x://dir/file", "gate://b/x://dir/file"),
        ("x://", None),
        ("", None),
        ("x://tree" + "/" * 100_000, None),
    ],
)
async def test_a_part_of_a_resource_counts_and_keeps_the_clients_name_of_the_whole(
    updated: str, heard: str | None
) -> None:
    hub = Changes()
    uris = {("b", "x://tree"): "gate://b/x://tree", ("b", "x://dir/"): "gate://b/x://dir/"}
    with hub.subscribed("acme", Wanted(frozenset({RESOURCE_UPDATED}), uris)) as stream:
        hub.tell("acme", RESOURCE_UPDATED, "b", updated)
        assert [uri for _, uri in stream.news] == ([] if heard is None else [heard])


async def test_a_storm_is_one_message() -> None:
    hub = Changes()
    with hub.subscribed("acme", TOOLS) as stream:
        for _ in range(10_000):
            hub.tell("acme", TOOLS_CHANGED)
        assert await stream.next() == [(TOOLS_CHANGED, "")]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await stream.next()
