"""`bulkhead trt status` of launchers that can't be asked, and of none at all."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from gateway.cli.commands import main
from tests.stack import free_port

MODEL = """
[[models]]
id = "llama"
engine = "tensorrt-llm"
path = "/models/llama"
url = "http://llama:8000/v1"
[models.trt]
"""


def run(folder: Path, text: str, *words: str) -> Result:
    (folder / "bulkhead.toml").write_text(MODEL + text)
    asked = ["trt", "status", "--config", str(folder / "bulkhead.toml")]
    return CliRunner().invoke(main, [*asked, "--state", str(folder / "state"), *words])


def test_a_launcher_that_can_t_be_asked_is_told_beside_its_server(tmp_path: Path) -> None:
    launcher = f"http://127.0.0.1:{free_port()}"
    done = run(tmp_path, f'guard_url = "{launcher}"\n', "--json")
    assert done.exit_code == 1
    (told,) = json.loads(done.stdout)
    assert (told["model"], told["url"], told["state"]) == (
        "llama",
        "http://llama:8000",
        "unreachable",
    )
    assert told["reason"] == f"its launcher, {launcher}, can't be asked (no connection)"


def test_where_there_is_none_it_says_how_one_is_started(tmp_path: Path) -> None:
    done = run(tmp_path, "guard = false\n", "llama")
    assert done.exit_code == 5
    assert "`bulkhead trt launch llama`" in done.stderr
