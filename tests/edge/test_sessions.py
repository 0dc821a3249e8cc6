"""Signed session ids: whose they are, and for how long."""

from __future__ import annotations

import pytest

from gateway.edge.sessions import LIFETIME_S, SessionIds

IDS = SessionIds(b"pepper")


def test_an_id_belongs_to_its_tenant_and_key() -> None:
    session = IDS.mint("acme", "key1")
    assert session.isascii()
    assert session.isprintable()
    assert IDS.check(session, "acme", "key1")
    assert not IDS.check(session, "beta", "key1")
    assert not IDS.check(session, "acme", "key2")
    assert not IDS.check(session, "acm", "ekey1")


def test_replicas_that_share_the_secret_accept_each_others_ids() -> None:
    session = IDS.mint("acme", "key1")
    assert SessionIds(b"pepper").check(session, "acme", "key1")
    assert not SessionIds(b"another").check(session, "acme", "key1")


def test_an_id_expires() -> None:
    session = IDS.mint("acme", "key1", now=1_000)
    assert IDS.check(session, "acme", "key1", now=1_000 + LIFETIME_S - 1)
    assert not IDS.check(session, "acme", "key1", now=1_000 + LIFETIME_S)


@pytest.mark.parametrize("forged", ["", "x", "A" * 48, "é" * 48, "=" * 48, "A" * 10_000])
def test_what_we_did_not_mint_is_refused(forged: str) -> None:
    assert not IDS.check(forged, "acme", "key1")


def test_a_changed_character_is_noticed() -> None:
    session = IDS.mint("acme", "key1")
    for place in range(0, len(session), 7):
        other = "B" if session[place] == "A" else "A"
        assert not IDS.check(session[:place] + other + session[place + 1 :], "acme", "key1")
