"""The guard where it will run: with each generation of TensorRT-LLM, and nothing of ours beside."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import mypy.api
import pytest

from engines.api import KvIntegrityAbort
from engines.trtllm import salts
from engines.trtllm.closure import closure
from tests.engines.trtllm.stub_tensorrt_llm import GENERATIONS, write_stub

PLAYERS = Path(__file__).with_name("inside")
SCENES = [
    line.removeprefix("def scene_").partition("(")[0]
    for player in sorted(PLAYERS.glob("*.py"))
    for line in player.read_text().splitlines()
    if line.startswith("def scene_")
]
MODULE = "tests.engines.trtllm.inside.scenes"
NEWEST = (3, 10)  # the oldest Python that TensorRT-LLM runs on is the newest that we may assume


class Played:
    """What came of each scene in one generation."""

    def __init__(self, generation: str, folder: Path, told: dict[str, Any]) -> None:
        self.has_hook = generation == "later"
        self.folder = folder
        self._told = told

    def __call__(self, scene: str) -> dict[str, Any]:
        told: dict[str, Any] = self._told[scene]
        assert "raised" not in told, told
        result: dict[str, Any] = told["result"]
        return result

    def salt_of(self, line: dict[str, Any], salt: str) -> bool:
        """Whether the journal's line names it, as its generation can."""
        if self.has_hook:
            return salts.is_of(line, salt)
        number: int = sum(map(ord, salt))
        return line["salt"] is None and line["salt_id"] == f"{number:016x}"

    def outputs_end(self, *stopped: bool) -> list[str]:
        """Of requests that are or aren't stopped: without a hook, the guard stops none itself."""
        return [
            "terminate kv_integrity_abort" if stop and self.has_hook else "" for stop in stopped
        ]


