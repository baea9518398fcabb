"""What the doctor finds of the machine."""

from __future__ import annotations

import resource
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

from engines.kernels import native
from gateway.doctor import machine
from gateway.doctor.finding import Patient
from runtime.config.models import ModelSettings
from runtime.config.sections import HostSettings
from tests.gateway.doctor.patients import one, patient


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


class Built:
    """A native module of a machine with AVX2."""

    def isas(self) -> list[str]:
        return ["avx2", "scalar"]


def test_which_kernels_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(machine.kernels(patient(tmp_path))) == []
    using = patient(tmp_path, models=(ModelSettings(id="m", engine="embedded"),))
    monkeypatch.setattr(native, "HAS_MODEL", False)
    assert "torch" in one(machine.kernels(using), "warning").text
    monkeypatch.setattr(native, "HAS_MODEL", True)
    monkeypatch.setattr(native, "module", Built())
    assert one(machine.kernels(using), "ok").text == "native, for avx2"


def test_torch_isn_t_missed_where_the_native_kernels_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But by a model whose options want it."""
    monkeypatch.setattr(native, "HAS_MODEL", True)
    plain = ModelSettings(id="m", engine="embedded", source="smollm2-135m-instruct")
    assert list(machine.torch(patient(tmp_path, models=(plain,)))) == []
    exact = ModelSettings(id="m", engine="embedded", options={"dtype": "float32"})
    assert list(machine.torch(patient(tmp_path, models=(plain, exact)))) != []


def test_torch_matters_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "HAS_MODEL", False)
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
    assert "-m pip install 'bulkhead[torch]'" in one(machine.torch(using), "error").todo


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


@pytest.mark.parametrize(("hard", "level"), [(100, "error"), (1024, "warning"), (65536, "ok")])
def test_descriptors(well: Patient, monkeypatch: pytest.MonkeyPatch, hard: int, level: str) -> None:
    """What a gateway may have once it has raised its limit is told."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (min(hard, 1024), hard))
    one(machine.open_files(well), level)
