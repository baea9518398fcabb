"""Convert a llama-architecture GGUF file into a model folder in Hugging Face layout.

Told a file and an empty folder. Weights are dequantised and stored as bf16; the tokenizer is
rebuilt from the file's own vocabulary. Needs numpy, gguf, safetensors and tokenizers; never torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Float32 = NDArray[np.float32]
Bits16 = NDArray[np.uint16]

CONTROL_TOKEN = 3  # GGUF's token_type of control tokens

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class ConversionError(Exception):
    """The GGUF file isn't one that this converter understands."""


def convert(gguf_path: Path, folder: Path) -> None:
    """Write the model at `gguf_path` into `folder`. Raises ConversionError for a foreign file."""
    reader = GGUFReader(gguf_path)
    field = _field_reader(reader)
    if (architecture := field("general.architecture")) != "llama":
        raise ConversionError(f"{gguf_path.name} holds {architecture!r}; only 'llama' converts")
    if (kind := field("tokenizer.ggml.model")) != "gpt2" or field("tokenizer.ggml.pre") != "smollm":
        raise ConversionError(f"{gguf_path.name} has tokenizer {kind!r}; only 'gpt2/smollm' is")
    config = model_config(field, tied=all(t.name != "output.weight" for t in reader.tensors))
    _write_weights(reader, config, folder / "model.safetensors")
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(config))
    build_tokenizer(field).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(field, config))


def _field_reader(reader: GGUFReader) -> Callable[[str], Any]:
    def field(key: str) -> Any:
        found = reader.get_field(key)
        if found is None:
            raise ConversionError(f"the GGUF file has no field {key!r}")
        return found.contents()

    return field


def model_config(field: Callable[[str], Any], *, tied: bool) -> dict[str, Any]:
    """The config.json of the model. `rope_theta` stands at top level, where every reader looks."""
    heads = int(field("llama.attention.head_count"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": int(field("llama.embedding_length")),
        "intermediate_size": int(field("llama.feed_forward_length")),
        "num_hidden_layers": int(field("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(field("llama.attention.head_count_kv")),
        "head_dim": int(field("llama.embedding_length")) // heads,
        "max_position_embeddings": int(field("llama.context_length")),
        "vocab_size": int(field("llama.vocab_size")),
        # Stored as float32: 1e-5 comes back as 9.9999997e-06 unless rounded.
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(field("llama.rope.freq_base")),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": int(field("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(field("tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(field("tokenizer.ggml.padding_token_id")),
        "torch_dtype": "bfloat16",
    }


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _write_weights(reader: GGUFReader, config: dict[str, Any], path: Path) -> None:
    arrays = dict(_weights(reader, config))
    specs = {
        name: TensorSpec(
            dtype="bfloat16",
            shape=list(bits.shape),
            data_ptr=bits.ctypes.data,  # `arrays` keeps the memory alive until the file is written
            data_len=bits.nbytes,
        )
        for name, bits in arrays.items()
    }
    serialize_file(specs, str(path), {"format": "pt"})


def _weights(reader: GGUFReader, config: dict[str, Any]) -> Iterator[tuple[str, Bits16]]:
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name:
            weight = unpermute(weight, config["num_attention_heads"])
        elif ".attn_k." in tensor.name:
            weight = unpermute(weight, config["num_key_value_heads"])
        yield tensor_name(tensor.name), to_bfloat16(weight)


def tensor_name(gguf_name: str) -> str:
    """`blk.0.attn_q.weight` -> `model.layers.0.self_attn.q_proj.weight`."""
    stem = gguf_name.removesuffix(".weight")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.weight"
    prefix, layer, part = [*stem.split(".", 2), "", ""][:3]
    if prefix != "blk" or part not in _LAYER_NAMES:
        raise ConversionError(f"the GGUF file holds an unknown tensor {gguf_name!r}")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"


def unpermute(weight: Float32, num_heads: int) -> Float32:
    """Undo GGUF's interleaved RoPE order of the rows of Q or K; `num_heads` is that matrix' own."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def to_bfloat16(values: Float32) -> Bits16:
    """Round float32 to bf16, to nearest even, as raw 16-bit patterns. Values must be finite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    if not np.isfinite(values).all():
        raise ConversionError("a weight is NaN or infinite")
    tie_to_even = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + tie_to_even) >> np.uint32(16)).astype(np.uint16)


def build_tokenizer(field: Callable[[str], Any]) -> Tokenizer:
    """The byte-level BPE tokenizer whose vocabulary and merges the file holds."""
    tokens: list[str] = field("tokenizer.ggml.tokens")
    types: list[int] = field("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in field("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    split: list[Any] = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    return tokenizer


def _tokenizer_config(field: Callable[[str], Any], config: dict[str, Any]) -> dict[str, Any]:
    tokens: list[str] = field("tokenizer.ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
        "unk_token": tokens[int(field("tokenizer.ggml.unknown_token_id"))],
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": field("tokenizer.chat_template"),
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
