"""Each check by itself: what it finds when all is well, and when it isn't."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sqlite3
import ssl
import sys
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from gateway import address
from gateway.address import Address
from gateway.admin.key import ensure
from gateway.doctor import checks, folder, machine, network
from gateway.doctor.finding import Check, Finding, Patient
from gateway.store.connection import DATABASE
from gateway.store.migrate import migrate
from runtime.config.models import ModelSettings
from runtime.config.report import Report
from runtime.config.sections import AdminSettings, FileSettings, HostSettings, ServerSettings
from runtime.deploy.running import Sign
from runtime.node_wire import Hosts, ModelState, ModelView
from runtime.settings import Settings
from tests.authority import Authority
from tests.stack import free_port


class AtClock:
    def __init__(self, us: int) -> None:
        self.us = us

    def now_us(self) -> int:
        return self.us


def patient(folder: Path, **file: Any) -> Patient:
    """An installation in `folder`, with a store."""
    file = {"models": (ModelSettings(id="echo", engine="fake"),)} | file
    state_dir = folder / "state"
    if not state_dir.exists():
        state_dir.mkdir(mode=0o700)
        migrate(state_dir / DATABASE)
    settings = Settings(file=FileSettings(**file), config_path="", state_dir=state_dir)
    return Patient(settings, settings)


@pytest.fixture
def well(tmp_path: Path) -> Patient:
    return patient(tmp_path)


def levels(findings: Iterable[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def one(findings: Iterable[Finding], level: str) -> Finding:
    """The only finding, which is of this level and says what to do if it isn't fine."""
    (found,) = findings
    assert found.level == level, found
    assert bool(found.todo) == (level != "ok")
    return found


@pytest.mark.parametrize("check", checks.CHECKS)
def test_a_sound_installation_has_no_error_and_each_check_says_something(
    check: Check, tmp_path: Path
) -> None:
    sound = patient(
        tmp_path,
        server=ServerSettings(port=free_port()),
        admin=AdminSettings(port=free_port()),
    )
    assert "error" not in levels(check(sound))


def test_nothing_is_changed_by_looking(well: Patient) -> None:
    before = sorted(p.name for p in well.place.state_dir.rglob("*"))
    list(checks.examine(well))
    after = sorted(p.name for p in well.place.state_dir.rglob("*"))
    assert [name for name in after if not name.endswith(("-wal", "-shm"))] == [
        name for name in before if not name.endswith(("-wal", "-shm"))
    ]


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(
    well: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Patient) -> list[Finding]:
        raise ZeroDivisionError("why")

    monkeypatch.setattr(checks, "CHECKS", (broken, machine.python))
    first, second = checks.examine(well)
    assert (first.check, first.level, first.text) == ("broken", "error", "ZeroDivisionError: why")
    assert second.check == "python"


def test_an_old_python(well: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "3.11" in one(machine.python(well), "ok" if sys.version_info >= (3, 11) else "x").text[:9]
    )
    monkeypatch.setattr(machine, "OLDEST_PYTHON", (99, 0))
    one(machine.python(well), "error")


@pytest.mark.parametrize(
    ("requirement", "told"),
    [
        ("pytest>=1", ""),
        ("pytest>=999.1", "not 999.1 or newer"),
        ("no-such-package>=1", "is not installed"),
    ],
)
def test_requirements(requirement: str, told: str) -> None:
    assert told in machine.unmet(requirement)
    assert bool(machine.unmet(requirement)) == bool(told)


@pytest.mark.parametrize(
    ("found", "least", "is_older"),
    [
        ("1.9", "1.10", True),
        ("1.10", "1.9", False),
        ("2.0.0", "2", False),
        ("1.2.3", "1.2.3", False),
    ],
)
def test_versions_are_compared_by_number(found: str, least: str, is_older: bool) -> None:
    assert machine.older(found, least) is is_older


def test_torch_matters_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(machine.torch(patient(tmp_path))) == []
    model = ModelSettings(id="m", engine="embedded", path=str(tmp_path))
    using = patient(tmp_path, models=(model,))

    def version(found: str) -> None:
        monkeypatch.setattr(metadata, "version", lambda _: found)

    version("2.13.0+cpu")
    one(machine.torch(using), "ok")
    version("1.0")
    one(machine.torch(using), "warning")

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    one(machine.torch(using), "error")


def test_cpu_features(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name : x\nflags\t\t: fpu avx2 avx512f amx_bf16\n")
    assert machine.cpu_features(info) == ["avx2", "avx512f", "amx_bf16"]
    assert machine.cpu_features(tmp_path / "nowhere") == []


def test_a_budget_over_the_machines_memory(tmp_path: Path) -> None:
    one(machine.memory(patient(tmp_path)), "ok")
    much = patient(tmp_path, hosts=HostSettings(memory_bytes=10**15))
    one(machine.memory(much), "warning")


@pytest.mark.parametrize(("free", "level"), [(10**6, "error"), (10**9, "warning"), (10**10, "ok")])
def test_disk_space(well: Patient, monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    one(machine.disk(well), level)


@pytest.mark.parametrize(("soft", "level"), [(100, "error"), (1024, "warning"), (65536, "ok")])
def test_descriptors(well: Patient, monkeypatch: pytest.MonkeyPatch, soft: int, level: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, 10**6))
    one(machine.open_files(well), level)


def test_a_clock_that_was_never_set(well: Patient) -> None:
    one(machine.clock(well, AtClock(0)), "error")
    one(machine.clock(well), "ok")


def test_faults_and_warnings_of_the_config_are_findings(well: Patient) -> None:
    report = Report()
    report.error("server.port", "is no port")
    report.warn("nmae", "unknown key")
    found = list(folder.config(Patient(well.place, None, report)))
    assert levels(found) == ["error", "warning"]
    assert "server.port: is no port" in found[0].text
    one(folder.config(well), "ok")


def test_a_folder_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    settings = Settings(file=FileSettings(), config_path="", state_dir=tmp_path / "new")
    for check in (folder.state_folder, folder.store):
        one(check(Patient(settings, settings)), "ok")
    assert not (tmp_path / "new").exists()


def test_files_that_others_can_read(well: Patient) -> None:
    ensure(well.place.state_dir)
    one(folder.state_folder(well), "ok")
    (well.place.state_dir / "admin-key").chmod(0o644)
    well.place.state_dir.chmod(0o755)
    found = list(folder.state_folder(well))
    assert levels(found) == ["warning", "error"]
    assert found[1].todo == f"chmod 600 {well.place.state_dir / 'admin-key'}"


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    settings = Settings(file=FileSettings(), config_path="", state_dir=tmp_path / "state")
    one(folder.state_folder(Patient(settings, settings)), "error")


def test_a_damaged_store(well: Patient) -> None:
    assert "0 records" in one(folder.store(well), "ok").text
    path = well.place.state_dir / DATABASE
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 6] = os.urandom(4096 * 3)
    path.write_bytes(data)
    one(folder.store(well), "error")


