"""Packed weights: found again, made anew when the model changes, never served damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from engines.embedded import native_backend, packed
from engines.embedded.checkpoint import sources
from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError
from engines.embedded.native_backend import weights_of
from engines.embedded.packed import Packed, Writer
from engines.embedded.packing import layout
from engines.kernels import native
from tests.engines.helpers import needs_native
from tests.engines.native.tiny_models import tiny_model

pytestmark = needs_native


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tiny_model(tmp_path / "model", "llama")


def pack(folder: Path, **options: Any) -> tuple[Packed, list[str]]:
    """The packed weights, and what was logged of making them."""
    engine = replace(EngineConfig(backend="native", lm_head="bfloat16"), **options)
    with capture_logs() as logs:
        found = weights_of(folder, ModelConfig.from_folder(folder), engine)
    return found, [entry["event"] for entry in logs]


def same(left: Packed, right: Packed) -> bool:
    names = left.header.arrays.keys()
    return names == right.header.arrays.keys() and all(
        np.array_equal(left.array(name), right.array(name)) for name in names
    )


def change_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_weights_are_packed_once(folder: Path) -> None:
    """The next start maps what lies there, and hashes nothing."""
    first, told = pack(folder)
    assert told == ["packing_weights"]
    second, told = pack(folder)
    assert told == []
    assert same(first, second)
    assert not second.content.flags.writeable
    assert [file.name for file in folder.glob("*packed*")] == ["native-bfloat16.packed"]


def test_a_start_that_finds_them_reads_no_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint's digest is the one written down."""
    first, _ = pack(folder)
    monkeypatch.setattr(native_backend, "revision", lambda folder: pytest.fail("hashed"))
    assert pack(folder)[0].header.revision == first.header.revision


def test_heads_of_two_kinds_lie_side_by_side(folder: Path) -> None:
    """Two settings of one model don't take turns in packing."""
    for head in ("int8", "bfloat16", "int8", "bfloat16"):
        _, told = pack(folder, lm_head=head)
    assert told == []
    assert len(list(folder.glob("*.packed"))) == 2


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_changed_model_is_packed_anew(folder: Path, file: str) -> None:
    """Its weights, or what is computed with them, whatever its size and however soon."""
    first, _ = pack(folder)
    if file == "config.json":
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace("10000.0", "20000.0"))
    else:
        change_weights(folder)
    second, told = pack(folder)
    assert told == ["packing_weights"]
    assert second.header.revision != first.header.revision
    assert not same(first, second)


def test_other_weights_that_look_the_same_from_outside_are_packed_anew(folder: Path) -> None:
    """An archive sets the same time on each release's file, which may get the old one's inode."""
    first, _ = pack(folder)
    was = (folder / "model.safetensors").stat()
    change_weights(folder)
    os.utime(folder / "model.safetensors", ns=(was.st_atime_ns, was.st_mtime_ns))
    second, told = pack(folder)
    assert told == ["packing_weights"]
    assert second.header.revision != first.header.revision


