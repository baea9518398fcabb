"""The store is let go of for a restore, and nobody waits for the dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.store.hold import StoreInUse, Use, held, is_wanted, using

HOLDER = """
import pathlib, sys, time
from gateway.store import hold
database = pathlib.Path(sys.argv[1])
{what}
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@contextmanager
def another_process(path: Path, what: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the store until it is killed."""
    code = HOLDER.format(what=what)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_store_that_nobody_uses_is_had_at_once(path: Path) -> None:
    assert not is_wanted(path)
    with held(path, 0):
        assert is_wanted(path)
        assert not Use(path).take()
    assert not is_wanted(path)


def test_who_is_held_off_has_it_afterwards(path: Path) -> None:
    use = Use(path)
    with held(path, 0):
        assert not use.take()
    assert use.take()
    use.let_go()
    use.let_go()


def test_several_use_it_and_all_must_let_go(path: Path) -> None:
    one, other = Use(path), Use(path)
    assert one.take()
    assert other.take()
    one.let_go()
    with pytest.raises(StoreInUse, match="Nothing was changed"), held(path, 0):
        raise AssertionError("the other still uses it")
    assert not is_wanted(path), "given up"
    other.let_go()
    with held(path, 0):
        pass


def test_a_short_use_is_waited_for(path: Path) -> None:
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        with using(path):
            begun.set()
            end.wait(30)

    worker = threading.Thread(target=work)
    worker.start()
    begun.wait(30)
    threading.Timer(0.2, end.set).start()
    with held(path, 30):
        assert end.is_set()
    worker.join()


def test_a_short_use_waits_for_a_restore(path: Path) -> None:
    done = threading.Event()

    def work() -> None:
        with using(path):
            done.set()

    with held(path, 0):
        worker = threading.Thread(target=work)
        worker.start()
        assert not done.wait(0.2)
    assert done.wait(30)
    worker.join()


def test_two_restores_at_once_are_refused(path: Path) -> None:
    with held(path, 0), pytest.raises(StoreInUse, match="Another restore"), held(path, 0):
        raise AssertionError("there are two")


def test_a_killed_restore_is_not_waited_for(path: Path) -> None:
    with another_process(path, "with hold.held(database, 0):") as process:
        assert is_wanted(path)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not is_wanted(path)
        use = Use(path)
        assert use.take()
        use.let_go()


def test_a_killed_user_is_not_waited_for(path: Path) -> None:
    with another_process(path, "with hold.using(database):") as process:
        threading.Timer(0.2, process.kill).start()
        with held(path, 30):
            assert process.wait(30) == -signal.SIGKILL


def test_looking_does_not_disturb_a_restore(path: Path) -> None:
    """Many gateways look at the mark while a restore takes it."""
    stop = time.monotonic() + 1

    def look() -> None:
        while time.monotonic() < stop:
            is_wanted(path)

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for looker in lookers:
        looker.start()
    for _ in range(20):
        with held(path, 5):
            assert is_wanted(path)
    for looker in lookers:
        looker.join()
