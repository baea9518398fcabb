"""The door at which callers knock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.identity.door import Door


@pytest.fixture
async def door(tmp_path: Path) -> Door:
    door = Door(tmp_path)
    await door.directory.refresh_if_changed()
    return door
