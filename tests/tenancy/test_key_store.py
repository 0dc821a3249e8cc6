"""Keys in a store: issuing, listing, rotating and revoking them, also from several processes at once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.config.model import State
from gateway.tenancy.keyring import DEFAULT_OVERLAP_S, KeyRing
from gateway.tenancy.keys import digest
from gateway.tenancy.sqlite_store import SqliteKeyStore
from gateway.tenancy.store import DEFAULT_SCOPES, KeyRecord, KeyRefused, KeyStoreUnavailable, Scope, parse_scopes

NOW = 1_800_000_000.0
DAY = 86_400.0


@pytest.fixture
def at(ring: KeyRing) -> Callable[[float], None]:
    """Sets the ring's clock to so many seconds after NOW."""

    def set_clock(seconds: float) -> None:
        ring.clock = lambda: NOW + seconds

    set_clock(0)
    return set_clock


def found(ring: KeyRing, key_id: str) -> KeyRecord:
    record = ring.store.get(key_id)
    assert record is not None
    return record


# ---- issuing --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("at")
def test_a_new_key_is_kept_as_a_digest_only(ring: KeyRing) -> None:
    new = ring.create("acme", name="laptop", expires_in_s=90 * DAY)
    assert found(ring, new.key_id) == KeyRecord(
        key_id=new.key_id,
        tenant="acme",
        name="laptop",
        created=NOW,
        expires=NOW + 90 * DAY,
        revoked=None,
        scopes=DEFAULT_SCOPES,
        last_used=None,
        digest=digest(ring.pepper(), new.text),
    )


