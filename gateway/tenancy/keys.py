"""The text of an API key: ``cmg_<env>_<key id 10>_<secret 32>_<crc 6>``, base62, 59 characters with env ``live``.

* The prefix lets secret scanners find a leaked key; underscores let a double click select all of it.
* The key id is public: it is what logs, lists and ``revoke`` name.
* The secret has 190 bits, so a fast digest is enough: HMAC-SHA256 takes about 3 µs, while a password hash (argon2: 15
  to 264 ms) would add nothing and be a denial of service on ourselves.
* The CRC32 covers every character before it, the last underscore too. A typo or a random string is refused without
  asking the store.
"""

from __future__ import annotations

import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ENV = re.compile(r"[a-z][a-z0-9]{0,15}")
_KEY = re.compile(r"(cmg_([a-z][a-z0-9]{0,15})_([0-9A-Za-z]{10})_[0-9A-Za-z]{32}_)([0-9A-Za-z]{6})")
_KEY_ID_LENGTH = 10
_SECRET_LENGTH = 32
_CRC_LENGTH = 6  # 62**6 > 2**32


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made: the only moment at which its text is known.

    Attributes:
        text: the whole key, secret; to be shown once and never kept.
        key_id: its public id.
    """

    text: str = field(repr=False)
    key_id: str


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """The public parts of a well-formed key."""

    env: str
    key_id: str


def generate(env: str = "live") -> NewKey:
    """A fresh random key.

    Args:
        env: shown in the key's text only: 1 to 16 lower-case letters and digits, a letter first.

    Raises:
        ValueError: ``env`` is something else.
    """
    if not _ENV.fullmatch(env):
        raise ValueError(f"{env!r} is not a usable key environment: lower-case letters and digits, 16 at most")
    key_id = _random(_KEY_ID_LENGTH)
    body = f"cmg_{env}_{key_id}_{_random(_SECRET_LENGTH)}_"
    return NewKey(body + _crc(body), key_id)


def parse(text: str) -> ParsedKey | None:
    """The public parts of a key, or None when its shape or its checksum is wrong. Says nothing about its validity."""
    found = _KEY.fullmatch(text)
    if found is None:
        return None
    body, env, key_id, crc = found.groups()
    return ParsedKey(env, key_id) if crc == _crc(body) else None


def digest(pepper: bytes, text: str) -> bytes:
    """HMAC-SHA256 of the whole key: the 32 bytes that a store keeps of it."""
    return hmac.digest(pepper, text.encode(), "sha256")


def _random(length: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(length))


def _crc(body: str) -> str:
    rest = zlib.crc32(body.encode("ascii"))
    digits = []
    for _ in range(_CRC_LENGTH):
        rest, digit = divmod(rest, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))
