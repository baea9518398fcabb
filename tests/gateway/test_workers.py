"""Which workers there are: crashes, handovers and both at once, without processes or time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from gateway.processes.workers import MAX_FAILURES, MAX_TRIES, GatewayFailed, Workers

OUTLIVE_S = 100.0


@dataclass
class FakeProcess:
    alive: bool = True
    serves: bool = False
    told: list[str] = field(default_factory=list)

    def is_alive(self) -> bool:
        return self.alive

    def is_serving(self) -> bool:
        return self.serves

    def ending(self) -> str:
        return "exited with 3"

    def retire(self) -> None:
        self.told.append("retire")

    def kill(self) -> None:
        self.told.append("kill")


@dataclass
class FakeKind:
    started: list[FakeProcess] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    fault: OSError | None = None

    def start(self) -> FakeProcess:
        if self.fault:
            raise self.fault
        self.started.append(FakeProcess())
        return self.started[-1]

    def taken(self) -> None:
        self.said.append("taken")

    def refused(self, reason: str) -> None:
        self.said.append(f"refused: {reason}")

    @property
    def last(self) -> FakeProcess:
        return self.started[-1]


@pytest.fixture
def old() -> FakeKind:
    return FakeKind()


@pytest.fixture
def new() -> FakeKind:
    return FakeKind()


@pytest.fixture
def workers(old: FakeKind) -> Workers[FakeProcess]:
    """One serves."""
    found: Workers[FakeProcess] = Workers(old, lambda: OUTLIVE_S)
    found.turn(0)
    assert not found.is_serving
    old.last.serves = True
    found.turn(0.1)
    assert found.is_serving
    assert len(old.started) == 1
    return found


def test_a_crashed_worker_is_replaced_after_a_moment(
    workers: Workers[FakeProcess], old: FakeKind
) -> None:
    old.last.alive = False
    workers.turn(100)
    assert len(old.started) == 1
    workers.turn(100.09)
    assert len(old.started) == 1
    workers.turn(100.2)
    assert len(old.started) == 2


def test_crashes_in_a_row_are_waited_out_longer_and_longer_then_it_fails(
    workers: Workers[FakeProcess], old: FakeKind
) -> None:
    starts: list[float] = []

    def crash_again_and_again() -> None:
        now = 0.0
        while True:
            if old.last.alive:
                starts.append(now)
                old.last.alive = False
            now += 0.01
            workers.turn(now)

    with pytest.raises(GatewayFailed):
        crash_again_and_again()
    assert len(starts) == MAX_FAILURES
    waits = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]


def test_another_takes_over_once_it_serves(
    workers: Workers[FakeProcess], old: FakeKind, new: FakeKind
) -> None:
    workers.renew(new, 1)
    workers.turn(2)
    assert old.last.told == []
    assert new.said == []
    new.last.serves = True
    workers.turn(3)
    assert old.last.told == ["retire"]
    assert new.said == ["taken"]
    assert list(workers) == [new.last, old.last]
    old.last.alive = False
    workers.turn(4)
    assert list(workers) == [new.last], "an end is no crash for one that has retired"
    new.last.alive = False
    workers.turn(5)
    workers.turn(6)
    assert (len(old.started), len(new.started)) == (1, 2), "the new kind is the kind now"


def test_one_that_retired_is_killed_in_the_end(
    workers: Workers[FakeProcess], old: FakeKind, new: FakeKind
) -> None:
    workers.renew(new, 1)
    new.last.serves = True
    workers.turn(3)
    workers.turn(3 + OUTLIVE_S - 0.1)
    assert old.last.told == ["retire"]
    workers.turn(3 + OUTLIVE_S)
    workers.turn(4 + OUTLIVE_S)
    assert old.last.told == ["retire", "kill"]


def test_one_that_does_not_come_up_is_tried_again(
    workers: Workers[FakeProcess], old: FakeKind, new: FakeKind
) -> None:
    """It may have been killed for what is no fault of its kind, just before it was heard."""
    workers.renew(new, 1)
    new.last.alive, new.last.serves = False, True
    workers.turn(2)
    workers.turn(2.09)
    assert len(new.started) == 1
    workers.turn(2.1)
    assert list(workers) == [old.last, new.last]
    assert (len(new.started), new.said, old.last.told) == (2, [], [])
    new.last.serves = True
    workers.turn(3)
    assert (new.said, old.last.told) == (["taken"], ["retire"])


def test_one_that_never_comes_up_changes_nothing(
    workers: Workers[FakeProcess], old: FakeKind, new: FakeKind
) -> None:
    workers.renew(new, 1)
    for turn in range(10 * MAX_TRIES):
        new.last.alive = False
        workers.turn(2 + turn)
    assert len(new.started) == MAX_TRIES
    assert new.said == ["refused: exited with 3"]
    assert old.last.told == []
    assert workers.is_serving
    assert list(workers) == [old.last]
    old.last.alive = False
    workers.turn(150)
    workers.turn(151)
    assert (len(old.started), len(new.started)) == (2, MAX_TRIES)


def test_no_process_can_be_had_for_a_while(
    workers: Workers[FakeProcess], old: FakeKind, new: FakeKind
) -> None:
    """Neither for the one that is to come, nor for the one that serves."""
    new.fault = old.fault = OSError("no more processes")
    workers.renew(new, 1)
    old.last.alive = False
    workers.turn(2)
    workers.turn(2.5)
    assert list(workers) == []
    new.fault = old.fault = None
    workers.turn(5)
    assert list(workers) == [old.last, new.last]


def test_both_are_killed_in_mid_handover(
    workers: Workers[FakeProcess], old: FakeKind, new: FakeKind
) -> None:
    workers.renew(new, 1)
    new.last.serves = True
    workers.turn(2)
    old.last.alive = new.last.alive = False
    workers.turn(3)
    workers.turn(4)
    assert list(workers) == [new.last]
    assert (len(old.started), len(new.started)) == (1, 2)


def test_a_second_change_while_the_first_is_to_be_tried_again(
    workers: Workers[FakeProcess], old: FakeKind, new: FakeKind
) -> None:
    newest = FakeKind()
    workers.renew(new, 1)
    new.last.alive = False
    workers.turn(2)
    workers.renew(newest, 2.05)
    newest.last.serves = True
    workers.turn(3)
    workers.turn(10)
    assert (len(new.started), new.said, newest.said) == (1, [], ["taken"])
    assert list(workers) == [newest.last, old.last]


def test_the_serving_one_crashes_while_another_comes_up(
    workers: Workers[FakeProcess], old: FakeKind, new: FakeKind
) -> None:
    """Whoever is there first serves, and the new one takes over all the same."""
    workers.renew(new, 1)
    old.last.alive = False
    workers.turn(50)
    workers.turn(51)
    assert len(old.started) == 2
    new.last.serves = True
    workers.turn(52)
    assert old.last.told == ["retire"]
    assert new.said == ["taken"]


def test_a_second_change_before_the_first_has_come_up(
    workers: Workers[FakeProcess], old: FakeKind, new: FakeKind
) -> None:
    newest = FakeKind()
    workers.renew(new, 1)
    workers.renew(newest, 2)
    assert new.last.told == ["retire"]
    newest.last.serves = True
    workers.turn(3)
    assert (new.said, newest.said) == ([], ["taken"])
    assert set(map(id, workers)) == set(map(id, [newest.last, old.last, new.last]))
