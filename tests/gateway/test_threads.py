"""How a worker's thread is scheduled while its server starts, and what of that is left alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import Thread

import pytest

from gateway.processes.threads import start_as_usual, start_patient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has batch threads")


def policies(begun: int) -> list[int]:
    """Of a thread that an operator had start so: then, while a server starts, and afterwards."""
    seen: list[int] = []

    def live() -> None:
        os.sched_setscheduler(0, begun, os.sched_param(0))
        seen.append(os.sched_getscheduler(0))
        is_patient = start_patient()
        seen.append(_of_a_new_one())
        if is_patient:
            start_as_usual()
        seen.append(os.sched_getscheduler(0))

    _run(live)
    return seen


def _of_a_new_one() -> int:
    seen: list[int] = []
    _run(lambda: seen.append(os.sched_getscheduler(0)))
    return seen[0]


def _run(live: Callable[[], None]) -> None:
    thread = Thread(target=live)
    thread.start()
    thread.join()


def test_what_is_started_meanwhile_is_patient() -> None:
    assert policies(os.SCHED_OTHER) == [os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_OTHER]


@pytest.mark.parametrize("policy", [os.SCHED_BATCH, os.SCHED_IDLE])
def test_what_an_operator_has_chosen_stays(policy: int) -> None:
    assert policies(policy) == [policy] * 3


def test_where_it_is_forbidden_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("a sandbox")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert not start_patient()
    start_as_usual()


def test_where_there_is_no_such_call_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getscheduler")
    assert not start_patient()
