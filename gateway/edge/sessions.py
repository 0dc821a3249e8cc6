"""Session ids of the ``initialize`` era: signed correlation keys, not state.

A legacy client cancels with ``notifications/cancelled`` and a request id that is unique only in its session, and it
says only once, in ``initialize``, what it can be asked for. The id we hand out says whose session it is and what its
client can do, and proves it, so that any replica can tell and nothing has to be kept.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import struct
import time
from collections.abc import Mapping
from typing import Any

LIFETIME_S = 7 * 86_400
_TAG = 16
_CAPABILITIES = ("sampling", "elicitation", "roots")
"""One bit each, in this order: what a server may ask a client for."""


class SessionIds:
    """Mints and checks session ids for one secret; replicas that share the secret accept each other's ids."""

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.sha256(b"codemode-gateway session ids\0" + secret).digest()

    def mint(self, tenant: str, key_id: str, capabilities: Mapping[str, Any], now: float | None = None) -> str:
        """A new id, visible ASCII, bound to the tenant and its key."""
        expires = int((time.time() if now is None else now) + LIFETIME_S)
        bits = sum(1 << place for place, name in enumerate(_CAPABILITIES) if isinstance(capabilities.get(name), dict))
        body = struct.pack(">QB", expires, bits) + secrets.token_bytes(11)
        return base64.urlsafe_b64encode(body + self._tag(body, tenant, key_id)).decode().rstrip("=")

    def open(self, session_id: str, tenant: str, key_id: str, now: float | None = None) -> Mapping[str, Any] | None:
        """What the session's client can be asked for; None when the id is not this tenant's and key's, or expired."""
        if len(session_id) != 48:
            return None
        try:
            raw = base64.urlsafe_b64decode(session_id)
        except ValueError:
            return None
        body, tag = raw[:-_TAG], raw[-_TAG:]
        if not hmac.compare_digest(tag, self._tag(body, tenant, key_id)):
            return None
        expires, bits = struct.unpack(">QB", body[:9])
        if expires <= (time.time() if now is None else now):
            return None
        return {name: {} for place, name in enumerate(_CAPABILITIES) if bits & 1 << place}

    def _tag(self, body: bytes, tenant: str, key_id: str) -> bytes:
        owner = b"\0".join((body, tenant.encode(), key_id.encode()))
        return hmac.digest(self._key, owner, "sha256")[:_TAG]
