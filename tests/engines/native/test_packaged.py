"""The packaged model in native kernels against the same weights in torch, in float32.

Agreement over some hundred tokens of prose: what the kernels round must not change what is said.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from engines.embedded.backend import open_backend
from engines.embedded.batch import build
from engines.embedded.config import ModelConfig
from engines.embedded.seq import Page, Seq
from engines.embedded.settled import settled_options
from engines.tokenizer import FolderTokenizer
from tests.engines.helpers import ask, needs_native
from tests.engines.native.tiny_models import in_4_bits, write_awq

pytestmark = [needs_native, pytest.mark.slow]

REPO = Path(__file__).parents[3]
NUM_TOKENS, PAGE = 400, 16
EXACT = {"backend": "torch", "dtype": "float32", "kv_dtype": "float32"}
LogProbabilities = NDArray[np.float64]


@pytest.fixture(scope="module")
def int4_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model rounded to 4 bits, in ModelOpt's layout."""
    folder = tmp_path_factory.mktemp("int4")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_dir / name, folder)
    save_file(in_4_bits(load_file(model_dir / "model.safetensors")), folder / "model.safetensors")
    write_awq(folder)
    return folder


@pytest.fixture(scope="module")
def tokens(model_dir: Path) -> list[int]:
    text = (REPO / "docs" / "integrity.md").read_text()
    return FolderTokenizer(model_dir).encode(text)[:NUM_TOKENS]


def predicted(folder: Path, tokens: list[int], **options: Any) -> LogProbabilities:
    """log p of every token after each of the text's: [tokens, vocab_size]."""
    engine = settled_options({"kv_memory_bytes": 64 << 20} | options, folder)
    backend = open_backend(folder, ModelConfig.from_folder(folder), engine)
    seq = Seq.of(ask("x", tokens, 1))
    for page in range(-(-len(tokens) // PAGE)):
        seq.hold(Page(page + 1, 1))
    seq.begin(0)
    batch = build([seq.next_chunk(len(tokens))], PAGE)
    scores = backend.runner.logits(batch, np.arange(len(tokens))).astype(np.float64)
    backend.runner.close()
    scores -= scores.max(axis=1, keepdims=True)
    told: LogProbabilities = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return told


@pytest.fixture(scope="module")
def exact(model_dir: Path, tokens: list[int]) -> LogProbabilities:
    return predicted(model_dir, tokens, **EXACT)


@pytest.fixture(scope="module")
def exact_int4(int4_dir: Path, tokens: list[int]) -> LogProbabilities:
    """Of the numbers that the 4 bits stand for."""
    return predicted(int4_dir, tokens, **EXACT)


def compared(exact: LogProbabilities, other: LogProbabilities) -> tuple[float, float]:
    """The share of tokens with the same best successor, and the mean divergence in nats."""
    same = (exact.argmax(axis=1) == other.argmax(axis=1)).mean()
    divergence = (np.exp(exact) * (exact - other)).sum(axis=1).mean()
    return float(same), float(divergence)


# Measured: 0.99 and 0.0002 for all that is rounded to bfloat16; 8-bit inputs cost 0.002, an 8-bit
# head 0.004, a 6-bit one 0.01, FP8 pages 0.01. Half the agreement's distance, twice the divergence
# are allowed.
@pytest.mark.parametrize(
    ("options", "agreement", "divergence"),
    [
        ({}, 0.97, 0.001),
        ({"lm_head": "int8"}, 0.9, 0.01),
        ({"lm_head": "int6"}, 0.85, 0.025),
        ({"kv_dtype": "fp8_e4m3"}, 0.9, 0.02),
    ],
    ids=str,
)
def test_bfloat16_weights(
    model_dir: Path,
    exact: LogProbabilities,
    tokens: list[int],
    options: dict[str, str],
    agreement: float,
    divergence: float,
) -> None:
    """Against the model itself."""
    same, apart = compared(exact, predicted(model_dir, tokens, backend="native", **options))
    assert same > agreement
    assert apart < divergence


@pytest.mark.parametrize(
    ("options", "agreement", "divergence"),
    [
        ({"activations": "bfloat16", "lm_head": "bfloat16"}, 0.97, 0.001),
        ({"lm_head": "bfloat16"}, 0.9, 0.015),
        ({"lm_head": "int8"}, 0.88, 0.02),
        ({}, 0.8, 0.035),
    ],
    ids=str,
)
def test_weights_in_4_bits(
    int4_dir: Path,
    exact_int4: LogProbabilities,
    tokens: list[int],
    options: dict[str, str],
    agreement: float,
    divergence: float,
) -> None:
    """Against the same in 4 bits, exactly computed with."""
    same, apart = compared(exact_int4, predicted(int4_dir, tokens, backend="native", **options))
    assert same > agreement
    assert apart < divergence
