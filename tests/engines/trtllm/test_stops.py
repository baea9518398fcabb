"""The set of requests that must be stopped, and the gate that reads it in other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engines.trtllm import stops as sets
from engines.trtllm.gate import PROVEN_BY, Gate
from engines.trtllm.state import StateFile
from engines.trtllm.stops import CAPACITY, MET, Stops, StopsFull

LARGEST = (1 << 64) - 1


def begun(folder: Path) -> tuple[StateFile, Stops]:
    """A guard's two files."""
    state = StateFile.create(folder)
    return state, Stops.create(folder, state.boot)


def reader(folder: Path) -> Stops:
    stops = Stops.open(folder)
    assert stops is not None
    return stops


def test_a_reader_sees_what_is_added(tmp_path: Path) -> None:
    assert Stops.open(tmp_path) is None
    _, stops = begun(tmp_path)
    other = reader(tmp_path)
    assert not other.must_stop(0)
    for client in (0, 5, LARGEST):
        stops.add(client)
        assert other.must_stop(client)
        assert stops.must_stop(client)
    assert not other.must_stop(6)
    assert (tmp_path / "stop").stat().st_size == Stops.SIZE


def test_a_full_set_says_so(tmp_path: Path) -> None:
    _, stops = begun(tmp_path)
    for client in range(CAPACITY):
        stops.add(client)
    with pytest.raises(StopsFull):
        stops.add(CAPACITY)
    other = reader(tmp_path)
    assert all(map(other.must_stop, range(CAPACITY)))
    assert not other.must_stop(CAPACITY)


def test_half_an_entry_may_be_anybodys_until_it_is_whole(tmp_path: Path) -> None:
    """As a reader meets it on a machine that shows another's stores in another order."""
    _, stops = begun(tmp_path)
    other = reader(tmp_path)
    stops.add(7)
    place = sets._HEADER + 1
    whole, stops._words[place] = stops._words[place], 0
    assert other.must_stop(8)
    stops._words[place] = whole
    assert not other.must_stop(8)
    assert other.must_stop(7)


def test_the_last_that_were_met(tmp_path: Path) -> None:
    _, stops = begun(tmp_path)
    other = reader(tmp_path)
    assert not other.has_met(0)
    for client in range(MET + 1):
        stops.meet(client)
    assert other.has_met(MET)
    assert other.has_met(1)
    assert not other.has_met(0)
    assert not other.has_met(LARGEST)


def test_a_gate_without_a_guard_is_closed(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    assert not gate.lets_through(1, has_output=True)
    assert not gate.lets_through(1, has_output=False)
    state, stops = begun(tmp_path)
    stops.meet(1)
    assert gate.lets_through(1, has_output=True)
    assert stops.is_watched
    state.poison()
    assert not gate.lets_through(1, has_output=True)


def test_a_gate_stops_who_must_be_stopped_and_no_other(tmp_path: Path) -> None:
    _, stops = begun(tmp_path)
    gate = Gate(tmp_path)
    for client in (1, 2):
        stops.meet(client)
    stops.add(2)
    assert gate.lets_through(1, has_output=True)
    assert not gate.lets_through(2, has_output=True)
    assert not gate.lets_through(2, has_output=False)


def test_names_that_the_guard_never_met_close_the_gate_for_good(tmp_path: Path) -> None:
    """The hook's ids would not be the guard's: nobody could be stopped."""
    state, stops = begun(tmp_path)
    gate = Gate(tmp_path)
    stops.meet(1)
    assert gate.lets_through(99, has_output=False)  # an answer's end, without anything in it
    assert not gate.lets_through(99, has_output=True)
    assert state.is_poisoned
    assert not gate.lets_through(1, has_output=True)


def test_once_proven_a_name_may_be_forgotten(tmp_path: Path) -> None:
    """A long answer outlives the guard's memory of its name."""
    _, stops = begun(tmp_path)
    gate = Gate(tmp_path)
    stops.meet(1)
    assert all(gate.lets_through(1, has_output=True) for _ in range(PROVEN_BY))
    for client in range(2, MET + 3):
        stops.meet(client)
    assert not stops.has_met(1)
    assert gate.lets_through(1, has_output=True)


def test_a_gate_goes_on_with_the_guard_that_took_the_places_of_the_first(tmp_path: Path) -> None:
    _, first = begun(tmp_path)
    gate = Gate(tmp_path)
    first.add(2)
    state = StateFile.create(tmp_path)
    assert not gate.lets_through(1, has_output=True)  # the new one's set isn't there yet
    stops = Stops.create(tmp_path, state.boot)
    for client in (1, 2):
        stops.meet(client)
        assert gate.lets_through(client, has_output=True)


def test_a_process_that_hands_text_out_sees_what_the_one_that_checks_adds(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from engines.trtllm.gate import Gate\n"
        f"gate = Gate(Path({str(tmp_path)!r}))\n"
        "for line in sys.stdin:\n"
        "    print(gate.lets_through(int(line), has_output=True), flush=True)\n"
    )
    state, stops = begun(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def lets_through(client: int) -> str:
            print(client, file=process.stdin, flush=True)
            return process.stdout.readline().strip()  # type: ignore[union-attr]

        for client in (LARGEST, 0, 3):
            stops.meet(client)
            assert lets_through(client) == "True"
            stops.add(client)
            assert lets_through(client) == "False"
        stops.meet(5)
        assert lets_through(5) == "True"
        state.poison()
        assert lets_through(5) == "False"
