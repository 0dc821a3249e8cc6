"""Issue, list, rotate and revoke keys: what ``gateway keys`` does, and where ``serve`` gets store and pepper from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType

from gateway.config.loader import sqlite_path
from gateway.config.model import State
from gateway.tenancy.keys import NewKey, digest, generate
from gateway.tenancy.pepper import PepperUnavailable, configured_pepper, fingerprint, pepper_file
from gateway.tenancy.sqlite_store import SqliteKeyStore
from gateway.tenancy.store import DEFAULT_SCOPES, KeyRecord, KeyRefused, KeyStore, Scope

DEFAULT_OVERLAP_S = 24 * 3_600.0
"""How long a rotated key goes on working: time to hand its successor to every client."""
MAX_NAME_CHARACTERS = 100


@dataclass(slots=True)
class KeyRing:
    """A key store together with the pepper its keys are made with.

    The pepper is looked for when it is first needed, so that keys can be listed and revoked when it is lost.

    Attributes:
        store: where the keys are.
        pepper_path: the pepper file, used when ``state.pepper`` is empty.
        clock: seconds since the epoch.
    """

    store: KeyStore
    pepper_path: Path
    configured: str = field(default="", repr=False)
    clock: Callable[[], float] = field(default=time.time, repr=False)
    _pepper: bytes | None = field(default=None, init=False, repr=False)

    @classmethod
    def open(cls, state: State, folder: Path) -> KeyRing:
        """The store that ``state.keys`` names; it is made when it does not exist.

        Args:
            folder: where gateway.yaml is; relative paths start there.

        Raises:
            KeyStoreUnavailable
        """
        return _STORES[state.keys.partition(":")[0]](state, folder)

    def __enter__(self) -> KeyRing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def pepper(self) -> bytes:
        """The pepper; secret.

        Raises:
            PepperUnavailable: there is none, or live keys were made with another one.
            KeyStoreUnavailable
        """
        if self._pepper is None:
            now = self.clock()
            if self.configured:
                pepper, origin = configured_pepper(self.configured), "state.pepper"
            else:
                alive = any(record.state(now) == "live" for record in self.store.list())
                pepper, origin = pepper_file(self.pepper_path, keys_exist=alive), f"pepper file {self.pepper_path}"
            if not self.store.confirm_pepper(fingerprint(pepper), now):
                raise PepperUnavailable(
                    f"{origin} is not the pepper that the keys in the store were made with: restore that one, or "
                    "revoke all keys and create new ones"
                )
            self._pepper = pepper
        return self._pepper

    def create(
        self,
        tenant: str,
        *,
        expires_in_s: float | None,
        name: str = "",
        scopes: frozenset[Scope] = DEFAULT_SCOPES,
    ) -> NewKey:
        """A new key for a tenant. Whether the config knows the tenant is the caller's question.

        Args:
            expires_in_s: seconds from now until it is refused; None: never.
            name: a label for lists, one line.

        Raises:
            KeyRefused: unusable name or lifetime.
            PepperUnavailable, KeyStoreUnavailable
        """
        if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
            raise KeyRefused(f"a key's name is one line of printable characters, {MAX_NAME_CHARACTERS} at most")
        if expires_in_s is not None and not 0 < expires_in_s < float("inf"):
            raise KeyRefused("a key must be valid for some time: its lifetime must be above zero")
        now = self.clock()
        new = generate()
        expires = None if expires_in_s is None else now + expires_in_s
        self.store.create(
            KeyRecord(new.key_id, tenant, name, now, expires, None, scopes, None, digest(self.pepper(), new.text))
        )
        return new

    def list(self, tenant: str | None = None) -> tuple[KeyRecord, ...]:
        """All keys, or those of one tenant, oldest first; dead ones too."""
        return self.store.list(tenant)

    def revoke(self, key_id: str) -> KeyRecord:
        """Refuse a key from now on; running gateways follow within a second. Idempotent.

        Raises:
            KeyRefused: no key has this id.
        """
        return self.store.revoke(key_id, self.clock())

    def rotate(self, key_id: str, *, overlap_s: float = DEFAULT_OVERLAP_S) -> NewKey:
        """A successor with the same tenant, name, scopes and length of life; both work during the overlap.

        Args:
            overlap_s: seconds until the old key is refused, unless it expires before; 0: at once.

        Raises:
            KeyRefused: no live key has this id, or the overlap is negative.
            PepperUnavailable, KeyStoreUnavailable
        """
        if not 0 <= overlap_s < float("inf"):
            raise KeyRefused("the overlap must be zero or more")
        now = self.clock()
        old = self.store.get(key_id)
        if old is None or old.state(now) != "live":
            raise KeyRefused(f"there is no live key {key_id!r}")
        new = generate()
        expires = None if old.expires is None else now + (old.expires - old.created)
        successor = KeyRecord(
            new.key_id, old.tenant, old.name, now, expires, None, old.scopes, None, digest(self.pepper(), new.text)
        )
        self.store.rotate(key_id, now + overlap_s, successor)
        return new

    def close(self) -> None:
        self.store.close()


def _open_sqlite(state: State, folder: Path) -> KeyRing:
    path = sqlite_path(state.keys, folder)
    return KeyRing(SqliteKeyStore(path), path.with_name(f"{path.name}.pepper"), state.pepper)


_STORES: Mapping[str, Callable[[State, Path], KeyRing]] = MappingProxyType({"sqlite": _open_sqlite})
"""What ``state.keys`` may name, by the scheme of its URL; the config lets no other pass."""
