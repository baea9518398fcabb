"""A restore: refused, planned, done; under load it is tested in e2e/test_backup.py."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from gateway.backups import backup
from gateway.backups.archive import BackupError
from gateway.backups.restore import Plan, RestoreRefused, prepared
from gateway.store.backup import Facts, StoreBroken, facts
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.errors import StoreTooNew
from gateway.store.hold import StoreInUse, Use
from gateway.store.migrate import migrate
from runtime import durable, keyring, state
from runtime.config.place import Place
from runtime.state import StateInUse
from tests.gateway import accounts


def make(folder: Path, *, root: str = "") -> Place:
    folder.mkdir()
    migrate(folder / "bulkhead.db")
    place = Place(config_path="", state_dir=folder, root_secret=root)
    keyring.load(folder, root)
    return place


def add_tenant(place: Place, name: str) -> None:
    with closing(open_for_writing(place.state_dir / "bulkhead.db")) as db:
        accounts.add_tenant(db, name, f"tn_{name}")


def tenants(place: Place) -> list[str]:
    with closing(open_for_reading(place.state_dir / "bulkhead.db")) as db:
        return [name for (name,) in db.execute("SELECT name FROM tenant ORDER BY name")]


def plan(place: Place, file: Path, *, everything: bool = False) -> Plan:
    with prepared(place, file, everything=everything) as ready:
        return ready.plan


def restore(place: Place, file: Path, *, everything: bool = False) -> Path | None:
    """Returns the safety backup."""
    with prepared(place, file, everything=everything) as ready:
        return ready.carry_out(may_lose=True, patience_s=0).safety


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = make(tmp_path / "state")
    add_tenant(place, "acme")
    return place


@pytest.fixture
def file(place: Place, tmp_path: Path) -> Path:
    backup.create(place, tmp_path / "b.tar.gz")
    return tmp_path / "b.tar.gz"


def test_what_was_there_before_is_kept_and_can_be_restored(place: Place, file: Path) -> None:
    add_tenant(place, "globex")
    assert plan(place, file).lost.tenants == 1
    assert tenants(place) == ["acme", "globex"], "a plan changes nothing"
    safety = restore(place, file)
    assert tenants(place) == ["acme"]
    assert safety is not None
    assert stat.S_IMODE(safety.stat().st_mode) == 0o600
    assert [path.name for path in safety.parent.iterdir()] == [safety.name]
    restore(place, safety)
    assert tenants(place) == ["acme", "globex"]
    assert not list(place.state_dir.glob(".restore-*"))


def test_what_may_not_be_lost_is_not(place: Place, file: Path) -> None:
    with prepared(place, file, everything=False) as ready:
        assert not ready.plan.lost
        add_tenant(place, "meanwhile")
        with pytest.raises(RestoreRefused, match="would be lost: add --yes"):
            ready.carry_out(may_lose=False, patience_s=0)
    assert tenants(place) == ["acme", "meanwhile"]


def test_another_root_secret_is_refused_unless_everything_is_restored(
    place: Place, file: Path, tmp_path: Path
) -> None:
    other = make(tmp_path / "other")
    (other.state_dir / "secrets.json").write_text("theirs")
    (other.state_dir / "admin-key").write_text("theirs")
    with pytest.raises(RestoreRefused, match=r"another root secret.*add --all"):
        plan(other, file)
    restore(other, file, everything=True)
    assert backup.root_of(other) == backup.root_of(place)
    assert tenants(other) == ["acme"]
    assert not (other.state_dir / "secrets.json").exists(), "it was sealed with another root secret"
    assert not (other.state_dir / "admin-key").exists()


def test_a_root_secret_in_the_environment_is_compared_too(place: Place, tmp_path: Path) -> None:
    secret = (place.state_dir / "root-secret").read_text().strip()
    backup.create(place, tmp_path / "file.tar.gz")
    same = Place(config_path="", state_dir=tmp_path / "same", root_secret=secret)
    assert plan(same, tmp_path / "file.tar.gz").puts_back == ()
    other = Place(config_path="", state_dir=tmp_path / "other", root_secret="ab" * 32)
    for everything in (False, True):
        with pytest.raises(RestoreRefused, match="set BULKHEAD_ROOT_SECRET to that one"):
            plan(other, tmp_path / "file.tar.gz", everything=everything)


def test_a_root_secret_that_the_backup_lacks_is_asked_for(tmp_path: Path) -> None:
    source = make(tmp_path / "source", root="cd" * 32)
    backup.create(source, tmp_path / "b.tar.gz")
    for everything in (False, True):
        with pytest.raises(RestoreRefused, match="another root secret"):
            plan(make(tmp_path / f"t{everything}"), tmp_path / "b.tar.gz", everything=everything)


def test_files_beside_the_store_stay_unless_they_are_missing(place: Place, tmp_path: Path) -> None:
    folder = place.state_dir
    (folder / "deployments").mkdir()
    names = ("admin-key", "secrets.json", "deployments/current", "deployments/0001.toml")
    for name in names:
        (folder / name).write_text("then")
    backup.create(place, tmp_path / "b.tar.gz")
    for name in ("secrets.json", "deployments/current"):
        (folder / name).write_text("now")
    for name in ("admin-key", "deployments/0001.toml"):
        (folder / name).unlink()
    (folder / "deployments" / "0002.toml").write_text("now")
    found = plan(place, tmp_path / "b.tar.gz")
    assert found.puts_back == ("admin-key",)
    assert found.leaves == ("deployments/0001.toml", "deployments/current", "secrets.json")
    restore(place, tmp_path / "b.tar.gz")
    assert (folder / "admin-key").read_text() == "then"
    assert (folder / "secrets.json").read_text() == "now"
    safety = restore(place, tmp_path / "b.tar.gz", everything=True)
    assert {(folder / name).read_text() for name in names} == {"then"}
    assert not (folder / "deployments" / "0002.toml").exists()
    assert safety is not None
    restore(place, safety, everything=True)
    assert (folder / "deployments" / "0002.toml").read_text() == "now"


def test_a_restore_of_everything_that_fails_half_way_leaves_no_file_missing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, say. Once it isn't, the same command does the rest."""
    folder = place.state_dir
    (folder / "admin-key").write_text("then")
    (folder / "secrets.json").write_text("then")
    backup.create(place, tmp_path / "b.tar.gz")
    (folder / "demo-key").write_text("now")
    plain, left = durable.replace, [1]

    def replace(path: Path, data: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        plain(path, data)

    with monkeypatch.context() as full:
        full.setattr(durable, "replace", replace)
        with pytest.raises(OSError, match="No space left"):
            restore(place, tmp_path / "b.tar.gz", everything=True)
    for name in ("root-secret", "admin-key", "secrets.json", "demo-key"):
        assert (folder / name).exists(), name
    restore(place, tmp_path / "b.tar.gz", everything=True)
    assert not (folder / "demo-key").exists()


@pytest.mark.parametrize("role", ["node", "gateway"])
def test_everything_is_refused_while_something_runs(place: Place, file: Path, role: str) -> None:
    with state.own(place.state_dir, role), pytest.raises(StateInUse, match=role):
        plan(place, file, everything=True)


def test_a_store_that_is_not_let_go_of_stays_as_it_is(place: Place, file: Path) -> None:
    add_tenant(place, "globex")
    use = Use(place.state_dir / "bulkhead.db")
    assert use.take()
    with pytest.raises(StoreInUse, match="Nothing was changed"):
        restore(place, file)
    use.let_go()
    assert tenants(place) == ["acme", "globex"]
    assert not (place.state_dir / "backups").exists()


def test_open_records_of_the_backup_are_closed(place: Place, tmp_path: Path) -> None:
    path = place.state_dir / "bulkhead.db"
    with closing(open_for_writing(path)) as db:
        accounts.add_key(db, "k", "tn_acme", b"\x01")
        db.execute(
            "INSERT INTO usage_record (id, request_id, tenant_id, api_key_id, operation, model_id,"
            " model_revision, streamed, boot_id, currency, input_price_pico,"
            " cached_input_price_pico, output_price_pico, opened_at, charge_at, state)"
            " VALUES ('r', 'q', 'tn_acme', 'k', 'chat', 'm', '', 0, 'boot', 'USD', 0, 0, 0, 1, 1,"
            " 'open')"
        )
    backup.create(place, tmp_path / "b.tar.gz")
    restore(place, tmp_path / "b.tar.gz")
    with closing(open_for_reading(path)) as db:
        rows = db.execute("SELECT state, outcome, billable FROM usage_record").fetchall()
    assert rows == [("orphaned", "crashed", 0)]


def test_a_store_of_a_newer_version_is_refused(place: Place, tmp_path: Path) -> None:
    newer = make(tmp_path / "newer")
    with closing(open_for_writing(newer.state_dir / "bulkhead.db")) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    (newer.state_dir / "root-secret").write_bytes((place.state_dir / "root-secret").read_bytes())
    backup.create(newer, tmp_path / "b.tar.gz")
    with pytest.raises(StoreTooNew, match="schema 9999"):
        plan(place, tmp_path / "b.tar.gz")
    assert facts(place.state_dir / "bulkhead.db").revision != "9999"


def test_a_damaged_backup_changes_nothing(place: Place, file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises((BackupError, StoreBroken)):
        restore(place, file)
    assert tenants(place) == ["acme"]


@pytest.mark.parametrize(
    "change",
    ["DROP VIEW usage_line", "DROP TABLE seal", "CREATE TABLE evil (x)", "DROP TRIGGER {trigger}"],
)
def test_a_store_of_another_shape_is_refused(place: Place, tmp_path: Path, change: str) -> None:
    other = make(tmp_path / "other")
    (other.state_dir / "root-secret").write_bytes((place.state_dir / "root-secret").read_bytes())
    with closing(open_for_writing(other.state_dir / "bulkhead.db")) as db:
        (trigger,) = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchone()
        db.execute(change.format(trigger=trigger))
    backup.create(other, tmp_path / "b.tar.gz")
    with pytest.raises(BackupError, match="other tables or triggers"):
        plan(place, tmp_path / "b.tar.gz")


def test_a_store_that_is_not_what_the_manifest_says_is_refused(
    place: Place, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backups.archive.facts", lambda _: facts_of_another(place))
    backup.create(place, file)
    monkeypatch.undo()
    with pytest.raises(BackupError, match="doesn't hold what its manifest says"):
        plan(place, file)


def facts_of_another(place: Place) -> Facts:
    return structs.replace(facts(place.state_dir / "bulkhead.db"), tenants=7)
