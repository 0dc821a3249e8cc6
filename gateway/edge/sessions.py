"""Session ids of the ``initialize`` era: signed correlation keys, not state.

A legacy client cancels with ``notifications/cancelled`` and a request id that is unique only in its session. The id we
hand out says whose session it is and proves it, so that any replica can tell and nothing has to be kept.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import struct
import time

LIFETIME_S = 7 * 86_400
_TAG = 16


class SessionIds:
    """Mints and checks session ids for one secret; replicas that share the secret accept each other's ids."""

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.sha256(b"codemode-gateway session ids\0" + secret).digest()

    def mint(self, tenant: str, key_id: str, now: float | None = None) -> str:
        """A new id, visible ASCII, bound to the tenant and its key."""
        expires = int((time.time() if now is None else now) + LIFETIME_S)
        body = struct.pack(">Q", expires) + secrets.token_bytes(12)
        return base64.urlsafe_b64encode(body + self._tag(body, tenant, key_id)).decode().rstrip("=")

    def check(self, session_id: str, tenant: str, key_id: str, now: float | None = None) -> bool:
        """Whether the id was minted for this tenant and key and has not expired."""
        if len(session_id) != 48:
            return False
        try:
            raw = base64.urlsafe_b64decode(session_id)
        except ValueError:
            return False
        body, tag = raw[:-_TAG], raw[-_TAG:]
        if not hmac.compare_digest(tag, self._tag(body, tenant, key_id)):
            return False
        (expires,) = struct.unpack(">Q", body[:8])
        return bool(expires > (time.time() if now is None else now))

    def _tag(self, body: bytes, tenant: str, key_id: str) -> bytes:
        owner = b"\0".join((body, tenant.encode(), key_id.encode()))
        return hmac.digest(self._key, owner, "sha256")[:_TAG]
