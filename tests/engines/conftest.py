"""What the engine tests share: the packaged model, a tiny random one, engines on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engines.api import EngineSpec
from engines.embedded.engine import EmbeddedEngine, create
from tests.engines.books import check_books, tables_of
from tests.engines.helpers import BACKENDS

TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "vocab_size": 300,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 299,
}

EngineFactory = Callable[..., EmbeddedEngine]


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer model with a byte tokenizer. Its answers mean nothing, but repeat."""
    # Wide enough that logits differ clearly and answers don't fall into a loop at once.
    return _tiny_model(tmp_path_factory.mktemp("tiny"), spread=0.25)


@pytest.fixture(scope="session")
def looping_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, but its answers soon repeat themselves, as those do that quote."""
    return _tiny_model(tmp_path_factory.mktemp("looping"), spread=0.1)


def _tiny_model(folder: Path, spread: float) -> Path:
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG))
    save_file(_tiny_weights(spread), folder / "model.safetensors")
    write_byte_tokenizer(folder)
    return folder


def _tiny_weights(spread: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = {"model.embed_tokens": (300, 64), "model.norm": (64,)}
    for i in range(2):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm": (64,),
            f"{layer}.self_attn.q_proj": (64, 64),
            f"{layer}.self_attn.k_proj": (32, 64),
            f"{layer}.self_attn.v_proj": (32, 64),
            f"{layer}.self_attn.o_proj": (64, 64),
            f"{layer}.post_attention_layernorm": (64,),
            f"{layer}.mlp.gate_proj": (96, 64),
            f"{layer}.mlp.up_proj": (96, 64),
            f"{layer}.mlp.down_proj": (64, 96),
        }
    return {
        f"{name}.weight": torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * spread
        for name, shape in shapes.items()
    }


def write_byte_tokenizer(folder: Path) -> None:
    """256 tokens, one a byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of a module with ON_BOTH_BACKENDS that build engines run once on each."""
    if getattr(metafunc.module, "ON_BOTH_BACKENDS", False) and "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", BACKENDS, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """What computes: torch, in float32; the native kernels too in modules that ask for both."""
    return str(getattr(request, "param", "torch"))


@pytest.fixture
def make_faulty(tiny_dir: Path, backend: str) -> Iterator[EngineFactory]:
    """Builds engines on the tiny model: pages of 4 tokens, 64 pages unless told else."""
    engines: list[EmbeddedEngine] = []

    def make(*, num_pages: int = 65, folder: Path = tiny_dir, **options: Any) -> EmbeddedEngine:
        page_size = options.get("page_size", 4)
        # The native kernels have no pages of an odd number of tokens.
        computing = "torch" if page_size % 2 else backend
        dtype, size = {"torch": ("float32", 4), "native": ("bfloat16", 2)}[computing]
        defaults = {
            "backend": computing,
            "dtype": dtype,
            "kv_dtype": dtype,
            "page_size": page_size,
            "threads": 1,  # at this size a second one only waits
            "kv_memory_bytes": num_pages * 2 * 2 * 2 * 16 * page_size * size,
        }
        engines.append(create(EngineSpec("tiny", str(folder), defaults | options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def make_tiny(make_faulty: EngineFactory) -> Iterator[EngineFactory]:
    """The same, and the pool's books must balance when the test ends."""
    engines: list[EmbeddedEngine] = []

    def make(**options: Any) -> EmbeddedEngine:
        engines.append(make_faulty(**options))
        return engines[-1]

    yield make
    for engine in engines:
        check_books(engine.pool, tables_of(engine))


@pytest.fixture
def make_plain(make_tiny: EngineFactory) -> EngineFactory:
    """Steps don't overlap, so that a fault meets exactly the step that it is planted ahead of."""
    return partial(make_tiny, overlap=False)


@pytest.fixture
def make_broken(make_faulty: EngineFactory) -> EngineFactory:
    """The same, for faults that the pool's books don't survive."""
    return partial(make_faulty, overlap=False)
