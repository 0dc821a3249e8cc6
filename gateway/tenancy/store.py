"""What is kept of an API key, and what a key store is.

A new kind of store is one new module that implements :class:`KeyStore`, and one line in :mod:`gateway.tenancy.keyring`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol


class Scope(StrEnum):
    """What a key may do. A key without scopes may do nothing."""

    DOCS_READ = "docs:read"
    """Search the documentation of the tenant's tools."""
    CODE_EXECUTE = "code:execute"
    """Run scripts."""
    DIRECT_CALL = "direct:call"
    """Use the tenant's tools as plain MCP."""
    USAGE_READ = "usage:read"
    """Read the tenant's own usage."""


DEFAULT_SCOPES = frozenset({Scope.DOCS_READ, Scope.CODE_EXECUTE, Scope.DIRECT_CALL})

KeyState = Literal["live", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One key as the store knows it. All times are seconds since the epoch, UTC.

    Attributes:
        key_id: public id, unique.
        tenant: name of the tenant it authenticates.
        name: the operator's label, "" when none was given.
        created: when it was made.
        expires: first second at which it is refused; None: never.
        revoked: when it was revoked, or None.
        scopes: what it may do.
        last_used: to within five minutes; None: never used.
        digest: HMAC-SHA256 of the key's text; not reversible, hidden all the same.
    """

    key_id: str
    tenant: str
    name: str
    created: float
    expires: float | None
    revoked: float | None
    scopes: frozenset[Scope]
    last_used: float | None
    digest: bytes = field(repr=False)

    def state(self, now: float) -> KeyState:
        """Whether the key is accepted at ``now``, and if not, why. The one place where this is decided."""
        if self.revoked is not None:
            return "revoked"
        if self.expires is not None and self.expires <= now:
            return "expired"
        return "live"


class KeyRefused(ValueError):
    """An operator's wish about keys that cannot be granted: unknown key, unknown scope, unusable name. One line."""


class KeyStoreUnavailable(Exception):
    """The key store cannot be used. The text is one line for the operator: where it is and what is wrong.

    Attributes:
        where: path or address, without credentials.
        reason: what is wrong.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"key store {where}: {reason}")
        self.where = where
        self.reason = reason


class KeyStore(Protocol):
    """Records in, records out; it never sees a key's text or the pepper.

    Methods block for as long as the store takes and may be called from any thread. Each may raise
    :class:`KeyStoreUnavailable`. What one process writes, others see at their next read.
    """

    def revision(self) -> object:
        """A value that differs from the last one once any key was added, changed or revoked. Cheap."""
        ...

    def list(self, tenant: str | None = None) -> tuple[KeyRecord, ...]:
        """All keys, or those of one tenant, oldest first; dead ones too."""
        ...

    def get(self, key_id: str) -> KeyRecord | None: ...

    def create(self, record: KeyRecord) -> None: ...

    def revoke(self, key_id: str, now: float) -> KeyRecord:
        """Refuse the key from now on. A key that is revoked already keeps its first date.

        Raises:
            KeyRefused: no key has this id.
        """
        ...

    def rotate(self, key_id: str, expires: float, successor: KeyRecord) -> None:
        """In one step: let a key expire no later than ``expires``, and add its successor.

        Raises:
            KeyRefused: no live key has this id; nothing was changed.
        """
        ...

    def touch(self, used: Mapping[str, float]) -> None:
        """Note when keys were last used. Gives up quickly when the store is busy; does not change the revision."""
        ...

    def confirm_pepper(self, fingerprint: bytes, now: float) -> bool:
        """False when live keys were made with a pepper of another fingerprint; else remember this one."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


def parse_scopes(names: Iterable[str]) -> frozenset[Scope]:
    """Scope names as an operator wrote them → scopes. An empty list is allowed and means: may do nothing.

    Raises:
        KeyRefused: names that are no scopes, with those that are.
    """
    wanted = set(names)
    if unknown := sorted(wanted - set(Scope)):
        raise KeyRefused(f"unknown scope {', '.join(map(repr, unknown))}; known are {', '.join(Scope)}")
    return frozenset(map(Scope, wanted))
