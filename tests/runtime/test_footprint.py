"""What hosts take, and what never fits: told before anything starts where the budget is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.embedded.footprint import OVERHEAD_BYTES
from runtime.config.footprint import host_bytes, memory_faults, misfits
from runtime.config.models import ModelSettings
from runtime.node.machine import memory_for_hosts, resident_bytes
from runtime.settings import ConfigError, parse

GIB = 1 << 30


def model(id: str = "m", **changes: Any) -> ModelSettings:
    return ModelSettings(**({"id": id, "engine": "fake"} | changes))


def weights(folder: Path, size: int) -> str:
    (folder / "model.safetensors").write_bytes(b"")
    os.truncate(folder / "model.safetensors", size)
    return str(folder)


def test_the_embedded_engine_takes_its_weights_its_pages_and_an_overhead(tmp_path: Path) -> None:
    """Weights count as they are read, and as they are computed with, which may be wider."""
    path = weights(tmp_path, 1000)
    for dtype, size in (("bfloat16", 2000), ("float32", 3000)):
        options = {"kv_memory_bytes": 500, "dtype": dtype, "backend": "torch"}
        given = model(engine="embedded", path=path, options=options)
        assert host_bytes(given, path) == size + 500 + OVERHEAD_BYTES["torch"]


def test_in_the_native_backend_weights_are_mapped_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed in a file that hosts share; and nothing of torch is there."""
    monkeypatch.setattr("engines.kernels.native.HAS_MODEL", True)
    path = weights(tmp_path, 1000)
    given = model(engine="embedded", path=path, options={"kv_memory_bytes": 500})
    assert host_bytes(given, path) == 1300 + 500 + OVERHEAD_BYTES["native"]


def test_weights_that_are_not_there_yet_count_nothing(tmp_path: Path) -> None:
    given = model(engine="embedded", source="smollm2-135m-instruct", options={"backend": "torch"})
    assert host_bytes(given, str(tmp_path / "none")) == GIB + OVERHEAD_BYTES["torch"]


def test_what_the_operator_says_wins(tmp_path: Path) -> None:
    path = weights(tmp_path, 1000)
    assert host_bytes(model(engine="embedded", path=path, memory_bytes=7), path) == 7


def test_the_fake_engine_takes_what_it_holds() -> None:
    light, heavy = model(), model(options={"held_bytes": 100 << 20})
    assert host_bytes(heavy, "") - host_bytes(light, "") == 100 << 20


def test_an_estimate_loads_no_torch() -> None:
    code = (
        "import sys; from engines.registry import memory_bytes; memory_bytes('embedded', '', {});"
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("kept", "size", "keys"),
    [
        ((0, 0), (10, 10), []),
        ((0, 0), (11, 10), ["memory_bytes"]),
        ((1, 0), (5, 5), []),
        ((1, 0), (6, 5), ["memory_bytes"]),  # of the second: the first keeps 6 of 10
        ((2, 0), (6, 1), ["min_hosts", "memory_bytes"]),
        ((1, 1), (5, 6), ["min_hosts", "min_hosts"]),
    ],
)
def test_what_can_never_run_is_told(
    kept: tuple[int, int], size: tuple[int, int], keys: list[str]
) -> None:
    """A model fits if one host, and those it keeps, fit beside what all others keep."""
    models = [model(f"m{i}", min_hosts=n, max_hosts=4) for i, n in enumerate(kept)]
    found = list(misfits(models, size, 10))
    assert [key for _, key, _ in found] == keys
    assert all("10" in reason for _, _, reason in found)


def test_a_config_names_the_place_and_counts_only_engines_of_ours() -> None:
    models = [
        None,
        model("there", engine="openai", url="http://127.0.0.1:1/v1"),
        model("big", memory_bytes=2 * GIB),
        model("small", memory_bytes=GIB),
    ]
    assert list(memory_faults(models, 0)) == []
    ((path, reason),) = memory_faults(models, GIB)
    assert path == "models[2].memory_bytes"
    assert str(2 * GIB) in reason


def test_a_config_that_promises_too_much_is_refused_with_its_path() -> None:
    text = "[hosts]\nmemory_bytes = 100\n" + "".join(
        f'[[models]]\nid = "{id}"\nengine = "fake"\nmemory_bytes = {size}\n'
        for id, size in (("small", 100), ("big", 101))
    )
    with pytest.raises(ConfigError) as told:
        parse(text, "x.toml")
    (fault,) = told.value.report.errors
    assert fault.path == "models[1].memory_bytes"
    assert "a host of 101 bytes can't fit a memory budget of 100" in str(fault)


def test_the_machine_has_memory_and_keeps_some_for_itself() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < memory_for_hosts() < total


def test_a_process_holds_what_it_fills() -> None:
    code = "import sys; x = b'1' * (64 << 20); print('ok', flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:  # type: ignore[call-overload]
        child.stdout.readline()
        assert 64 << 20 < resident_bytes(child.pid) < 256 << 20
        child.stdin.close()
    assert resident_bytes(child.pid) == 0
