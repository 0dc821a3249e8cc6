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
    wanted = Wanted(frozenset({RESOURCE_UPDATED}), frozenset({"a://1"}))
    with hub.subscribed("acme", wanted) as stream:
        hub.tell("acme", TOOLS_CHANGED)
        hub.tell("acme", RESOURCE_UPDATED, "a://2")
        assert not stream.news
        hub.tell("acme", RESOURCE_UPDATED, "a://1")
        assert await stream.next() == [(RESOURCE_UPDATED, "a://1")]


async def test_a_storm_is_one_message() -> None:
    hub = Changes()
    with hub.subscribed("acme", TOOLS) as stream:
        for _ in range(10_000):
            hub.tell("acme", TOOLS_CHANGED)
        assert await stream.next() == [(TOOLS_CHANGED, "")]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await stream.next()
