"""Llama, Qwen2 and Qwen3: the engine's answers are those of transformers on the same weights."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.api import EngineSpec
from engines.embedded.batch import build
from engines.embedded.config import ModelConfig, UnsupportedError
from engines.embedded.engine import EmbeddedEngine, create
from engines.embedded.rope import inverse_frequencies
from engines.embedded.seq import Seq
from tests.engines.conftest import write_byte_tokenizer
from tests.engines.helpers import Reference, ask, drive, random_prompt

VOCAB = 300
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,  # so small that 120 tokens go far beyond it
}
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": [298, 299],
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-untied": {"model_type": "llama", "tie_word_embeddings": False},
    "llama3-rope": {"model_type": "llama", "rope_scaling": LLAMA3},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 8},
    "qwen2-untied": {"model_type": "qwen2", "tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "attention_bias": False},
    "qwen3-odd": {"model_type": "qwen3", "head_dim": 24, "num_attention_heads": 6},
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of each family, as transformers itself saves it."""
    place = tmp_path_factory.mktemp(request.param)
    save_random(SHAPE | MODELS[request.param], place)
    return place


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder, torch.float32)


@pytest.fixture
def engine(folder: Path) -> Iterator[EmbeddedEngine]:
    """Pages of 4 tokens, steps of 16."""
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "page_size": 4,
        "max_batch_tokens": 16,
        "max_running": 8,
        "kv_memory_bytes": 4 << 20,
    }
    made = create(EngineSpec("tiny", str(folder), options))
    yield made
    made.close()


def save_random(config: dict[str, Any], place: Path) -> None:
    """Every tensor random, norms and biases too, so that one that is left out shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoConfig, AutoModelForCausalLM

        (place / "config.json").write_text(json.dumps(config))
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place))
        generator = torch.Generator().manual_seed(11)
        for tensor in model.state_dict().values():
            noise = torch.randn(tensor.shape, generator=generator) * 0.25
            tensor.copy_(noise if tensor.dim() > 1 else noise + 0.75)
        model.save_pretrained(place)
    # transformers 5 writes it otherwise: what people have is mostly of older versions.
    (place / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(place)


def test_greedy_answers_are_those_of_transformers(
    engine: EmbeddedEngine, reference: Reference
) -> None:
    """Through pages and chunks, several requests a step, and decoding."""
    prompts = {f"p{length}": random_prompt(length, length) for length in (1, 7, 40, 120)}
    answers = drive(engine, *[ask(id, prompt, 24) for id, prompt in prompts.items()])
    for id, prompt in prompts.items():
        reference.assert_greedy(prompt, answers.tokens(id))


def test_an_answer_over_a_cached_prefix_is_the_same(
    engine: EmbeddedEngine, reference: Reference
) -> None:
    """Pages hold what was turned and normalised for their own positions."""
    prompt = random_prompt(90, 5)
    for id, cached in (("cold", 0), ("warm", 88)):
        answers = drive(engine, ask(id, prompt, 8))
        assert answers.cached(id) == cached
        reference.assert_greedy(prompt, answers.tokens(id))


def test_logits_are_those_of_transformers(engine: EmbeddedEngine, reference: Reference) -> None:
    """Of every token of two prompts that are read in chunks, to 1e-4."""
    prompts = [random_prompt(length, length) for length in (50, 33)]
    seqs = [held(engine, ask(str(i), prompt), i) for i, prompt in enumerate(prompts)]
    found: list[list[Any]] = [[], []]
    while live := [seq for seq in seqs if seq.num_scheduled < seq.prompt_len]:
        batch = build([seq.next_chunk(min(9, seq.num_unscheduled)) for seq in live], 4)
        logits = engine.runner.logits(batch, np.arange(len(batch.input_ids)))
        for row, chunk in enumerate(batch.chunks):
            found[seqs.index(chunk.seq)].append(logits[batch.token_rows == row])
    for prompt, parts in zip(prompts, found, strict=True):
        np.testing.assert_allclose(np.concatenate(parts), reference.logits(prompt), atol=1e-4)


def held(engine: EmbeddedEngine, request: Any, number: int) -> Seq:
    """A seq with pages of its own that no scheduler knows of."""
    seq = Seq.of(request)
    first = 1 + 20 * number
    seq.block_table.extend(range(first, first + 20))
    seq.tags.extend([0] * 20)
    return seq


def test_a_config_that_transformers_5_wrote_means_the_same(folder: Path, tmp_path: Path) -> None:
    """It has rope_parameters in place of rope_theta and rope_scaling, and layer_types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoConfig

        AutoConfig.from_pretrained(folder).save_pretrained(tmp_path)
    assert ModelConfig.from_folder(tmp_path) == ModelConfig.from_folder(folder)


def test_several_end_tokens_are_known(folder: Path) -> None:
    """As Llama 3 and Qwen have them."""
    assert ModelConfig.from_folder(folder).eos_token_ids == {298, 299}


@pytest.mark.parametrize(
    ("dim", "theta", "scaling"),
    [
        (64, 10_000.0, None),
        (128, 1_000_000.0, None),
        (64, 500_000.0, LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192}),
        (128, 500_000.0, LLAMA3 | {"original_max_position_embeddings": 8192}),
    ],
)
def test_frequencies_are_those_of_transformers(
    tmp_path: Path, dim: int, theta: float, scaling: dict[str, Any] | None
) -> None:
    """Of Llama 2, Qwen, Llama 3.2 and Llama 3.1, to the last bit but one."""
    shape = SHAPE | {"model_type": "llama", "head_dim": dim, "rope_theta": theta}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"rope_scaling": scaling}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        expected = LlamaRotaryEmbedding(AutoConfig.from_pretrained(tmp_path)).inv_freq
    found = inverse_frequencies(ModelConfig.from_folder(tmp_path))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.numpy(), rtol=2.5e-7)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"model_type": "qwen3", "attention_bias": True}, "attention_bias True"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "'dynamic'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": "llama3"}, "no object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"model_type": "qwen3_moe"}, "'llama', 'qwen2', 'qwen3' are"),
    ],
)
def test_what_a_family_has_beside_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """Rather than computed as if it weren't there."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | {"model_type": "llama"} | changes))
    with pytest.raises(UnsupportedError, match=words):
        ModelConfig.from_folder(tmp_path)


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    """Two of them here."""
    faulty = SHAPE | {"model_type": "llama", "hidden_act": "gelu", "mlp_bias": True}
    (tmp_path / "config.json").write_text(json.dumps(faulty))
    with pytest.raises(UnsupportedError, match=r"hidden_act 'gelu'.*; mlp_bias True"):
        ModelConfig.from_folder(tmp_path)


def test_a_qwen3_without_head_dim_has_heads_of_128(tmp_path: Path) -> None:
    """As transformers takes it, whatever its hidden size."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | {"model_type": "qwen3"}))
    assert ModelConfig.from_folder(tmp_path).head_dim == 128
