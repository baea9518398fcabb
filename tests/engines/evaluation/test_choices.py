"""Which weights and pages are compared, with which options."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError, page_bytes
from engines.embedded.evaluation.choices import choices, max_text
from engines.embedded.evaluation.evaluate import evaluate

QUANTIZED = {"quant_algo": "W4A16_AWQ", "group_size": 64, "has_zero_point": False}


def copy_of(folder: Path, place: Path, quantization: Any = None, **config: Any) -> Path:
    shutil.copytree(folder, place)
    told = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(told | config))
    if quantization:
        document = json.dumps({"quantization": quantization})
        (place / "hf_quant_config.json").write_text(document)
    return place


def test_the_base_comes_first_whatever_the_order(tiny_dir: Path, tmp_path: Path) -> None:
    """Each kind of weights over both kinds of pages."""
    packed = copy_of(tiny_dir, tmp_path / "packed", QUANTIZED)
    found = choices([packed, tiny_dir], {}, 50)
    assert [choice.name for choice in found] == [
        "bf16 weights, bf16 KV",
        "bf16 weights, fp8 KV",
        "int4 g64 weights, bf16 KV",
        "int4 g64 weights, fp8 KV",
    ]
    assert found[0].folder == tiny_dir


def test_several_of_a_kind_are_told_apart_by_their_folders(tiny_dir: Path, tmp_path: Path) -> None:
    """Two calibrations, say."""
    packed = [copy_of(tiny_dir, tmp_path / name, QUANTIZED) for name in ("a", "b")]
    found = choices([tiny_dir, *packed], {}, 50)
    assert [c.weights for c in found[::2]] == ["bf16", "int4 g64 a", "int4 g64 b"]
    packed.append(copy_of(tiny_dir, tmp_path / "elsewhere" / "b", QUANTIZED))
    names = [c.name for c in choices([tiny_dir, *packed, *packed], {}, 50)]
    assert len(set(names)) == len(names) == 8, "each once, whatever it is called"


def test_without_bf16_weights_there_is_nothing_to_compare_with(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """It says what to do."""
    packed = copy_of(tiny_dir, tmp_path / "packed", QUANTIZED)
    with pytest.raises(UnsupportedError, match="--against"):
        choices([packed], {}, 50)


def test_another_model_s_weights_are_refused(tiny_dir: Path, tmp_path: Path) -> None:
    """Another vocabulary gives it away."""
    other = copy_of(tiny_dir, tmp_path / "other", vocab_size=301)
    with pytest.raises(UnsupportedError, match="another vocabulary"):
        choices([tiny_dir, other], {}, 50)


def test_options_are_the_model_s_own_but_for_what_is_compared(tiny_dir: Path) -> None:
    """Room for the longest text and for eight requests; scales only where they mean something."""
    given = {
        "page_size": 4,
        "kv_dtype": "fp8_e4m3",
        "kv_scales": "checkpoint",
        "max_running": 2,
        "max_batch_tokens": 4,
        "dtype": "float32",
        "public_prompts": ["x"],
        "speculation": 8,
    }
    bf16, fp8 = choices([tiny_dir], given, 200)
    assert EngineConfig.from_options(bf16.options).kv_dtype == "bfloat16"
    assert EngineConfig.from_options(fp8.options).kv_scales == "checkpoint"
    for choice in (bf16, fp8):
        engine = EngineConfig.from_options(choice.options)
        assert (engine.page_size, engine.dtype, engine.max_running) == (4, "bfloat16", 8)
        assert (engine.public_prompts, engine.prefix_cache, engine.speculation) == ((), False, 0)
        pages = engine.kv_memory_bytes // page_bytes(ModelConfig.from_folder(tiny_dir), engine)
        assert pages * 4 > 200 + 8 * (1024 + 32)


def test_only_quantized_weights_are_rounded_further(tiny_dir: Path, tmp_path: Path) -> None:
    """The base is BF16 throughout, whatever the options say for a 4-bit model."""
    packed = copy_of(tiny_dir, tmp_path / "packed", QUANTIZED)
    given = {"activations": "int8", "lm_head": "int8"}
    base, _, int4, _ = choices([tiny_dir, packed], given, 50)
    assert not given.keys() & base.options.keys()
    assert given.items() <= int4.options.items()


def test_a_text_may_be_as_long_as_the_model_takes(tiny_dir: Path) -> None:
    """Or as the options say."""
    assert max_text(tiny_dir, {}) == 256
    assert max_text(tiny_dir, {"max_context": 100}) == 100


def test_more_than_fits_the_machine_is_refused_before_it_is_loaded(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """In gigabytes."""
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "abc"}')
    job = {
        "folders": [str(tiny_dir)],
        "options": {},
        "prompts": str(prompts),
        "rounds": 0,
        "memory_bytes": 1_000_000,
    }
    with pytest.raises(UnsupportedError, match=r"2 choices side by side take .* GB"):
        evaluate(job, lambda *_: None)
