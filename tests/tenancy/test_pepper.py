"""Where the pepper comes from, and that a lost or wrong one is noticed."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.config.model import State
from gateway.tenancy.keyring import KeyRing
from gateway.tenancy.pepper import PepperUnavailable, configured_pepper, fingerprint, pepper_file

GOOD = "0f" * 8 + "correct-horse"


def test_the_file_is_made_at_first_use_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys.db.pepper"
    previous = os.umask(0)
    try:
        pepper = pepper_file(path, keys_exist=False)
    finally:
        os.umask(previous)
    assert len(pepper) == 32
    assert path.read_text() == pepper.hex() + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    first = pepper_file(path, keys_exist=False)
    assert pepper_file(path, keys_exist=False) == first
    assert pepper_file(path, keys_exist=True) == first


def test_many_who_need_it_at_once_agree(tmp_path: Path) -> None:
    for round_ in range(20):
        path = tmp_path / f"pepper{round_}"
        with ThreadPoolExecutor(8) as pool:
            peppers = set(pool.map(lambda _, path=path: pepper_file(path, keys_exist=False), range(8)))
        assert len(peppers) == 1


def test_a_missing_file_is_an_error_when_keys_depend_on_it(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    with pytest.raises(PepperUnavailable, match="is missing, but keys were made with it"):
        pepper_file(path, keys_exist=True)
    assert not path.exists()


@pytest.mark.parametrize("content", ["changeme", "", "0" * 63, "0" * 65, "g" * 64, "0" * 64 + "\n\n"])
def test_a_damaged_file_is_an_error_that_does_not_show_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "pepper"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(PepperUnavailable, match="is damaged") as caught:
        pepper_file(path, keys_exist=False)
    assert not content or content not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o606, 0o644])
def test_a_file_that_everybody_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "pepper"
    pepper_file(path, keys_exist=False)
    path.chmod(mode)
    with pytest.raises(PepperUnavailable, match="chmod 600"):
        pepper_file(path, keys_exist=True)


def test_a_place_where_no_file_can_be_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(PepperUnavailable, match="folder does not exist"):
        pepper_file(tmp_path / "no" / "pepper", keys_exist=False)
    with pytest.raises(PepperUnavailable, match="directory"):
        pepper_file(tmp_path, keys_exist=False)


@pytest.mark.case("AUTH-11")
@pytest.mark.parametrize("weak", ["x", "changeme", "changemechangeme", "a" * 64, "secret secret secret"])
def test_a_weak_configured_pepper_is_refused_and_not_repeated(weak: str) -> None:
    with pytest.raises(PepperUnavailable, match="too weak") as caught:
        configured_pepper(weak)
    assert weak == "x" or weak not in str(caught.value)


def test_a_configured_pepper_is_used_as_it_is_written(tmp_path: Path) -> None:
    with KeyRing.open(State(pepper=GOOD), tmp_path) as ring:
        assert ring.pepper() == GOOD.encode()
        assert GOOD not in repr(ring)
    assert not list(tmp_path.glob("*.pepper"))


def test_the_fingerprint_tells_peppers_apart_and_is_none() -> None:
    assert fingerprint(b"one") == fingerprint(b"one") != fingerprint(b"two")
    assert b"one" not in fingerprint(b"one")


def test_another_pepper_than_the_keys_were_made_with_is_an_error(tmp_path: Path) -> None:
    with KeyRing.open(State(), tmp_path) as ring:
        ring.create("acme", expires_in_s=None)
    with (
        KeyRing.open(State(pepper=GOOD), tmp_path) as ring,
        pytest.raises(PepperUnavailable, match="is not the pepper that the keys in the store were made with"),
    ):
        ring.create("acme", expires_in_s=None)


def test_a_lost_pepper_leaves_listing_and_revoking_possible_and_then_a_fresh_start(tmp_path: Path) -> None:
    with KeyRing.open(State(), tmp_path) as ring:
        lost = ring.create("acme", expires_in_s=None)
    (tmp_path / "gateway.db.pepper").unlink()
    with KeyRing.open(State(), tmp_path) as ring:
        with pytest.raises(PepperUnavailable, match="is missing"):
            ring.create("acme", expires_in_s=None)
        assert [record.key_id for record in ring.list()] == [lost.key_id]
        ring.revoke(lost.key_id)
        ring.create("acme", expires_in_s=None)
    assert (tmp_path / "gateway.db.pepper").exists()
