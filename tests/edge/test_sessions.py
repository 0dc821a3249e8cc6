"""Signed session ids: whose they are, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.edge.sessions import LIFETIME_S, SessionIds

IDS = SessionIds(b"pepper")


def test_an_id_belongs_to_its_tenant_and_key() -> None:
    session = IDS.mint("acme", "key1", {})
    assert session.isascii()
    assert session.isprintable()
    assert IDS.open(session, "acme", "key1") is not None
    assert IDS.open(session, "beta", "key1") is None
    assert IDS.open(session, "acme", "key2") is None
    assert IDS.open(session, "acm", "ekey1") is None


def test_replicas_that_share_the_secret_accept_each_others_ids() -> None:
    session = IDS.mint("acme", "key1", {})
    assert SessionIds(b"pepper").open(session, "acme", "key1") is not None
    assert SessionIds(b"another").open(session, "acme", "key1") is None


def test_an_id_expires() -> None:
    session = IDS.mint("acme", "key1", {}, now=1_000)
    assert IDS.open(session, "acme", "key1", now=1_000 + LIFETIME_S - 1) is not None
    assert IDS.open(session, "acme", "key1", now=1_000 + LIFETIME_S) is None


@pytest.mark.parametrize("forged", ["", "x", "A" * 48, "é" * 48, "=" * 48, "A" * 10_000])
def test_what_we_did_not_mint_is_refused(forged: str) -> None:
    assert IDS.open(forged, "acme", "key1") is None


def test_a_changed_character_is_noticed() -> None:
    session = IDS.mint("acme", "key1", {})
    for place in range(0, len(session), 7):
        other = "B" if session[place] == "A" else "A"
        assert IDS.open(session[:place] + other + session[place + 1 :], "acme", "key1") is None


def test_it_says_what_its_client_can_be_asked_for() -> None:
    declared: list[dict[str, Any]] = [{}, {"sampling": {}}, {"elicitation": {"form": {}}, "roots": {}}]
    for capabilities in declared:
        session = IDS.mint("acme", "key1", {**capabilities, "experimental": {}})
        assert IDS.open(session, "acme", "key1") == {name: {} for name in capabilities}
