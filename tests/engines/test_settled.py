"""What "auto" means, for each kind of model and installation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.embedded import cores
from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError
from engines.embedded.facts import facts
from engines.embedded.footprint import memory_bytes
from engines.embedded.quantization import Quantization
from engines.embedded.settled import settled, why_not_native
from engines.kernels import native

AWQ = Quantization("W4A16_AWQ", 64, "FP8", ("lm_head",))
FP8_ONLY = Quantization("", 0, "FP8", ())


@pytest.fixture(params=[True, False], ids=["built", "not built"])
def is_built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(native, "HAS_MODEL", request.param)
    return bool(request.param)


def of(
    quantization: Quantization | None = None, *, has_torch: bool = True, **options: Any
) -> tuple[str, str, str, str]:
    engine = settled(EngineConfig.from_options(options), quantization, has_torch=has_torch)
    return engine.backend, engine.kv_dtype, engine.activations, engine.lm_head


def test_the_native_backend_is_taken_where_it_can_be(is_built: bool) -> None:
    """With pages and products as the checkpoint was made for."""
    native_or_torch = "native" if is_built else "torch"
    fewer = ("int8", "int6") if is_built else ("bfloat16", "bfloat16")
    assert of() == (native_or_torch, "bfloat16", "bfloat16", "bfloat16")
    assert of(AWQ) == (native_or_torch, "fp8_e4m3", *fewer)
    assert of(FP8_ONLY) == (native_or_torch, "fp8_e4m3", "bfloat16", "bfloat16")


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"kv_dtype": "float32"}], ids=str)
def test_what_it_can_t_compute_torch_does(is_built: bool, options: dict[str, Any]) -> None:
    """Unless it was asked for by name."""
    assert of(**options)[0] == "torch"
    with pytest.raises(UnsupportedError, match="option 'backend': "):
        of(backend="native", **options)


@pytest.mark.parametrize(
    "shape", [{"head_dim": 24}, {"intermediate_size": 100}, {"hidden_size": 63}], ids=str
)
def test_a_shape_that_its_kernels_don_t_have_is_computed_by_torch(
    tiny_dir: Path, is_built: bool, shape: dict[str, int]
) -> None:
    """And told in time, not by a kernel."""
    model = replace(ModelConfig.from_folder(tiny_dir), **shape)  # type: ignore[arg-type]
    assert settled(EngineConfig(), None, model, has_torch=True).backend == "torch"
    if is_built:
        with pytest.raises(UnsupportedError, match=next(iter(shape))):
            settled(EngineConfig(backend="native"), None, model)


def test_what_is_chosen_is_kept(is_built: bool) -> None:
    """Whatever auto would have been."""
    assert of(AWQ, backend="torch") == ("torch", "fp8_e4m3", "bfloat16", "bfloat16")
    assert of(AWQ, kv_dtype="bfloat16")[1] == "bfloat16"
    if is_built:
        assert of(AWQ, activations="bfloat16", lm_head="bfloat16")[2:] == ("bfloat16", "bfloat16")
        assert of(lm_head="int8")[3] == "int8"


def test_what_is_missing_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """How to get either backend."""
    monkeypatch.setattr(native, "HAS_MODEL", False)
    with pytest.raises(UnsupportedError, match=r"install a C\+\+ compiler.*; torch isn't"):
        of(has_torch=False)
    with pytest.raises(UnsupportedError, match=r"option 'backend': the native kernels aren't"):
        of(backend="native")
    with pytest.raises(UnsupportedError, match=r"^torch isn't installed.*bulkhead\[torch\]"):
        of(has_torch=False, backend="torch")


def test_torch_has_no_products_of_fewer_bits() -> None:
    """Asked for, they are refused."""
    for name, numbers in (("lm_head", "int8"), ("lm_head", "int6"), ("activations", "int8")):
        asked: dict[str, Any] = {"backend": "torch", name: numbers}
        with pytest.raises(UnsupportedError, match=f"option '{name}' '{numbers}'"):
            of(**asked)


def test_scales_of_pages_need_fp8_pages() -> None:
    """Known once the checkpoint is."""
    assert of(AWQ, kv_scales="checkpoint")[1] == "fp8_e4m3"
    with pytest.raises(UnsupportedError, match="'kv_scales' is for kv_dtype 'fp8_e4m3'"):
        of(kv_scales="checkpoint")


def test_threads_are_as_many_as_there_are_cores_for(
    is_built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's are one unless told: they wait for each other at barriers."""

    def threads(**options: Any) -> int:
        return settled(EngineConfig.from_options(options), None, has_torch=True).threads

    monkeypatch.setattr(cores, "usable_cores", lambda: 3)
    assert threads(backend="torch") == 1
    assert threads() == (3 if is_built else 1)
    for backend in ("torch", "native") if is_built else ("torch",):
        assert threads(backend=backend, threads=2) == 2
        assert threads(backend=backend, threads=8) == 3
    with pytest.raises(UnsupportedError, match="'threads' is too small"):
        threads(threads=-1)


def test_an_engine_tells_why_it_isn_t_native(is_built: bool) -> None:
    """Once, in its log."""

    def told(**options: Any) -> str:
        engine = settled(EngineConfig.from_options(options), None, has_torch=True)
        return why_not_native(engine, None).get("not_native", "")

    if is_built:
        assert told() == ""
        assert told(backend="torch") == "by option 'backend'"
        assert "'dtype' is 'float32'" in told(dtype="float32")
    else:
        assert "aren't built" in told()


def test_a_machine_that_computes_nothing_still_tells_of_an_engine(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway's: its hosts may run elsewhere. Only what computes there isn't known."""
    options = {"kv_memory_bytes": 1 << 20}
    here = facts(str(tiny_dir), options)
    monkeypatch.setattr(native, "HAS_MODEL", False)
    monkeypatch.setattr("engines.embedded.settled.find_spec", lambda name: None)
    assert facts(str(tiny_dir), options) == replace(here, backend="")
    assert here.backend in ("native", "torch")
    assert memory_bytes(str(tiny_dir), options) > 1 << 20
