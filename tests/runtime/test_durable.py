"""Files replaced whole: what is there before a failure is there after it, and the file is named."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway import address
from gateway.address import Address
from gateway.processes import local_ca
from gateway.usage import files as usage_files
from runtime import durable, keyring, state
from runtime.deploy.running import Sign


@contextmanager
def no_space() -> Iterator[None]:
    """No file may grow: writes fail as on a full disk, and name no file either."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.replace(path, b"one")
    with no_space(), pytest.raises(OSError, match="too large") as told:
        durable.replace(path, b"two")
    assert told.value.filename == str(path)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_a_file_s_place_is_named_and_not_the_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises(IsADirectoryError) as told:
        durable.replace(path, b"one")
    assert (told.value.filename, told.value.filename2) == (str(path), None)
    assert list(tmp_path.iterdir()) == [path]


def test_every_writer_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / "state"
    state.prepare(folder)
    writers: dict[str, Callable[[], object]] = {
        "root-secret": lambda: keyring.write_once(folder / "root-secret", "text"),
        "node.lock": lambda: state.own(folder, "node"),
        f"runs-node-{os.getpid()}": lambda: Sign(folder, "node", dev=False),
        "gateway.json": lambda: address.publish(folder, "gateway", Address(url="http://h")),
        "report.csv": lambda: usage_files.write_whole(folder / "report.csv", [b"text"]),
        "ca.pem": lambda: local_ca._write(folder / "ca.pem", b"text"),
    }
    for name, write in writers.items():
        with no_space(), pytest.raises(OSError, match="too large") as told:
            write()
        assert Path(told.value.filename).name == name


def test_a_fault_that_names_a_file_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as told, durable.naming(tmp_path / "other"):
        (tmp_path / "missing").read_bytes()
    assert told.value.filename == str(tmp_path / "missing")
