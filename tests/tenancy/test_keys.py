"""The text of a key."""

from __future__ import annotations

import hashlib
import hmac
import re
import string
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenancy.keys import NewKey, ParsedKey, digest, generate, parse

BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase


def test_a_key_has_a_prefix_an_environment_an_id_a_secret_and_a_checksum() -> None:
    new = generate()
    assert len(new.text) == 59
    assert re.fullmatch(r"cmg_live_[0-9A-Za-z]{10}_[0-9A-Za-z]{32}_[0-9A-Za-z]{6}", new.text)
    assert new.text.split("_")[2] == new.key_id
    assert parse(new.text) == ParsedKey("live", new.key_id)


def test_the_checksum_is_the_crc32_of_all_that_precedes_it_in_base62() -> None:
    text = generate().text
    value = 0
    for digit in text[-6:]:
        value = value * 62 + BASE62.index(digit)
    assert value == zlib.crc32(text[:-6].encode())


def test_the_environment_is_part_of_the_key() -> None:
    parsed = parse(generate("demo2").text)
    assert parsed is not None
    assert parsed.env == "demo2"


@pytest.mark.parametrize("env", ["", "Live", "2x", "a_b", "é", "a" * 17, "live\n"])
def test_an_environment_that_would_break_the_format_is_refused(env: str) -> None:
    with pytest.raises(ValueError, match="key environment"):
        generate(env)


def test_no_two_keys_are_alike() -> None:
    keys = [generate() for _ in range(200)]
    assert len({key.text for key in keys}) == len({key.key_id for key in keys}) == 200


@given(st.integers(0, 58), st.sampled_from(BASE62 + "_-. \n\0éK"))
def test_one_wrong_character_anywhere_is_noticed(position: int, character: str) -> None:
    text = generate().text
    damaged = text[:position] + character + text[position + 1 :]
    assert (parse(damaged) is not None) == (damaged == text)


@given(st.integers(0, 57))
def test_two_characters_in_the_wrong_order_are_noticed(position: int) -> None:
    text = generate().text
    swapped = text[:position] + text[position + 1] + text[position] + text[position + 2 :]
    assert (parse(swapped) is not None) == (swapped == text)


@given(st.text())
def test_arbitrary_text_is_no_key(text: str) -> None:
    assert parse(text) is None


@given(st.from_regex(r"\A(cmg|CMG)_[a-z]{0,20}_\w{0,12}_\w{0,34}_\w{0,7}\Z"))
def test_text_that_resembles_a_key_is_no_key(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("change", [str.upper, str.lower, lambda t: t + "\n", lambda t: " " + t, lambda t: t + t])
def test_a_key_is_taken_literally(change: object) -> None:
    assert callable(change)
    assert parse(change(generate().text)) is None


def test_the_digest_is_an_hmac_of_the_whole_key() -> None:
    text = generate().text
    assert digest(b"pepper", text) == hmac.new(b"pepper", text.encode(), hashlib.sha256).digest()
    assert digest(b"pepper", text) != digest(b"another", text)


def test_the_secret_is_not_in_the_repr() -> None:
    new = generate()
    for shown in (repr(new), str(new), f"{[new]}", repr(parse(new.text))):
        assert new.text not in shown
        assert new.text.split("_")[3] not in shown
    assert new.key_id in repr(new)
    assert isinstance(new, NewKey)
