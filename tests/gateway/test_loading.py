"""A worker begins without what only a terminal needs, and without looking for garbage."""

from __future__ import annotations

import gc
import multiprocessing
import sys
from multiprocessing.connection import Connection

from gateway.processes import loading


class _Told:
    """Tells, as it is unpickled in the worker, what the worker would import after it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __setstate__(self, state: dict[str, Connection]) -> None:
        hidden = [name for name in ("rich", "click") if sys.modules.get(name, self) is None]
        state["_pipe"].send((hidden, gc.isenabled()))


def test_a_worker_hides_a_terminals_libraries_before_it_imports_any_of_ours() -> None:
    spawned = multiprocessing.get_context("spawn")
    ours, theirs = spawned.Pipe()
    worker = spawned.Process(target=_ignore, args=(loading.load_app, _Told(theirs)))
    worker.start()
    try:
        assert ours.poll(60), "the worker told nothing"
        assert ours.recv() == (["rich", "click"], False)
    finally:
        worker.join(60)


def test_a_parent_keeps_them() -> None:
    assert gc.isenabled()
    assert sys.modules.get("rich", loading) is not None


def _ignore(*_: object) -> None:
    """What the worker runs."""
