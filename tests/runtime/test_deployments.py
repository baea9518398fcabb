"""Deployments: numbers that never change their text, one current, and what is left of a crash."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runtime import deployments as module, durable
from runtime.deployments import BadPointer, Deployments, NoDeployment, Origin

HERE = Origin(config_path="/etc/bulkhead.toml")


@pytest.fixture
def book(tmp_path: Path) -> Deployments:
    return Deployments(tmp_path)


def add(book: Deployments, text: str, origin: Origin = HERE, message: str = "") -> tuple[int, int]:
    with book.writing():
        current = book.add(text, origin, by="a test", message=message)
    return current.number, current.change


def test_nothing_is_there_before_the_first(book: Deployments) -> None:
    assert book.current() is None
    assert book.history() == []
    with pytest.raises(NoDeployment, match="there is no deployment 1 in "):
        book.read(1)
    with pytest.raises(NoDeployment, match="there is no deployment 1 in "):
        book.text(1)
    with pytest.raises(NoDeployment, match="nothing was deployed"):
        book.renew()


def test_a_text_is_kept_to_the_byte_beside_its_record(book: Deployments, tmp_path: Path) -> None:
    text = 'name = "größe"\r\n# no newline at the end'
    origin = Origin(config_path="/etc/b.toml", env="staging", variables=("A:b",))
    assert add(book, text, origin, "first") == (1, 1)
    assert book.text(1) == text
    assert (tmp_path / "deployments" / "0001.toml").read_bytes() == text.encode()
    record = book.read(1)
    assert (record.number, record.origin, record.message, record.by) == (
        1,
        origin,
        "first",
        "a test",
    )
    assert record.at.utcoffset() is not None


def test_files_are_private(book: Deployments, tmp_path: Path) -> None:
    """The state folder too, if this is the first to need it."""
    add(book, "a")
    add(Deployments(tmp_path / "new" / "state"), "a")
    assert (tmp_path / "new" / "state").stat().st_mode & 0o077 == 0
    assert (tmp_path / "deployments").stat().st_mode & 0o077 == 0
    for path in (tmp_path / "deployments").iterdir():
        assert path.name == "lock" or path.stat().st_mode & 0o077 == 0, path


def test_an_unchanged_text_gets_no_number_but_is_told_again(book: Deployments) -> None:
    assert add(book, "a") == (1, 1)
    assert add(book, "a", message="again") == (1, 2)
    assert add(book, "b") == (2, 3)
    assert add(book, "a") == (3, 4), "as before the last one, but not as the last one"
    assert [record.message for record in book.history()] == ["", "", ""]


@pytest.mark.parametrize(
    "origin",
    [
        Origin(config_path="/elsewhere/bulkhead.toml"),
        Origin(config_path="/etc/bulkhead.toml", env="staging"),
        Origin(config_path="/etc/bulkhead.toml", variables=("A:b",)),
    ],
)
def test_the_same_text_read_otherwise_is_another_deployment(
    book: Deployments, origin: Origin
) -> None:
    assert add(book, "a") == (1, 1)
    assert add(book, "a", origin) == (2, 2)


def test_renewing_tells_everybody_to_look_again(book: Deployments) -> None:
    add(book, "a")
    assert (book.renew().number, book.renew().change) == (1, 3)


def restore(book: Deployments, number: int | None = None) -> tuple[int, str]:
    """A rollback; the new number, and the text that is current now."""
    with book.writing():
        current = book.current()
        assert current
        target = book.read(number) if number else book.before(book.read(current.number))
        restored = book.restore(target, by="a test")
    return restored.number, book.text(restored.number)


def test_a_rollback_goes_one_step_further_back_each_time(book: Deployments) -> None:
    for text in "abc":
        add(book, text)
    assert restore(book) == (4, "b")
    assert restore(book) == (5, "a")
    with pytest.raises(NoDeployment, match="no deployment before 1 is kept"):
        restore(book)
    assert restore(book, 3) == (6, "c"), "and forth"
    assert restore(book) == (7, "b")
    assert [record.restores for record in book.history()] == [2, 3, 1, 2, 0, 0, 0]


def test_what_a_rollback_brought_back_counts_as_the_one_before(book: Deployments) -> None:
    """And what it took away doesn't come back by itself."""
    add(book, "good")
    add(book, "bad")
    assert restore(book) == (3, "good")
    add(book, "worse")
    assert restore(book) == (5, "good")
    with pytest.raises(NoDeployment):
        restore(book)