def test_a_store_of_a_newer_version(well: Patient) -> None:
    with closing(sqlite3.connect(well.place.state_dir / DATABASE)) as db:
        db.execute("UPDATE alembic_version SET version_num = 'zzz'")
        db.commit()
    assert "zzz" in one(folder.store(well), "error").text


def test_a_record_of_the_future_gives_the_clock_away(well: Patient) -> None:
    with closing(sqlite3.connect(well.place.state_dir / DATABASE)) as db:
        db.execute(
            "INSERT INTO usage_record (id, request_id, tenant_id, api_key_id, operation, model_id,"
            " model_revision, streamed, boot_id, currency, input_price_pico,"
            " cached_input_price_pico, output_price_pico, opened_at, charge_at, state)"
            " VALUES ('u', 'r', 't', 'k', 'chat', 'm', '', 0, 'b', 'USD', 0, 0, 0, ?1, ?1, 'open')",
            (10**15,),
        )
        db.commit()
    assert list(folder.clock_and_store(well, AtClock(10**15))) == []
    one(folder.clock_and_store(well, AtClock(10**15 - 10**9)), "error")


def test_weights(tmp_path: Path) -> None:
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.mkdir()
    (there / "config.json").write_text("{}")
    models = (
        ModelSettings(id="a", engine="embedded", path=str(there)),
        ModelSettings(id="b", engine="embedded", path=str(absent)),
        ModelSettings(id="c", engine="embedded", source="smollm2-135m-instruct"),
        ModelSettings(id="d", engine="fake"),
    )
    found = list(folder.models_weights(patient(tmp_path, models=models)))
    assert levels(found) == ["ok", "error", "warning"]


def test_ports_are_free_ours_or_anothers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        taken = sock.getsockname()[1]
        here = Address(url=f"http://127.0.0.1:{taken}")
        assert network.port("port", "127.0.0.1", taken, here).text == f"{here.url} is ours"
        assert network.port("port", "127.0.0.1", taken, None).level == "error"
        both = patient(
            tmp_path, server=ServerSettings(port=taken), admin=AdminSettings(port=free_port())
        )
        assert levels(network.ports(both)) == ["error", "ok"]
    none = patient(tmp_path, server=ServerSettings(port=free_port()), admin=AdminSettings(port=0))
    assert levels(network.ports(none)) == ["ok"]


def test_what_does_not_run_is_no_fault(well: Patient) -> None:
    for check in (network.node, network.gateway):
        assert one(check(well), "ok").text == "not running"


def test_a_node_that_lives_and_does_not_answer(well: Patient) -> None:
    sign = Sign(well.place.state_dir, "node", dev=False)
    try:
        assert "no node answers" in one(network.node(well), "error").text
    finally:
        sign.close()


def test_a_gateway_that_lives_and_does_not_answer(well: Patient) -> None:
    sign = Sign(well.place.state_dir, "gateway", dev=False)
    try:
        one(network.gateway(well), "warning")  # it may be starting
        nowhere = Address(url=f"http://127.0.0.1:{free_port()}")
        address.publish(well.place.state_dir, "gateway", nowhere)
        assert "doesn't answer" in one(network.gateway(well), "error").text
    finally:
        sign.close()
        address.withdraw(well.place.state_dir, "gateway")


def test_a_gateway_that_asks_for_certificates_is_well_if_it_refuses_us(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse(server: socket.socket) -> None:
        for _ in range(2):
            with suppress(OSError), server.accept()[0] as sock:
                context.wrap_socket(sock, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=refuse, args=(server,))
        thread.start()
        base = f"https://127.0.0.1:{server.getsockname()[1]}"
        assert network.answers(base, mutual=True).level == "ok"
        assert network.answers(base).level == "error"
        thread.join()
    assert network.answers(base, mutual=True).level == "error", "nobody listens"


def test_models_that_fail_are_told_with_what_to_do() -> None:
    told = Hosts(
        version=1,
        models=[
            ModelView(id="a", state=ModelState.FAILED, failures=5, reason="no memory"),
            ModelView(id="b", state=ModelState.READY, failures=1, reason="exited with 1"),
            ModelView(id="c", state=ModelState.COLD),
        ],
    )
    found = list(network.models(told))
    assert levels(found) == ["error", "warning"]
    assert found[1].text == "b: 1 failure, exited with 1"
    assert "bulkhead hosts restart a" in found[0].todo
