"""One process at a time makes a folder, and nothing is left of the lock."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from engines.build.publish import lock

TURNS = 50


def take_turns(folder: Path) -> None:
    """Add to a number that nobody else may be adding to."""
    number = folder / "number"
    for _ in range(TURNS):
        with lock(folder / "out"):
            found = int(number.read_text())
            number.write_text(str(found + 1))


def test_no_lock_is_left_and_no_two_have_it(tmp_path: Path) -> None:
    """Each removes the file, which others wait for already."""
    (tmp_path / "number").write_text("0")
    several = multiprocessing.get_context("forkserver")
    workers = [several.Process(target=take_turns, args=(tmp_path,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert int((tmp_path / "number").read_text()) == 4 * TURNS
    assert [path.name for path in tmp_path.iterdir()] == ["number"]


def test_what_a_killed_process_left_is_taken_up(tmp_path: Path) -> None:
    (tmp_path / ".out.lock").touch()
    with lock(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []
