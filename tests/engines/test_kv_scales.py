"""FP8 pages in a whole engine: options, the checkpoint's scales, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engines.api import EngineSpec
from engines.embedded import facts as facts_of, footprint
from engines.embedded.checkpoint import Checkpoint
from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError, page_bytes
from engines.embedded.engine import EmbeddedEngine, create
from engines.embedded.kv import Scales
from engines.embedded.kv.codecs import Fp8
from engines.embedded.loader import load
from engines.embedded.models.llama import Llama
from tests.engines.helpers import ask, drive, random_prompt

FP8 = {"dtype": "float32", "kv_dtype": "fp8_e4m3", "page_size": 4, "threads": 1}
CHECKPOINT = FP8 | {"kv_scales": "checkpoint"}
K, V = "self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"
# By layer; as ModelOpt writes them, each in a tensor without dimensions.
OWN = Scales((0.03125, 0.046875), (0.0078125, 0.01171875))
# A code that falls on the other side of a tie moves a logit by so much, in this model.
NEAR = 0.1


@pytest.fixture
def with_scales(tiny_dir: Path, tmp_path: Path) -> Callable[..., Path]:
    """The tiny model's folder, and beside its weights a file of scales: OWN, changed as told."""

    def make(**changes: Tensor | None) -> Path:
        for file in tiny_dir.iterdir():
            (tmp_path / file.name).symlink_to(file)
        named = {f"model.layers.{i}.{K}": torch.tensor(OWN.k[i]) for i in range(2)}
        named |= {f"model.layers.{i}.{V}": torch.tensor(OWN.v[i]) for i in range(2)}
        kept = {name: value for name, value in (named | changes).items() if value is not None}
        save_file(kept, tmp_path / "scales.safetensors")
        return tmp_path

    return make


@pytest.fixture
def engines() -> Iterator[Callable[..., EmbeddedEngine]]:
    made: list[EmbeddedEngine] = []

    def make(folder: Path, **options: Any) -> EmbeddedEngine:
        made.append(create(EngineSpec("tiny", str(folder), {"kv_memory_bytes": 1 << 20} | options)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def scales_of(folder: Path, **options: Any) -> Scales:
    return Scales.of(folder, ModelConfig.from_folder(folder), EngineConfig(**options))


def test_scales_are_the_checkpoint_s_or_one(with_scales: Callable[..., Path]) -> None:
    """By layer, K's apart from V's; unit unless asked for."""
    folder = with_scales()
    assert scales_of(folder, **CHECKPOINT) == OWN
    assert scales_of(folder, **FP8).digest == "unit"


def test_a_scale_may_have_one_dimension_and_another_dtype(
    with_scales: Callable[..., Path],
) -> None:
    """What counts is that it's one number."""
    one = torch.tensor([OWN.k[1]], dtype=torch.bfloat16)
    assert scales_of(with_scales(**{f"model.layers.1.{K}": one}), **CHECKPOINT) == OWN


def test_missing_scales_are_all_named(
    tiny_dir: Path, with_scales: Callable[..., Path], engines: Callable[..., EmbeddedEngine]
) -> None:
    """And the way out is told."""
    folder = with_scales(**{f"model.layers.1.{K}": None, f"model.layers.0.{V}": None})
    words = rf"model\.layers\.1\.{K}, model\.layers\.0\.{V} are missing; .*'kv_scales'.*unit"
    with pytest.raises(UnsupportedError, match=words):
        engines(folder, **CHECKPOINT)
    with pytest.raises(UnsupportedError, match=rf"model\.layers\.0\.{K}, .*layers\.1\.{V} are"):
        engines(tiny_dir, **CHECKPOINT)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(0.0),
        torch.tensor(-0.5),
        torch.tensor(float("nan")),
        torch.tensor(float("inf")),
        torch.tensor([0.5, 0.5]),
    ],
    ids=str,
)
def test_a_scale_that_is_no_positive_number_is_refused(
    with_scales: Callable[..., Path], value: Tensor
) -> None:
    """Named, before anything is computed with it."""
    name = f"model.layers.1.{V}"
    with pytest.raises(UnsupportedError, match=f"'{name}' is not one positive number"):
        scales_of(with_scales(**{name: value}), **CHECKPOINT)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"kv_dtype": "fp8"},
            "'kv_dtype' must be one of auto, bfloat16, float32, fp8_e4m3, not 'fp8'",
        ),
        ({"kv_dtype": "fp8_e4m3", "kv_scales": "own"}, "'kv_scales' must be one of unit, checkp"),
        (
            {"kv_scales": "checkpoint", "kv_dtype": "bfloat16"},
            "'kv_scales' is for kv_dtype 'fp8_e4m3', not 'bfloat16'",
        ),
        ({"dtype": "fp8_e4m3"}, "'dtype' must be one of bfloat16, float32, not"),
    ],
)
def test_options_that_don_t_fit_are_refused(options: dict[str, Any], words: str) -> None:
    """FP8 is for pages, and scales are for FP8."""
    with pytest.raises(UnsupportedError, match=words):
        EngineConfig.from_options(options)


def test_fp8_doubles_the_context_that_fits_and_not_the_memory(tiny_dir: Path) -> None:
    """By arithmetic: half the bytes a page, so twice the pages less the null page."""
    model = ModelConfig.from_folder(tiny_dir)
    wide = {
        "kv_memory_bytes": 17 * page_bytes(model, EngineConfig(kv_dtype="bfloat16", page_size=4)),
        "page_size": 4,
    }
    narrow = wide | {"kv_dtype": "fp8_e4m3"}
    assert facts_of.facts(str(tiny_dir), wide).context_length == 16 * 4
    told = facts_of.facts(str(tiny_dir), narrow)
    assert told.context_length == 33 * 4
    assert told.kv_dtype == "fp8_e4m3"
    assert footprint.memory_bytes("", wide) == footprint.memory_bytes("", narrow)


class Whole:
    """Attention over a whole text at once, without pages; K and V rounded as pages round them."""

    def __init__(self, codec: Fp8) -> None:
        self._codec = codec

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = self._codec.decode(layer, torch.stack(self._codec.encode(layer, k, v)))
        q, k, v = (side.transpose(0, 1).unsqueeze(0) for side in (q, k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed[0].transpose(0, 1).flatten(1)


@pytest.mark.parametrize("options", [FP8, CHECKPOINT], ids=["unit", "checkpoint"])
def test_answers_are_those_of_the_model_with_its_kv_rounded(
    with_scales: Callable[..., Path],
    engines: Callable[..., EmbeddedEngine],
    options: dict[str, Any],
) -> None:
    """Over prompts in chunks, decode steps beside them, and a prefix found again."""
    folder = with_scales()
    model = ModelConfig.from_folder(folder)
    scales = scales_of(folder, **options)
    engine = engines(folder, **options, max_batch_tokens=16, max_running=4)
    prompts = {f"r{i}": random_prompt(length, i) for i, length in enumerate((1, 7, 40, 61))}
    answers = drive(engine, *[ask(id, prompt, 24) for id, prompt in prompts.items()])
    prompts["again"] = prompts["r3"]
    again = drive(engine, ask("again", prompts["again"], 24))
    assert again.cached("again") == 60
    llama = Llama(model, load(Checkpoint(folder), model, torch.float32))
    for id, prompt in prompts.items():
        answer = (again if id == "again" else answers).tokens(id)
        text = torch.tensor([*prompt, *answer[:-1]])
        whole = Whole(Fp8(torch.float32, scales))
        with torch.inference_mode():
            scores = llama.logits(llama.hidden(text, torch.arange(len(text)), whole))
        scores = scores[len(prompt) - 1 :]
        chosen = scores.gather(1, torch.tensor(answer)[:, None])[:, 0]
        gaps = scores.max(dim=1).values - chosen
        assert float(gaps.max()) < NEAR