def test_only_the_last_hundred_are_kept(
    book: Deployments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    for i in range(7):
        add(book, f"text {i}")
    assert [record.number for record in book.history()] == [7, 6, 5]
    assert not (tmp_path / "deployments" / "0004.toml").exists()
    assert add(book, "next") == (8, 8)


def test_a_number_of_five_digits_is_sorted_as_one(book: Deployments, tmp_path: Path) -> None:
    add(book, "a")
    for kind in ("json", "toml"):
        (tmp_path / "deployments" / f"0001.{kind}").rename(
            tmp_path / "deployments" / f"9999.{kind}"
        )
    (tmp_path / "deployments" / "current").write_text('{"number":9999,"change":1}')
    assert add(book, "b") == (10000, 2)
    assert add(book, "c") == (10001, 3)
    assert book.history()[0].number == 10001


def test_what_a_crash_left_half_written_is_not_a_deployment(
    book: Deployments, tmp_path: Path
) -> None:
    """The record comes after the text, and the pointer after both."""
    add(book, "a")
    (tmp_path / "deployments" / "0002.toml").write_text("half")
    (tmp_path / "deployments" / ".0002.json.77").write_text("{")
    assert [record.number for record in book.history()] == [1]
    assert add(book, "b") == (2, 2)
    assert book.text(2) == "b"


def test_a_pointer_that_can_t_be_read_is_told(book: Deployments, tmp_path: Path) -> None:
    add(book, "a")
    (tmp_path / "deployments" / "current").write_text("7\n")
    told = "current can't be read: .*; `bulkhead deploy` makes .*, or `bulkhead rollback 1`"
    with pytest.raises(BadPointer, match=told):
        book.current()


@pytest.mark.parametrize("number", [0, -1, 99, 10**200])
def test_a_pointer_to_what_is_not_there_is_told_too(
    book: Deployments, tmp_path: Path, number: int
) -> None:
    add(book, "a")
    (tmp_path / "deployments" / "current").write_text(f'{{"number":{number},"change":9}}')
    with pytest.raises(BadPointer, match=r"deploy` makes .*, or `bulkhead rollback 1`"):
        book.current()
    assert add(book, "a")[0] == 2


def test_a_folder_in_the_pointer_s_place_is_told_and_nothing_is_kept(
    book: Deployments, tmp_path: Path
) -> None:
    add(book, "a")
    pointer = tmp_path / "deployments" / "current"
    pointer.unlink()
    pointer.mkdir()
    for ask in (book.current, lambda: add(book, "b")):
        with pytest.raises(BadPointer, match=r"current .*; remove that folder; then `bulkhead dep"):
            ask()
    assert book.numbers() == [1]
    pointer.rmdir()
    assert add(book, "b") == (2, 1)


@pytest.mark.parametrize("failing", ["0002.toml", "0002.json", "current"])
def test_a_deployment_that_could_not_be_written_is_none(
    book: Deployments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A disk that is full by then. The one before stays current, and its number isn't lost."""
    add(book, "a")
    replace = durable.replace

    def full(path: Path, data: bytes) -> None:
        if path.name == failing:
            raise OSError(28, "No space left on device", str(path))
        replace(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "replace", full)
        with pytest.raises(OSError, match="No space"):
            add(book, "b")
    assert book.numbers() == [1]
    assert not list((tmp_path / "deployments").glob("0002*"))
    assert add(book, "b") == (2, 2)


def test_a_folder_in_a_deployment_s_place_is_a_fault_of_that_one(
    book: Deployments, tmp_path: Path
) -> None:
    add(book, "a")
    for kind, ask in (("toml", book.text), ("json", book.read)):
        path = tmp_path / "deployments" / f"0001.{kind}"
        path.unlink()
        path.mkdir()
        with pytest.raises(NoDeployment, match=rf"0001\.{kind} can't be read: Is a directory"):
            ask(1)
    assert add(book, "a") == (2, 2)


def test_and_the_next_deployment_mends_it(book: Deployments, tmp_path: Path) -> None:
    """Its change is beyond all before it, so everybody looks."""
    for text in "aba":
        add(book, text)
    (tmp_path / "deployments" / "current").write_bytes(b"\0\xff")
    number, change = add(book, "a")
    assert number == 4
    assert change > 1_000_000
    assert add(book, "c") == (5, change + 1)


def test_a_record_that_can_t_be_read_is_left_out_and_followed(
    book: Deployments, tmp_path: Path
) -> None:
    for text in "ab":
        add(book, text)
    (tmp_path / "deployments" / "0002.json").write_bytes(b"\xff{")
    assert [record.number for record in book.history()] == [1]
    assert add(book, "b") == (3, 3), "not the same as what can't be told"
    (tmp_path / "deployments" / "0003.toml").write_bytes(b"\xff")
    with pytest.raises(NoDeployment, match=r"0003\.toml can't be read"):
        book.text(3)
    assert add(book, "b") == (4, 4)


def test_two_deployers_take_turns(book: Deployments, tmp_path: Path) -> None:
    """No number is given twice, whoever asks: threads here, processes below."""

    def deploy(name: str) -> None:
        mine = Deployments(tmp_path)
        for i in range(10):
            with mine.writing():
                mine.add(f"{name} {i}", HERE, by=name)

    threads = [threading.Thread(target=deploy, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    current = book.current()
    assert current
    assert (current.number, current.change) == (30, 30)
    assert len({book.text(record.number) for record in book.history()}) == 30


def test_the_lock_holds_between_processes(book: Deployments, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from runtime.deployments import *\n"
        "book = Deployments(Path(sys.argv[1])); print('ready', flush=True)\n"
        "with book.writing(): book.add('theirs', Origin(), by='another process')\n"
    )
    with book.writing():
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert other.stdout
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.3)
        book.add("ours", HERE, by="a test")
    assert other.wait(20) == 0
    other.stdout.close()
    assert [book.text(record.number) for record in book.history()] == ["theirs", "ours"]