@pytest.mark.case("AUTH-14")
def test_neither_the_secret_nor_the_pepper_is_in_the_store_and_the_files_are_the_owners(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        with KeyRing.open(State(), tmp_path) as ring:
            new = ring.create("acme", expires_in_s=None)
            files = {path.name: path for path in tmp_path.iterdir()}
            assert {"gateway.db", "gateway.db-wal", "gateway.db.pepper"} <= set(files)
            for path in files.values():
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            for name in ("gateway.db", "gateway.db-wal"):
                content = files[name].read_bytes()
                assert new.text.split("_")[3].encode() not in content
                assert ring.pepper() not in content
                assert ring.pepper().hex().encode() not in content
    finally:
        os.umask(previous)


def test_no_repr_shows_digest_pepper_or_secret(ring: KeyRing) -> None:
    new = ring.create("acme", expires_in_s=None)
    record = found(ring, new.key_id)
    shown = f"{ring!r} {record!r} {ring.list()!r} {ring.store!r}"
    for secret in (new.text, record.digest, record.digest.hex(), ring.pepper(), ring.pepper().hex()):
        assert str(secret) not in shown
    assert new.key_id in shown


@pytest.mark.case("TENANCY-11")
@pytest.mark.parametrize("name", ["a\nb", "tab\there", "\x1b[31m", "x" * 101, "\u202eevil"])
def test_a_name_that_would_spoil_a_list_is_refused(ring: KeyRing, name: str) -> None:
    with pytest.raises(KeyRefused, match="one line of printable characters"):
        ring.create("acme", name=name, expires_in_s=None)
    assert ring.list() == ()


@pytest.mark.parametrize("lifetime", [0.0, -1.0, float("inf"), float("nan")])
def test_a_key_that_would_never_be_valid_is_refused(ring: KeyRing, lifetime: float) -> None:
    with pytest.raises(KeyRefused, match="lifetime"):
        ring.create("acme", expires_in_s=lifetime)


@pytest.mark.case("AUTH-16")
def test_unknown_scopes_are_refused_and_an_empty_list_means_nothing() -> None:
    assert parse_scopes(["docs:read", "usage:read"]) == {Scope.DOCS_READ, Scope.USAGE_READ}
    assert parse_scopes([]) == frozenset()
    with pytest.raises(KeyRefused, match=r"unknown scope 'Docs:read', 'admin'; known are docs:read, code:execute"):
        parse_scopes(["docs:read", "admin", "Docs:read"])


def test_the_default_scopes_are_all_that_act_for_the_tenant_and_not_its_usage() -> None:
    assert set(DEFAULT_SCOPES) == {"docs:read", "code:execute", "direct:call"}


def test_a_scope_of_a_newer_version_grants_nothing(ring: KeyRing, tmp_path: Path) -> None:
    new = ring.create("acme", expires_in_s=None)
    by_hand(tmp_path / "gateway.db", "UPDATE api_keys SET scopes = 'docs:read moon:fly'")
    assert found(ring, new.key_id).scopes == {Scope.DOCS_READ}


# ---- listing, expiring, revoking ------------------------------------------------------------------------------------


def test_lists_are_by_tenant_and_oldest_first(ring: KeyRing, at: Callable[[float], None]) -> None:
    made = []
    for second, tenant in enumerate(["acme", "globex", "acme"]):
        at(second)
        made.append(ring.create(tenant, expires_in_s=None).key_id)
    assert [record.key_id for record in ring.list()] == made
    assert [record.key_id for record in ring.list("acme")] == [made[0], made[2]]
    assert ring.list("initech") == ()


@pytest.mark.usefixtures("at")
def test_a_key_dies_at_the_second_it_expires(ring: KeyRing) -> None:
    record = found(ring, ring.create("acme", expires_in_s=60).key_id)
    assert record.state(NOW + 59.9) == "live"
    assert record.state(NOW + 60) == "expired"


def test_revoking_is_final_and_keeps_its_first_date(ring: KeyRing, at: Callable[[float], None]) -> None:
    key_id = ring.create("acme", expires_in_s=60).key_id
    at(5)
    assert ring.revoke(key_id).revoked == NOW + 5
    at(70)
    assert ring.revoke(key_id).revoked == NOW + 5
    assert found(ring, key_id).state(NOW) == "revoked"


def test_an_unknown_key_cannot_be_revoked(ring: KeyRing) -> None:
    with pytest.raises(KeyRefused, match="there is no key 'nobody'"):
        ring.revoke("nobody")


# ---- rotating -------------------------------------------------------------------------------------------------------


def test_a_rotated_key_hands_over_to_its_successor(ring: KeyRing, at: Callable[[float], None]) -> None:
    scopes = frozenset({Scope.DOCS_READ})
    old = ring.create("acme", name="ci", scopes=scopes, expires_in_s=90 * DAY).key_id
    at(10 * DAY)
    new = ring.rotate(old).key_id
    assert found(ring, old).expires == NOW + 10 * DAY + DEFAULT_OVERLAP_S
    successor = found(ring, new)
    assert (successor.tenant, successor.name, successor.scopes) == ("acme", "ci", scopes)
    assert successor.expires == NOW + 100 * DAY
    assert successor.revoked is None


@pytest.mark.usefixtures("at")
def test_without_overlap_the_old_key_ends_at_once(ring: KeyRing) -> None:
    old = ring.create("acme", expires_in_s=None).key_id
    new = ring.rotate(old, overlap_s=0).key_id
    assert found(ring, old).state(NOW) == "expired"
    assert found(ring, new).expires is None


@pytest.mark.usefixtures("at")
def test_rotating_never_lengthens_a_keys_life(ring: KeyRing) -> None:
    old = ring.create("acme", expires_in_s=60).key_id
    ring.rotate(old, overlap_s=3_600)
    assert found(ring, old).expires == NOW + 60


def test_a_dead_or_unknown_key_cannot_be_rotated(ring: KeyRing, at: Callable[[float], None]) -> None:
    revoked, expired = (ring.create("acme", expires_in_s=60).key_id for _ in range(2))
    ring.revoke(revoked)
    at(61)
    for key_id in (revoked, expired, "nobody"):
        with pytest.raises(KeyRefused, match="there is no live key"):
            ring.rotate(key_id)
    assert len(ring.list()) == 2


@pytest.mark.parametrize("overlap", [-1.0, float("inf"), float("nan")])
def test_a_senseless_overlap_is_refused(ring: KeyRing, overlap: float) -> None:
    key_id = ring.create("acme", expires_in_s=None).key_id
    with pytest.raises(KeyRefused, match="overlap"):
        ring.rotate(key_id, overlap_s=overlap)


def test_a_key_that_was_revoked_meanwhile_is_not_rotated(ring: KeyRing) -> None:
    key_id = ring.create("acme", expires_in_s=None).key_id
    successor = KeyRecord("successor", "acme", "", NOW, None, None, DEFAULT_SCOPES, None, bytes(32))
    ring.revoke(key_id)
    with pytest.raises(KeyRefused, match="there is no live key"):
        ring.store.rotate(key_id, NOW, successor)
    assert ring.store.get("successor") is None


# ---- what others see ------------------------------------------------------------------------------------------------


def test_the_revision_changes_with_the_keys_and_with_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    with KeyRing.open(State(), tmp_path) as here, KeyRing.open(State(), tmp_path) as there:
        seen = [here.store.revision()]

        def changed() -> bool:
            seen.append(here.store.revision())
            return seen[-1] != seen[-2]

        assert not changed()
        first = there.create("acme", expires_in_s=None).key_id
        assert changed()
        there.rotate(first)
        assert changed()
        there.revoke(first)
        assert changed()
        there.store.touch({first: NOW})
        assert not changed()
        by_hand(path, "CREATE TABLE ledger (row)", "INSERT INTO ledger VALUES (1)")
        assert not changed()
        by_hand(path, f"UPDATE api_keys SET expires = 0 WHERE key_id = '{first}'")
        assert changed()
        by_hand(path, f"DELETE FROM api_keys WHERE key_id = '{first}'")
        assert changed()


def test_a_file_that_took_the_place_of_the_first_is_an_error_until_a_restart(ring: KeyRing, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    KeyRing.open(State(), tmp_path / "backup").close()
    (tmp_path / "backup" / "gateway.db").replace(tmp_path / "gateway.db")
    for _ in range(2):
        with pytest.raises(KeyStoreUnavailable, match="was replaced while it was in use; restart the gateway"):
            ring.store.revision()


def test_last_use_never_goes_back(ring: KeyRing) -> None:
    key_id = ring.create("acme", expires_in_s=None).key_id
    ring.store.touch({key_id: 600.0, "nobody": 900.0})
    ring.store.touch({key_id: 300.0})
    assert found(ring, key_id).last_used == 600.0


def test_noting_a_last_use_gives_up_soon_when_another_writes(ring: KeyRing, tmp_path: Path) -> None:
    key_id = ring.create("acme", expires_in_s=None).key_id
    writer = sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(KeyStoreUnavailable, match="locked"):
        ring.store.touch({key_id: NOW})
    assert found(ring, key_id).last_used is None
    writer.execute("ROLLBACK")
    writer.close()


def test_many_may_open_and_write_a_new_store_at_once(tmp_path: Path) -> None:
    def create(number: int) -> str:
        with KeyRing.open(State(), tmp_path) as ring:
            return ring.create(f"tenant{number}", expires_in_s=None).key_id

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(create, range(16)))
    with KeyRing.open(State(), tmp_path) as ring:
        assert {record.key_id for record in ring.list()} == made


def test_a_key_made_by_another_process_is_there_when_it_ends(ring: KeyRing, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from gateway.config.model import State\n"
        "from gateway.tenancy.keyring import KeyRing\n"
        "with KeyRing.open(State(), Path(sys.argv[1])) as ring:\n"
        "    print(ring.create('acme', expires_in_s=None).key_id)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=30
    )
    assert found(ring, ended.stdout.strip()).tenant == "acme"


# ---- stores that cannot be used -------------------------------------------------------------------------------------


def test_relative_paths_start_at_the_config_and_absolute_ones_do_not(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    KeyRing.open(State(keys="sqlite:///elsewhere/a.db"), tmp_path).close()
    KeyRing.open(State(keys=f"sqlite:///{tmp_path}/b.db"), tmp_path / "elsewhere").close()
    assert (tmp_path / "elsewhere" / "a.db").exists()
    assert (tmp_path / "b.db").exists()


def test_a_file_that_is_no_database_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are not the keys you are looking for\n" * 100)
    with pytest.raises(KeyStoreUnavailable) as caught:
        SqliteKeyStore(path)
    assert str(caught.value) == f"key store {path}: file is not a database"
    assert path.read_text().startswith("these are not")


def test_a_folder_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreUnavailable, match=r"no/gateway\.db: the file or its folder does not exist"):
        SqliteKeyStore(tmp_path / "no" / "gateway.db")


def test_a_folder_in_place_of_the_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreUnavailable, match="is not a file"):
        SqliteKeyStore(tmp_path)


