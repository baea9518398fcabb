"""What the guard leaves behind for others to read: its state and its journal."""

from __future__ import annotations

import os
import resource
import struct
from pathlib import Path

import pytest

from engines.trtllm import journal as journals
from engines.trtllm.journal import Journal, JournalFull, read_state
from engines.trtllm.state import StateFile

VIOLATION = {"step": 7, "request": 2048, "client": 3, "salt": None, "salt_id": None, "block": 9}


def test_the_state_is_64_bytes_of_eight_numbers(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    state = StateFile.create(tmp_path)
    state.tell(steps=2**40 + 1, checked=70_000, violations=3)
    content = (tmp_path / "state").read_bytes()
    assert len(content) == StateFile.SIZE
    magic, pid, boot, steps, checked, violations, poisoned, at_ns = struct.unpack("<8Q", content)
    assert magic.to_bytes(8, "little") == b"BHGUARD1"
    assert (pid, boot) == (os.getpid(), state.boot)
    assert (steps, checked, violations, poisoned) == (2**40 + 1, 70_000, 3, 0)
    assert at_ns > 0
    told = read_state(tmp_path)
    assert told is not None
    assert told.told() == {
        "boot": f"{boot:016x}",
        "steps": 2**40 + 1,
        "checked": 70_000,
        "violations": 3,
        "poisoned": False,
    }
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600


def test_any_process_poisons_and_nobody_takes_it_back(tmp_path: Path) -> None:
    state = StateFile.create(tmp_path)
    other = StateFile.open(tmp_path)
    assert other is not None
    other.poison()
    state.tell(steps=1, checked=1, violations=0)
    assert state.is_poisoned
    told = read_state(tmp_path)
    assert told is not None
    assert told.is_poisoned


def test_a_second_guard_in_the_folder_poisons_the_first(tmp_path: Path) -> None:
    first = StateFile.create(tmp_path)
    second = StateFile.create(tmp_path)
    assert first.is_poisoned
    assert not second.is_poisoned
    assert first.boot != second.boot


@pytest.mark.parametrize(
    "content", [b"", b"\0" * StateFile.SIZE, b"BHGUARD1", b"BHGUARD2" + b"\0" * 56]
)
def test_what_is_no_state_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    assert read_state(tmp_path) is None
    assert StateFile.open(tmp_path) is None


def test_no_folder_and_no_room_are_errors_and_not_crashes(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        StateFile.create(tmp_path / "missing")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))  # as a file system with 16 bytes left
    try:
        with pytest.raises(OSError, match="no room"):
            StateFile.create(tmp_path)
        journal = Journal(tmp_path)
        with pytest.raises(JournalFull):
            journal.append(VIOLATION)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        journal.close()


def test_a_reader_gets_each_line_once(tmp_path: Path) -> None:
    reader = Journal.follow(tmp_path)
    assert reader.new_lines() == []
    journal = Journal(tmp_path)
    assert reader.new_lines() == []
    journal.append(VIOLATION | {"kind": "foreign"})
    journal.append(VIOLATION | {"kind": "stale"})
    lines = reader.new_lines()
    assert [(line["seq"], line["kind"]) for line in lines] == [(1, "foreign"), (2, "stale")]
    assert all(VIOLATION.items() <= line.items() for line in lines)
    assert all(line["at_us"] > 1_600_000_000_000_000 for line in lines)
    assert reader.new_lines() == []
    journal.append(VIOLATION)
    assert [line["seq"] for line in reader.new_lines()] == [3]
    journal.close()
    journal = Journal(tmp_path)
    journal.append(VIOLATION)
    assert [line["seq"] for line in reader.new_lines()] == [1]
    journal.close()


def test_half_a_line_is_waited_for_and_a_cut_one_is_anybodys(tmp_path: Path) -> None:
    reader = Journal.follow(tmp_path)
    with (tmp_path / journals.NAME).open("wb", buffering=0) as file:
        file.write(b'{"seq":1,"kin')
        assert reader.new_lines() == []
        file.write(b'd":"stale"}\n{"seq":2,"k{"seq":3}\n[4]\n')
        first, *others = reader.new_lines()
    assert first == {"seq": 1, "kind": "stale"}
    unreadable = {"kind": "unreadable", "client": None, "salt": None, "salt_id": None}
    assert others == [unreadable, unreadable]


def test_the_journal_has_a_bound(tmp_path: Path) -> None:
    journal = Journal(tmp_path, max_bytes=400)
    for _ in range(3):
        journal.append(VIOLATION)
    with pytest.raises(JournalFull, match="bound"):
        journal.append(VIOLATION)
    assert (tmp_path / journals.NAME).stat().st_size <= 400
    assert len(Journal.follow(tmp_path).new_lines()) == 3
    journal.close()
