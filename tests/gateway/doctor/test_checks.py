"""Each check by itself: what it finds when all is well, and when it isn't."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.doctor import checks, folder, machine
from gateway.doctor.finding import Check, Finding, Patient
from runtime.config.report import Report
from runtime.config.sections import AdminSettings, ServerSettings
from tests.gateway.doctor.patients import levels, one, patient
from tests.stack import free_port


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


def test_faults_and_warnings_of_the_config_are_findings(well: Patient) -> None:
    report = Report()
    report.error("server.port", "is no port")
    report.warn("nmae", "unknown key")
    found = list(folder.config(Patient(well.place, None, report)))
    assert levels(found) == ["error", "warning"]
    assert "server.port: is no port" in found[0].text
    one(folder.config(well), "ok")
