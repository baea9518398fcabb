"""The builder's forward pass gives transformers' logits on the same weights."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from engines.build.dense import Rope, linear, rms_norm, run_layer
from engines.build.shape import UnsuitableModel, shape_of
from engines.build.weights import Weights
from tests.engines.build.tiny import MODELS, model


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Bias, head norms, tied or not, Llama 3's frequencies: all families, in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM

        folder = model(name, tmp_path / name)
        reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.arange(240).reshape(2, 120) * 7 % 290
    shape = shape_of(folder)
    with torch.inference_mode(), Weights(folder, shape) as weights:
        hidden, rope = weights.embedding()[tokens], Rope.of(shape, 120)
        for index in range(shape.num_layers):
            hidden = run_layer(shape, weights.layer(index), hidden, rope)
        hidden = rms_norm(hidden, weights.norm(), shape.rms_norm_eps)
        logits = linear(hidden, weights.head())
        expected = reference(tokens).logits
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


def test_a_model_in_several_files_and_in_float16_is_read(tmp_path: Path) -> None:
    """As large models come."""
    from safetensors.torch import load_file, save_file

    folder = model("qwen2", tmp_path / "whole")
    shape = shape_of(folder)
    tensors = load_file(folder / "model.safetensors")
    with Weights(folder, shape) as weights:
        whole = weights.layer(1)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for number, part in enumerate((names[::2], names[1::2])):
        halves = {name: tensors[name].half() for name in part}
        save_file(halves, folder / f"model-0000{number}-of-00002.safetensors")
    with Weights(folder, shape) as weights:
        split = weights.layer(1)
    for name, weight in whole.weights.items():
        torch.testing.assert_close(split.weights[name], weight, rtol=1e-3, atol=1e-3)
    assert split.biases.keys() == {f"self_attn.{x}_proj" for x in "qkv"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "mixtral"}, "'llama', 'qwen2', 'qwen3' are"),
        ({"hidden_act": "gelu"}, "only 'silu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope scaling 'yarn'"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "only False"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised already"),
        ({"vocab_size": None}, "vocab_size|malformed"),
    ],
)
def test_other_models_are_refused_in_a_sentence(
    changed: dict[str, object], said: str, tmp_path: Path
) -> None:
    """Before anything is computed."""
    import json

    from tests.engines.build.tiny import BASE

    (tmp_path / "config.json").write_text(json.dumps(BASE | {"model_type": "llama"} | changed))
    with pytest.raises(UnsuitableModel, match=said):
        shape_of(tmp_path)
