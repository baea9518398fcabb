"""What the serving commands take on their command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.commands import main
from tests.stack import fake_config


@pytest.mark.parametrize("host", ["", "a b", "http://127.0.0.1", "127.0.0.1:80", "[::1]", "-x"])
@pytest.mark.parametrize("command", ["dev", "serve", "gateway"])
def test_a_host_that_can_not_be_one_is_refused_before_anything_starts(
    tmp_path: Path, command: str, host: str
) -> None:
    """By the same rule as `server.host` in the file, and BULKHEAD_HOST."""
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    places = ["--config", str(tmp_path / "bulkhead.toml"), "--state", str(tmp_path / "state")]
    done = CliRunner().invoke(main, [command, f"--host={host}", *places])
    assert done.exit_code == 2
    assert "Invalid value for '--host': expected an address or a name of this machine" in (
        " ".join(done.output.split())
    )
    assert not (tmp_path / "state").exists()
