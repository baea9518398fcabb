"""What the doctor's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.doctor.finding import Patient
from tests.gateway.doctor.patients import patient


@pytest.fixture
def well(tmp_path: Path) -> Patient:
    """An installation with nothing wrong."""
    return patient(tmp_path)
