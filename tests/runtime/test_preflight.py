"""What is known before a start: a job that could never do its work is a fault of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime import preflight
from runtime.config.report import Report
from tests.trtllm.folder import tokenizer_folder

PARQUET: dict[str, Any] = {
    "triggers": {"crons": [{"run": "backup"}, {"run": "usage-export", "format": "parquet"}]}
}


def faults(folder: Path, data: dict[str, Any]) -> list[str]:
    report = Report()
    preflight.check(data, folder, report)
    return [str(fault) for fault in report.errors]


def test_parquet_needs_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults(tmp_path, PARQUET) == []
    monkeypatch.setattr(preflight, "_has", lambda module: module != "pyarrow")
    (fault,) = faults(tmp_path, PARQUET)
    assert "triggers.crons[1].format" in fault
    assert "bulkhead[parquet]" in fault
    assert faults(tmp_path, {"triggers": {"crons": [{"format": "focus"}]}}) == []


@pytest.mark.parametrize("odd", [{"triggers": 1}, {"triggers": {"crons": 1}}, {"triggers": {}}])
def test_what_is_odd_is_told_elsewhere(tmp_path: Path, odd: dict[str, Any]) -> None:
    assert faults(tmp_path, odd) == []


def test_a_tokenizer_is_there_and_can_be_read(tmp_path: Path) -> None:
    tokenizer_folder(tmp_path / "llama")
    assert faults(tmp_path, {"models": [{"tokenizer": "llama"}]}) == []
    (fault,) = faults(tmp_path, {"models": [{"tokenizer": ""}, {"tokenizer": "other"}]})
    assert "models[1].tokenizer" in fault
