"""The root secret and what is derived from it."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runtime.keyring import BadRootSecret, Keyring, load, write_once

ROOT = bytes(range(32))


def test_a_label_is_a_key_and_each_label_another() -> None:
    ring = Keyring(ROOT)
    labels = ["capability", "cache-salt", "key-pepper", "domain", "", "capabilit", "capability "]
    found = {ring.derive(label) for label in labels}
    assert len(found) == len(labels)
    assert Keyring(ROOT).derive("domain") == ring.derive("domain")
    assert Keyring(ROOT[::-1]).derive("domain") != ring.derive("domain")
    assert len(ring.derive("domain", 64)) == 64
    assert ROOT not in found


def test_the_derivation_never_changes() -> None:
    """Keys, salts and domains of a running installation hang on these bytes."""
    assert Keyring(ROOT).derive("domain").hex() == (
        "752db5eef4ba7ae49fc7e799f9c26231e5d6e3bcc826a32507efab8974c383b6"
    )


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_a_root_secret_of_a_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(BadRootSecret, match=f"found {size}"):
        Keyring(bytes(size))


@pytest.mark.parametrize("text", ["zz" * 32, "00" * 31, "0", "00" * 33, "é" * 64])
def test_a_bad_root_secret_is_told_without_its_text(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadRootSecret) as told:
        load(tmp_path, text)
    assert text not in str(told.value)
    (tmp_path / "root-secret").write_text(text, "utf-8")
    with pytest.raises(BadRootSecret):
        load(tmp_path)


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = load(state).derive("x")
    assert load(state).derive("x") == first
    path = state / "root-secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(path.read_text().strip())) == 32
    assert list(state.iterdir()) == [path], "no draft stays behind"


def test_the_environment_wins_and_leaves_no_file(tmp_path: Path) -> None:
    assert load(tmp_path, ROOT.hex()).derive("x") == Keyring(ROOT).derive("x")
    assert list(tmp_path.iterdir()) == []


def test_a_keyring_s_repr_holds_no_secret() -> None:
    assert ROOT.hex()[:8] not in repr(Keyring(ROOT))
    assert repr(Keyring(ROOT)) == "Keyring(…)"


def test_of_many_threads_one_writes_and_all_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    barrier = threading.Barrier(8)
    found: list[str] = []

    def write(i: int) -> None:
        barrier.wait()
        found.append(write_once(path, f"text of thread {i} " + "x" * 10_000))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert path.read_text().strip() == found[0].strip()
    assert list(tmp_path.iterdir()) == [path]


def test_of_many_processes_one_makes_the_secret(tmp_path: Path) -> None:
    """Eight first starts at once: one root secret, whole, 0600."""
    code = (
        "import sys; from pathlib import Path; from runtime.keyring import load;"
        "sys.stdin.read(); print(load(Path(sys.argv[1])).derive('x').hex())"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "state")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for process in processes:  # they all wait here, imports done
        assert process.stdin
        process.stdin.close()
        process.stdin = None
    keys = {process.communicate(timeout=30)[0] for process in processes}
    assert len(keys) == 1
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["root-secret"]
    assert stat.S_IMODE((tmp_path / "state" / "root-secret").stat().st_mode) == 0o600


def test_a_file_that_stands_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("first\n")
    assert write_once(path, "second") == "first"
    assert path.read_text() == "first\n"
