"""What a client carries for us is ours, for one purpose and one owner, for a while."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.facade.seals import Broken, Seals

SEALS = Seals(b"secret")


@given(st.binary(max_size=300), st.text(max_size=20), st.text(max_size=20))
def test_what_was_sealed_opens(value: bytes, purpose: str, owner: str) -> None:
    sealed = SEALS.seal(purpose, owner, value, 60)
    assert sealed.isascii()
    assert SEALS.open(purpose, owner, sealed) == value


def test_nobody_else_can_open_it() -> None:
    sealed = SEALS.seal("cursor", "acme", b"7", 60)
    for purpose, owner in (("cursor", "beta"), ("state", "acme"), ("cursora", "cme"), ("curso", "racme")):
        with pytest.raises(Broken):
            SEALS.open(purpose, owner, sealed)
    with pytest.raises(Broken):
        Seals(b"another").open("cursor", "acme", sealed)
    assert Seals(b"secret").open("cursor", "acme", sealed) == b"7"


def test_it_expires() -> None:
    sealed = SEALS.seal("cursor", "acme", b"7", 60, now=1_000)
    assert SEALS.open("cursor", "acme", sealed, now=1_059) == b"7"
    with pytest.raises(Broken, match="expired"):
        SEALS.open("cursor", "acme", sealed, now=1_060)


@pytest.mark.parametrize("forged", ["", "x", "ä", "A" * 40, "=" * 40, "A" * 100_000])
def test_what_we_did_not_seal_is_broken(forged: str) -> None:
    with pytest.raises(Broken):
        SEALS.open("cursor", "acme", forged)


def test_every_changed_character_breaks_it() -> None:
    sealed = SEALS.seal("cursor", "acme", b"seven", 60)
    for place in range(len(sealed)):
        other = "B" if sealed[place] == "A" else "A"
        changed = sealed[:place] + other + sealed[place + 1 :]
        try:
            opened = SEALS.open("cursor", "acme", changed)
        except Broken:
            continue
        # the last character may hold bits that base64 does not use
        assert (place, opened) == (len(sealed) - 1, b"seven")
