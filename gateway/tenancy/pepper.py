"""The pepper: the secret that key digests are made with, so that a stolen key store is of no use by itself.

It comes from ``state.pepper``, or from a file beside the key store that is made at first use. It is never in the
store. The store remembers a fingerprint of it (:func:`fingerprint`), so that a wrong pepper is one clear error instead
of a refusal of every key.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
import time
from pathlib import Path

MIN_CHARACTERS = 16
_MIN_DISTINCT = 8
_FILE = re.compile(rb"([0-9a-f]{64})\n?")
_WRITING_S = 1.0
"""How long another process may take between creating the file and having written its 65 bytes."""


class PepperUnavailable(Exception):
    """There is no usable pepper. The text is one line for the operator and never holds the pepper."""


def configured_pepper(text: str) -> bytes:
    """The pepper given as ``state.pepper``.

    Raises:
        PepperUnavailable: it is too short, or made of a few characters only (``changemechangeme``).
    """
    if len(text) < MIN_CHARACTERS or len(set(text)) < _MIN_DISTINCT:
        raise PepperUnavailable(
            f"state.pepper is too weak: at least {MIN_CHARACTERS} characters, {_MIN_DISTINCT} of them different; "
            "`openssl rand -hex 32` makes a good one"
        )
    return text.encode()


def pepper_file(path: Path, *, keys_exist: bool) -> bytes:
    """The pepper in a file, which is made when no key depends on it yet: 32 random bytes in hex, mode 0600.

    Any number of processes may do this at once: one of them makes the file, all return its content.

    Args:
        path: the file.
        keys_exist: whether the store has keys already; then a missing pepper is an error, because none of them could
            be recognised with a new one.

    Raises:
        PepperUnavailable: missing although keys exist, not readable or writable, damaged, or open to everybody.
    """
    try:
        if not keys_exist:
            _make(path)
        return _read(path)
    except FileNotFoundError:
        raise PepperUnavailable(
            f"pepper file {path} is missing, but keys were made with it: restore it, or set state.pepper to the pepper "
            "they were made with; otherwise revoke all keys and create new ones"
        ) from None
    except OSError as error:
        raise PepperUnavailable(f"pepper file {path}: {error.strerror or error}") from None


def fingerprint(pepper: bytes) -> bytes:
    """16 bytes that tell one pepper from another and reveal neither."""
    return hmac.digest(pepper, b"codemode-gateway: fingerprint of the pepper", "sha256")[:16]


def _make(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    except FileNotFoundError:
        raise PepperUnavailable(f"pepper file {path}: its folder does not exist") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_hex(32).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> bytes:
    deadline = time.monotonic() + _WRITING_S
    while True:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(128)
        # the group may read it: orchestrators mount volumes with a shared group
        if os.name == "posix" and stat.S_IMODE(mode) & 0o007:
            raise PepperUnavailable(f"pepper file {path} is open to every user of this machine: chmod 600 it")
        if found := _FILE.fullmatch(content):
            return bytes.fromhex(found[1].decode())
        if content or time.monotonic() > deadline:
            raise PepperUnavailable(f"pepper file {path} is damaged: it must hold 64 hexadecimal digits")
        time.sleep(0.005)
