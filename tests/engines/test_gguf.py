"""The converter: rounding, row order, names; its output against independent readers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import safe_open

from engines.build.gguf import ConversionError, convert, tensor_name, to_bfloat16, unpermute


@given(
    arrays.arrays(
        np.float32, 16, elements=st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100)
    )
)
@settings(max_examples=300, deadline=None)
def test_bf16_rounding_is_torchs(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    """To nearest even, subnormals and signed zeros included."""
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy()
    assert (to_bfloat16(values).view(np.int16) == expected).all()


@pytest.mark.parametrize("upper", [0x3F80, 0x3F81])
def test_a_tie_rounds_to_even(upper: int) -> None:
    """Exactly half way: the last bit of the result is 0."""
    half_way = np.array([upper << 16 | 0x8000], np.uint32).view(np.float32)
    assert int(to_bfloat16(half_way)[0]) % 2 == 0


def test_a_weight_that_is_no_number_is_refused() -> None:
    """A broken file is found at conversion, not in an answer."""
    with pytest.raises(ConversionError, match="NaN"):
        to_bfloat16(np.array([1.0, np.nan], np.float32))


def test_unpermute_undoes_the_interleaving_of_each_head() -> None:
    """Rows 0, h/2, 1, h/2+1, ... of each head go back to 0, 1, 2, ..."""
    rows = np.arange(16, dtype=np.float32).reshape(16, 1)
    interleaved = np.concatenate(
        [head.reshape(2, 4, 1).swapaxes(0, 1).reshape(8, 1) for head in (rows[:8], rows[8:])]
    )
    assert interleaved[:4, 0].tolist() == [0, 4, 1, 5]
    assert (unpermute(interleaved, 2) == rows).all()


def test_tensor_names() -> None:
    """Top level and in layers; anything unknown is refused by name."""
    assert tensor_name("token_embd.weight") == "model.embed_tokens.weight"
    assert tensor_name("blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight"
    with pytest.raises(ConversionError, match=r"blk\.0\.ffn_gate_exps"):
        tensor_name("blk.0.ffn_gate_exps.weight")


def test_the_config_says_what_readers_of_all_versions_need(model_dir: Path) -> None:
    """rope_theta at top level, rounded epsilon, tied embeddings, the end token."""
    config = json.loads((model_dir / "config.json").read_text())
    wanted = {
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "vocab_size": 49152,
        "eos_token_id": 2,
        "num_key_value_heads": 3,
        "head_dim": 64,
    }
    assert wanted.items() <= config.items()


def test_a_block_of_the_packaged_model_is_what_its_bytes_say(model_dir: Path) -> None:
    """Q4_1 read by hand: scale, minimum and 32 nibbles of one row of an unpermuted matrix."""
    tensor = next(
        t for t in GGUFReader(model_dir / "model.gguf").tensors if t.name == "blk.3.ffn_up.weight"
    )
    block = bytes(tensor.data[5].tobytes()[:20])
    scale, minimum = np.frombuffer(block[:4], np.float16).astype(np.float32)
    nibbles = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
    expected = torch.tensor([scale * n + minimum for n in nibbles]).bfloat16()
    with safe_open(model_dir / "model.safetensors", framework="pt") as file:
        row = file.get_slice("model.layers.3.mlp.up_proj.weight")[5]
    assert torch.equal(row[:32], expected)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    """Another architecture is named in the refusal."""
    from gguf import GGUFWriter

    path = tmp_path / "other.gguf"
    writer = GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConversionError, match="'mamba'"):
        convert(path, tmp_path)


@pytest.mark.slow
def test_all_weights_equal_those_that_transformers_reads_from_the_gguf(model_dir: Path) -> None:
    """An independent reader of the same file gives the same bf16 numbers, bit by bit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        with torch.device("meta"):
            empty = LlamaForCausalLM(LlamaConfig.from_pretrained(model_dir))
        loaded = load_gguf_checkpoint(
            str(model_dir / "model.gguf"), return_tensors=True, model_to_load=empty
        )["tensors"]
    with safe_open(model_dir / "model.safetensors", framework="pt") as file:
        assert sorted(loaded) == sorted(file.keys())
        for name, theirs in loaded.items():
            assert torch.equal(file.get_tensor(name), torch.as_tensor(theirs).bfloat16()), name
