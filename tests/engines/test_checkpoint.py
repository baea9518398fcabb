"""Reading a checkpoint without torch: what is found, what is refused, and 4-bit weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engines.embedded.checkpoint import Checkpoint, Tensor
from engines.embedded.config import UnsupportedError
from engines.embedded.int4 import Int4
from engines.embedded.numbers import bf16_to_float32, float32_to_bf16
from engines.embedded.quantization import Quantization

AWQ = {
    "producer": {"name": "modelopt", "version": "0.47.0"},
    "quantization": {
        "quant_algo": "W4A16_AWQ",
        "kv_cache_quant_algo": "FP8",
        "group_size": 64,
        "has_zero_point": False,
        "pre_quant_scale": True,
        "exclude_modules": ["lm_head", "model.embed_tokens"],
    },
}
ODD = [0.0, -0.0, 1.0, -1.0, 3.0e38, 1e-40, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875]


def save(folder: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder


def int4_folder(folder: Path, told: Any = AWQ) -> tuple[Path, np.ndarray[Any, Any]]:
    """A folder with one matrix in 4 bits, and its numbers."""
    generator = np.random.default_rng(3)
    values = generator.integers(-8, 8, (6, 128))
    scales = generator.random((6, 2), np.float32)
    packed = (values[0::2] & 15) | (values[1::2] & 15) << 4
    save(
        folder,
        **{
            "a.weight": torch.from_numpy(packed.astype(np.uint8)),
            "a.weight_scale": torch.from_numpy(scales),
            "a.pre_quant_scale": torch.linspace(0.5, 2, 128).bfloat16(),
        },
    )
    (folder / "hf_quant_config.json").write_text(json.dumps(told))
    return folder, values * scales.repeat(64, axis=1)


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    """Ties to even, infinities, NaN, numbers that overflow, subnormals."""
    values = np.array(ODD, np.float32)
    random = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    for numbers in (values, random):
        expected = torch.from_numpy(numbers).bfloat16()
        bits = float32_to_bf16(numbers)
        np.testing.assert_array_equal(bf16_to_float32(bits), expected.float().numpy())
    nan = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(bf16_to_float32(float32_to_bf16(nan))).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_are_those_that_were_saved(tmp_path: Path, dtype: torch.dtype) -> None:
    """In each dtype, as float32 and as bfloat16."""
    saved = torch.randn(5, 7).to(dtype)
    found = Checkpoint(save(tmp_path, x=saved)).tensor("x", (5, 7))
    np.testing.assert_array_equal(found.float32, saved.float().numpy())
    np.testing.assert_array_equal(found.bf16, saved.bfloat16().view(torch.uint16).numpy())


def test_tensors_are_found_over_all_files(tmp_path: Path) -> None:
    """A large checkpoint lies in several."""
    for name in "ab":
        save_file({name: torch.ones(2)}, tmp_path / f"{name}.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert "a" in checkpoint
    assert "b" in checkpoint


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("gone", (2, 3), "no tensor 'gone'"),
        ("x", (3, 2), r"'x' is \(2, 3\) instead of \(3, 2\)"),
        ("i", (2,), "'i' is I8, not BF16 or F16 or F32"),
    ],
)
def test_what_is_missing_or_misshapen_is_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], words: str
) -> None:
    """By name."""
    save(tmp_path, x=torch.ones(2, 3), i=torch.ones(2, dtype=torch.int8))
    with pytest.raises(UnsupportedError, match=words):
        Checkpoint(tmp_path).tensor(name, shape)


@pytest.mark.parametrize("kept", [0, 4, 20, 60, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    """Wherever it ends."""
    path = save(tmp_path, x=torch.ones(40)) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UnsupportedError, match=r"cannot read the weights in .*model\.safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 7]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [200], "data_offsets": [0, 800]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 8]},
        {"shape": [2], "data_offsets": [0, 8]},
        7,
    ],
    ids=str,
)
def test_a_header_that_lies_is_refused(tmp_path: Path, entry: Any) -> None:
    """No tensor reaches past its file."""
    header = json.dumps({"x": entry}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UnsupportedError, match="cannot read the weights"):
        Checkpoint(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    """Before anything is read."""
    with pytest.raises(UnsupportedError, match=r"no \.safetensors"):
        Checkpoint(tmp_path)


def test_weights_in_4_bits_are_what_they_stand_for(tmp_path: Path) -> None:
    """Nibbles in two's complement, a scale a group, and the factors of the layer's input."""
    folder, expected = int4_folder(tmp_path)
    found = Checkpoint(folder).matrix("a", 6, 128)
    assert isinstance(found, Int4)
    assert found.group == 64
    np.testing.assert_allclose(found.float32(), expected, rtol=1e-6)
    assert found.factors is not None
    assert found.factors[0] == 0.5
    assert Checkpoint(folder).quantization == Quantization(
        "W4A16_AWQ", 64, "FP8", ("lm_head", "model.embed_tokens"), True
    )


def test_a_matrix_that_is_not_quantized_stays_as_it_is(tmp_path: Path) -> None:
    """An artefact keeps its embeddings, and what its author left out."""
    int4_folder(tmp_path)
    save_file({"b.weight": torch.ones(2, 3)}, tmp_path / "more.safetensors")
    assert isinstance(Checkpoint(tmp_path).matrix("b", 2, 3), Tensor)


def test_packed_weights_that_nothing_explains_are_refused(tmp_path: Path) -> None:
    """Four bits can be laid out in many ways."""
    folder, _ = int4_folder(tmp_path)
    (folder / "hf_quant_config.json").unlink()
    with pytest.raises(UnsupportedError, match=r"no hf_quant_config\.json"):
        Checkpoint(folder).matrix("a", 6, 128)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quant_algo": "NVFP4"}, "quant_algo 'NVFP4'"),
        ({"group_size": 32}, "group_size 32"),
        ({"kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo"),
        ({"has_zero_point": True}, "zero point"),
        ({"group_size": "x"}, "malformed"),
    ],
)
def test_another_kind_of_quantization_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """With what was found."""
    told = {"quantization": AWQ["quantization"] | change}  # type: ignore[operator]
    folder, _ = int4_folder(tmp_path, told)
    with pytest.raises(UnsupportedError, match=words):
        Checkpoint(folder)


def test_positive_numbers_are_just_that(tmp_path: Path) -> None:
    """Scales of KV pages, say."""
    save(tmp_path, a=torch.tensor(0.5), b=torch.tensor(-1.0), c=torch.ones(2))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.positive_numbers(["a"]) == (0.5,)
    for name in "bc":
        with pytest.raises(UnsupportedError, match="not one positive number"):
            checkpoint.positive_numbers([name])


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    """Which of them is meant nobody knows."""
    save(tmp_path, a=torch.ones(2))
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(UnsupportedError, match=r"'a' is in .*other.safetensors and in another"):
        Checkpoint(tmp_path)


def test_factors_that_were_promised_are_needed(tmp_path: Path) -> None:
    """Without them the answers would be others: no norm stands before these two."""
    for name in ("o_proj", "down_proj", "up_proj"):
        save(
            tmp_path,
            **{
                f"m.{name}.weight": torch.zeros(3, 64, dtype=torch.uint8),
                f"m.{name}.weight_scale": torch.ones(6, 1),
            },
        )
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(AWQ))
        if name == "up_proj":
            assert isinstance(Checkpoint(tmp_path).matrix(f"m.{name}", 6, 64), Int4)
        else:
            with pytest.raises(UnsupportedError, match=f"no tensor 'm.{name}.pre_quant_scale'"):
                Checkpoint(tmp_path).matrix(f"m.{name}", 6, 64)


def test_a_header_of_any_kind_is_refused_as_such(tmp_path: Path) -> None:
    """Not with a traceback."""
    for header in (b'"text"', b"[" * 9000):
        content = len(header).to_bytes(8, "little") + header + bytes(8)
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(UnsupportedError, match="cannot read the weights"):
            Checkpoint(tmp_path)
