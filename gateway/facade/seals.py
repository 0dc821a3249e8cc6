"""Values that a client carries for us and must give back unchanged: cursors, and the state of an input request.

They are attacker-controlled on return (2026-07-28, multi round-trip requests), so each is authenticated, says what it
is for and for whom, and expires. Nothing in them is secret. Replicas that share the secret accept each other's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
import time

_TAG = 16
MAX_SEALED = 64 * 1024


class Broken(ValueError):
    """It was not sealed here, for this purpose and this owner, or it has expired."""


class Seals:
    """Seals and opens small byte strings.

    Args:
        secret: any bytes; the key is derived from it.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.sha256(b"codemode-gateway seals\0" + secret).digest()

    def seal(self, purpose: str, owner: str, value: bytes, lifetime_s: float, now: float | None = None) -> str:
        """URL-safe text that :meth:`open` turns back into ``value``, for the same purpose and owner only."""
        expires = int((time.time() if now is None else now) + lifetime_s)
        body = struct.pack(">Q", expires) + value
        return base64.urlsafe_b64encode(self._tag(purpose, owner, body) + body).decode().rstrip("=")

    def open(self, purpose: str, owner: str, sealed: str, now: float | None = None) -> bytes:
        """Raises Broken."""
        if len(sealed) > MAX_SEALED:
            raise Broken("too long")
        try:
            raw = base64.b64decode(sealed + "=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise Broken("not sealed here") from None
        tag, body = raw[:_TAG], raw[_TAG:]
        if len(body) < 8 or not hmac.compare_digest(tag, self._tag(purpose, owner, body)):
            raise Broken("not sealed here")
        (expires,) = struct.unpack(">Q", body[:8])
        if expires <= (time.time() if now is None else now):
            raise Broken("expired")
        return body[8:]

    def _tag(self, purpose: str, owner: str, body: bytes) -> bytes:
        # lengths first, so that no other split of the same bytes means the same
        head = f"{len(purpose)}:{purpose}{len(owner)}:{owner}".encode()
        return hmac.digest(self._key, head + body, "sha256")[:_TAG]