@contextlib.contextmanager
def bound_by_file_modes() -> Iterator[Path]:
    """A folder, and for as long as the block lasts no right to ignore file modes, which root has."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = os.geteuid() == 0
        if root:
            os.chown(folder, 65_534, 65_534)
            os.seteuid(65_534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)


def test_a_file_that_can_only_be_read_is_one_clear_line() -> None:
    with bound_by_file_modes() as folder:
        path = folder / "gateway.db"
        SqliteKeyStore(path).close()
        path.chmod(0o400)
        with pytest.raises(KeyStoreUnavailable, match="readonly"):
            SqliteKeyStore(path)
        path.chmod(0o000)
        with pytest.raises(KeyStoreUnavailable):
            SqliteKeyStore(path)


def test_a_store_of_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    SqliteKeyStore(path).close()
    by_hand(path, "UPDATE key_store SET value = 2 WHERE name = 'format'")
    with pytest.raises(KeyStoreUnavailable, match="has format 2, this version reads format 1"):
        SqliteKeyStore(path)


def test_a_file_that_vanished_and_a_closed_store_are_typed_errors(ring: KeyRing, tmp_path: Path) -> None:
    ring.store.list()
    (tmp_path / "gateway.db").unlink()
    with pytest.raises(KeyStoreUnavailable, match="does not exist"):
        ring.store.revision()
    assert not (tmp_path / "gateway.db").exists()
    ring.close()
    with pytest.raises(KeyStoreUnavailable, match="is closed"):
        ring.list()


def by_hand(path: Path, *statements: str) -> None:
    """What an operator, or another room, does to the same file."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()