@pytest.fixture(scope="module", params=GENERATIONS)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """All scenes, in a process that has the rendered files, the stub, numpy and torch."""
    folder = tmp_path_factory.mktemp(request.param)
    write_files(folder / "python")
    write_stub(folder / "stub", request.param)
    (folder / "scenes").mkdir()
    players = folder / "players" / "tests" / "engines" / "trtllm" / "inside"
    shutil.copytree(PLAYERS, players, ignore=shutil.ignore_patterns("__pycache__"))
    ours = (folder / name for name in ("python", "stub", "players"))
    places = [*ours, sysconfig.get_path("purelib")]
    result = subprocess.run(
        # Without `site`, no path file of an editable installation brings the rest of ours along.
        [sys.executable, "-S", "-P", "-m", MODULE, folder / "scenes", *SCENES],
        env={"PYTHONPATH": ":".join(map(str, places)), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return Played(request.param, folder, json.loads(result.stdout))


def write_files(folder: Path) -> None:
    """As the launcher puts them on PYTHONPATH."""
    for path, text in closure().items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_sound_requests_are_left_alone(played: Played) -> None:
    """Each step is seen, also one that adds no block; what the ranks are told is plain."""
    told = played("sound")
    assert told["steps"] == 8
    assert told["violations"] == 0
    assert told["journal"] == []
    assert told["stopped"] == []
    assert not told["poisoned"]
    assert told["checked"] > 0
    assert [len(output) for output in told["outputs"]] == [8, 7, 1]
    assert not any("terminate" in text for output in told["outputs"] for text in output)
    no_block, *_, last = told["metadata"]
    assert no_block == [[100, False, []], [101, False, []]]
    assert last == [[102, True, [3, 6, 7]], [100, False, []]]


def test_a_block_of_another_tenant_stops_its_reader_before_a_token_and_nobody_else(
    played: Played,
) -> None:
    told = played("foreign")
    assert {line["kind"] for line in told["journal"]} == {"foreign"}
    for line in told["journal"]:
        assert (line["request"], line["client"], line["block"]) == (102, 4, 0)
        assert played.salt_of(line, "tenant b")
        assert set(line) == {
            "seq", "at_us", "step", "request", "client", "salt", "salt_id", "kind", "block",
        }  # fmt: skip
    assert told["stopped"] == [4]
    assert told["violations"] >= 1
    assert not told["poisoned"]
    one, other, thief = told["outputs"]
    if played.has_hook:
        assert set(thief) == {"terminate kv_integrity_abort"}
    assert not any("terminate" in text for text in one + other)


def test_the_journal_names_no_salt_and_no_token(played: Played) -> None:
    text = (played.folder / "scenes" / "foreign" / "journal.ndjson").read_text()
    assert "tenant" not in text
    if played.has_hook:
        assert hashlib.sha256(b"tenant b").hexdigest()[:32] in text


def test_a_request_that_cannot_be_stopped_alone_stops_all_where_hooks_stop(played: Played) -> None:
    told = played("unnamed")
    assert told["poisoned"] == played.has_hook
    assert [line["client"] for line in told["journal"]] == [None]


def test_who_has_ended_and_runs_on_is_stopped_by_name(played: Played) -> None:
    told = played("ended")
    assert 3 in told["stopped"]
    assert not told["poisoned"]
    assert {line["kind"] for line in told["journal"] if line["client"] == 3} & {"stale", "double"}
    if played.has_hook:
        assert told["outputs"][1][-1] == "terminate kv_integrity_abort"


def test_a_wrong_device_table_stops_its_row_before_a_token(played: Played) -> None:
    told = played("device")
    assert [line["kind"] for line in told["journal"]] == ["device_table"]
    assert [line["client"] for line in told["journal"]] == [3]
    assert [line["block"] for line in told["journal"]] == [4]
    assert all(line["salt"] or line["salt_id"] for line in told["journal"]), "else all would end"
    assert told["stopped"] == [3]
    assert not told["poisoned"]
    one, other = told["outputs"]
    assert not any("terminate" in text for text in one)
    if played.has_hook:
        assert [text.startswith("terminate") for text in other] == [False, True, True]


def test_a_table_that_changes_under_the_pass_stops_its_row_too(played: Played) -> None:
    told = played("late")
    lines = [(line["kind"], line["client"], line["block"]) for line in told["journal"]]
    assert lines == [("device_table", 2, 1)]
    assert told["stopped"] == [2]
    if played.has_hook:
        one, other = told["outputs"]
        assert [text.startswith("terminate") for text in one] == [False, True, True]
        assert not any("terminate" in text for text in other)


def test_a_table_that_is_laid_out_otherwise_is_not_checked(played: Played) -> None:
    told = played("odd_table")
    assert "laid out" in told["off"]
    assert told["violations"] == 0
    assert not told["poisoned"]


def test_no_callback_raises_whatever_it_is_handed(played: Played) -> None:
    assert played("garbage")["poisoned"]


@pytest.mark.parametrize("scene", ["broken", "broken_worker", "full", "many"])
def test_what_the_guard_cannot_do_stops_everybody_and_raises_nothing(
    played: Played, scene: str
) -> None:
    told = played(scene)
    assert told["poisoned"]
    if played.has_hook:
        assert {output[-1] for output in told["outputs"]} == {"terminate kv_integrity_abort"}


def test_settings_that_blind_the_guard_are_refused_at_the_start(played: Played) -> None:
    told = played("blinded")
    assert sorted(told["said"]) == told["wrong"]
    for name, said in told["said"].items():
        assert name.removesuffix("_config") in said, said


def test_the_gateway_knows_the_reason_that_a_hook_stops_with() -> None:
    assert f'STOP_REASON = "{KvIntegrityAbort.code}"' in closure()["engines/trtllm/hook.py"]


def test_without_a_folder_nothing_starts_and_nothing_passes(played: Played) -> None:
    told = played("no_folder")
    assert "BULKHEAD_GUARD_DIR" in told["said"]
    assert told["action"] == "terminate"


def test_a_hook_stops_what_it_does_not_know(played: Played) -> None:
    told = played("odd_piece")
    assert told == {"action": "terminate", "reason": "kv_integrity_abort", "poisoned": True}


def test_another_rank_poisons_what_it_finds(played: Played) -> None:
    assert played("other_rank") == {"before": False, "after": True}


def test_a_step_is_no_work_of_another_order(played: Played) -> None:
    assert played("speed")["ms"] < 1000


def test_the_guard_brings_nothing_but_itself(played: Played) -> None:
    told = played("modules")
    assert told["new"] == ["engines", "tensorrt_llm"]
    files = {path for path in closure() if played.has_hook or "hook" not in path}
    found = {str(Path(file).relative_to(played.folder / "python")) for file in told["ours"]}
    assert found <= files
    lazily = {"engines/trtllm/table_check_triton.py", "engines/trtllm/gate.py"}
    assert files - found <= lazily | {"engines/trtllm/hook.py"}


def test_it_uses_no_name_that_the_oldest_python_does_not_have(tmp_path: Path) -> None:
    write_files(tmp_path)
    version = ".".join(map(str, NEWEST))
    said, _, _ = mypy.api.run(
        [
            *("--python-version", version, "--follow-imports", "skip", "--ignore-missing-imports"),
            *("--config-file", os.devnull, "--cache-dir", os.devnull, str(tmp_path / "engines")),
        ]
    )
    lines = said.splitlines()
    assert f"checked {len(closure())} source files" in lines[-1], said
    assert [line for line in lines if "Module " in line] == []  # the rest is numpy, left out


@pytest.mark.parametrize("path", closure())
def test_it_is_python_of_the_oldest_that_it_runs_on(path: str) -> None:
    tree = ast.parse(closure()[path], feature_version=NEWEST)
    tops = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    later = {"tomllib"}  # what the standard library has gained since
    assert tops <= set(sys.stdlib_module_names) - later | {
        "engines", "numpy", "tensorrt_llm", "torch", "triton",
    }  # fmt: skip