def test_a_model_that_was_only_touched_or_copied_is_not_packed_anew(folder: Path) -> None:
    """Its content is looked at once, and its new stamps are written down."""
    first, _ = pack(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert pack(folder)[1] == []
    copied = folder.with_name("copied")
    shutil.copytree(folder, copied)
    found, told = pack(copied)
    assert told == []
    assert same(found, first)
    assert found.header.sources == packed.stamps(
        [copied / "config.json", copied / "model.safetensors"]
    )


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut off": lambda content: content[:-1],
    "half": lambda content: content[: len(content) // 2],
    "longer": lambda content: content + b"x",
    "without its beginning": lambda content: content[4096:],
    "header": lambda content: content[:-200] + bytes([content[-200] ^ 1]) + content[-199:],
    "digest": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "another file": lambda content: b"x" * len(content),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_made_anew(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    """And what comes of it is what was there before."""
    first, _ = pack(folder)
    kept = {name: first.array(name).copy() for name in first.header.arrays}
    path = folder / "native-bfloat16.packed"
    content = damage(path.read_bytes())
    path.unlink()  # the old one is mapped still
    path.write_bytes(content)
    again, told = pack(folder)
    assert told == ["packing_weights"]
    assert all(np.array_equal(again.array(name), array) for name, array in kept.items())


def test_a_file_of_another_layout_is_made_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an older release packed."""
    with monkeypatch.context() as patch:
        patch.setattr(native_backend, "layout", lambda: "older")
        pack(folder)
    assert pack(folder)[1] == ["packing_weights"]


def test_kernels_that_pack_otherwise_have_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody need remember to say so."""
    assert layout() == layout()
    before, pack_int4 = layout(), native.module.pack_int4
    swapped = SimpleNamespace(
        pack_bf16=native.module.pack_bf16,
        pack_int8=native.module.pack_int8,
        pack_int6=native.module.pack_int6,
        pack_int4=lambda nibbles, scales: pack_int4(nibbles, scales)[::-1].copy(),
    )
    monkeypatch.setattr(native, "module", swapped)
    assert layout() != before


def test_where_nothing_can_be_written_they_lie_in_memory(folder: Path) -> None:
    """Said once, with where they should have gone."""
    kept, _ = pack(folder)
    with capture_logs() as logs:
        model = ModelConfig.from_folder(folder)
        place = folder / "config.json" / "no folder"  # nobody writes there, root included
        engine = EngineConfig(backend="native", lm_head="bfloat16", packed_folder=str(place))
        found = weights_of(folder, model, engine)
    assert [entry["event"] for entry in logs] == ["packing_weights", "packed_in_memory"]
    assert str(place) in logs[1]["path"]
    assert same(found, kept)


def test_a_copy_where_nothing_can_be_written_is_mapped_as_it_is(tmp_path: Path) -> None:
    """As in a container's image: not copied into each host's own memory."""
    (folder := tmp_path / ("m" * 210)).mkdir()
    tiny_model(folder, "llama")
    pack(folder)
    place = native_backend._place(
        folder, EngineConfig(packed_folder=str(tmp_path), lm_head="bfloat16")
    )
    assert len(place.name) < 255 < len(place.name) + 10, "an unfinished one has too long a name"
    shutil.copy(folder / "native-bfloat16.packed", place)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    found, told = pack(folder, packed_folder=str(tmp_path))
    assert told == []
    assert any(str(place) in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert found.header.sources != packed.stamps(sources(folder))


def test_they_can_be_kept_elsewhere(folder: Path, tmp_path: Path) -> None:
    """A model's folder may be one that nobody writes to; models of one name don't meet."""
    cache = tmp_path / "cache"
    cache.mkdir()
    twin = tmp_path / "other" / "model"
    shutil.copytree(folder, twin)
    for place in (folder, twin, folder):
        _, told = pack(place, packed_folder=str(cache))
    assert told == []
    assert len(list(cache.iterdir())) == 2
    assert not list(folder.glob("*.packed"))


def test_weights_that_change_while_they_are_packed_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture of two models would be served under one's name."""

    def changed(writer: Writer, *args: object) -> None:
        writer.add("embedding", np.zeros(4))
        change_weights(folder)

    monkeypatch.setattr(native_backend, "pack", changed)
    with pytest.raises(UnsupportedError, match="changed while they were read"):
        pack(folder)
    assert not list(folder.glob("*packed*"))


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    """At the next start already: later ones find the weights, and would never look for it."""
    path = tmp_path / "model [4 bits].packed"
    (tmp_path / f".{path.name}.dead").write_bytes(b"half")
    packed.write(path, "1", "r", [], lambda writer: writer.add("a", np.zeros(4)))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_two_writers_leave_each_other_alone(tmp_path: Path) -> None:
    """One that still writes isn't taken for a dead one; whoever is last stays."""
    path = tmp_path / "weights"

    def fill(writer: Writer) -> None:
        packed.write(path, "1", "inner", [], lambda other: other.add("a", np.zeros(4)))
        writer.add("a", np.ones(4))

    assert packed.write(path, "1", "outer", [], fill).header.revision == "outer"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


KILLED = """
import os, sys
from pathlib import Path
from engines.embedded import packed
from engines.embedded.packed import Writer
import numpy as np
def fill(writer):
    writer.add("a", np.zeros(1 << 20))
    os.kill(os.getpid(), 9)
packed.write(Path(sys.argv[1]), "1", "r", [], fill)
"""


def test_a_writer_that_is_killed_leaves_nothing_to_read(tmp_path: Path) -> None:
    """The name appears with the whole file or not at all."""
    path = tmp_path / "weights"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert done.returncode == -9
    assert not path.exists()
