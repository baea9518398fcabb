"""A checkpoint on this machine: whether these GPUs, this release and these shares can serve it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert
from safetensors.torch import load_file, save_file

from engines.trtllm.checkpoint import BadCheckpoint, read
from engines.trtllm.checks import faults
from engines.trtllm.settings import TrtSettings
from tests.engines.build.spoilt import LAYER
from tests.engines.build.tiny import built, model, text

CONFIG = {
    "model_type": "mixtral",
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "max_position_embeddings": 8192,
}
OFF = {"guard": False}


def found(folder: Path, **trt: Any) -> dict[str, str]:
    """What is wrong, by key."""
    told = convert({"guard_url": "http://127.0.0.1:9000"} | trt, TrtSettings)
    told = convert({"guard_url": ""} | trt, TrtSettings) if not told.guard else told
    wrong = list(faults({"trt": told, "path": str(folder)}))
    return dict(wrong)


def checkpoint(folder: Path, quantization: dict[str, Any] | None = None, **config: Any) -> Path:
    """Its two JSON files, and no tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    if quantization is not None:
        told = json.dumps({"quantization": quantization})
        (folder / "hf_quant_config.json").write_text(told)
    return folder


# quantization, keys of config.json, settings, the key at fault ("": none), the reason
CASES: dict[str, tuple[dict[str, Any] | None, dict[str, Any], dict[str, Any], str, str]] = {
    "plain": (None, {}, {}, "", ""),
    "FP8": ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, {}, {}, "", ""),
    "FP8 on Ampere": (
        {"quant_algo": "FP8"}, {}, {"gpu": "ampere"}, "trt.gpu", "only ada, hopper, blackwell",
    ),
    "NVFP4": (
        {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, {}, {"gpu": "blackwell"}, "", "",
    ),
    "NVFP4 on Hopper": ({"quant_algo": "NVFP4"}, {}, {}, "trt.gpu", "only blackwell"),
    "NVFP4 cache on Hopper": (
        {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, {}, {},
        "trt.kv_dtype", "hopper has no cache in nvfp4",
    ),
    "W4A16 on Blackwell": (
        {"quant_algo": "W4A16_GPTQ", "group_size": 128}, {}, {"gpu": "blackwell"},
        "trt.gpu", "only ampere, ada, hopper",
    ),
    "groups of 32": (
        {"quant_algo": "W4A16_GPTQ", "group_size": 32}, {}, {}, "path", "take 64 or 128",
    ),
    "no groups": ({"quant_algo": "W4A8_AWQ"}, {}, {}, "path", "groups of ?"),
    "AWQ of a family that nobody looks over": (
        {"quant_algo": "W4A16_AWQ", "group_size": 128}, {}, {}, "path", "can't be looked over",
    ),
    "unheard of": ({"quant_algo": "INT2"}, {}, {}, "path", "which GPU takes these?"),
    "another tool's": (
        None, {"quantization_config": {"quant_method": "awq"}}, {}, "path", "weights in 'awq'",
    ),
    "FP8 of another tool": (
        None, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        {"gpu": "ada"}, "trt.gpu", "only hopper, blackwell",
    ),
    "a cache unheard of": (
        {"quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}, {}, {}, "path", "known: FP8, NVFP4",
    ),
    "FP8 cache by force": ({"quant_algo": "FP8"}, {}, {"kv_dtype": "fp8"}, "", ""),
    "NVFP4 cache by force": (
        {"quant_algo": "FP8"}, {}, {"kv_dtype": "nvfp4", "gpu": "blackwell"},
        "trt.kv_dtype", "scales that the checkpoint lacks",
    ),
    "BF16 cache for an NVFP4 one": (
        {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, {},
        {"kv_dtype": "bf16", "gpu": "blackwell"}, "trt.kv_dtype", "can't be taken back",
    ),
    "FP8 cache for an NVFP4 one, of old": (
        {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, {},
        {"kv_dtype": "fp8", "gpu": "blackwell"}, "trt.kv_dtype", "takes no other word",
    ),
    "FP8 cache for an NVFP4 one, of late": (
        {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, {},
        {"kv_dtype": "fp8", "gpu": "blackwell", "version": "1.3.0rc22"}, "", "",
    ),
    "heads": (None, {}, {"tensor_parallel": 3}, "trt.tensor_parallel", "32 attention heads"),
    "heads of K and V": (
        None, {"num_key_value_heads": 6}, {"tensor_parallel": 4},
        "trt.tensor_parallel", "6 heads of K and V",
    ),
    "more GPUs than heads of K and V": (None, {}, {"tensor_parallel": 8}, "", ""),
    "layers": (
        None, {}, OFF | {"pipeline_parallel": 9}, "trt.pipeline_parallel", "only 8 layers",
    ),
    "no experts": (
        None, {"num_local_experts": 0}, {"tensor_parallel": 2, "expert_parallel": 2},
        "trt.expert_parallel", "no experts",
    ),
    "experts": (None, {}, {"tensor_parallel": 8, "expert_parallel": 8}, "", ""),
    "experts shared badly": (
        None, {"num_local_experts": 6}, {"tensor_parallel": 4, "expert_parallel": 4},
        "trt.expert_parallel", "doesn't divide the model's 6 experts",
    ),
    "beyond its context": (
        None, {}, {"max_seq_len": 16384}, "trt.max_seq_len", "context ends at 8192",
    ),
    "a sliding window": (None, {"sliding_window": 4096}, {}, "trt.guard", "sliding window"),
    "a window that is off": (
        None, {"sliding_window": 4096, "use_sliding_window": False}, {}, "", "",
    ),
    "a window, unguarded": (None, {"sliding_window": 4096}, OFF, "", ""),
    "a state": (None, {"mamba_num_heads": 8}, {}, "trt.guard", "a state"),
    "within a model that sees": (
        None, {"num_attention_heads": None, "text_config": {"sliding_window": 1024}}, {},
        "trt.guard", "sliding window",
    ),
    "no salt": (
        None, {"model_type": "gpt_oss"}, OFF, "trt.block_reuse", "passes no salt on",
    ),
    "no salt to watch by": (
        None, {"model_type": "gpt_oss"}, {"block_reuse": False}, "trt.guard", "by salts",
    ),
    "no salt, no reuse": (None, {"model_type": "gpt_oss"}, OFF | {"block_reuse": False}, "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_served_so_is_refused(name: str, tmp_path: Path) -> None:
    quantization, config, trt, key, reason = CASES[name]
    wrong = found(checkpoint(tmp_path / "model", quantization, **config), **trt)
    assert list(wrong) == ([key] if key else []), wrong
    assert reason in wrong.get(key, "")


def test_phases_have_checkpoints_of_their_own_and_one_kind_of_cache(tmp_path: Path) -> None:
    awq = checkpoint(tmp_path / "a", {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"})
    plain = checkpoint(tmp_path / "b", {"quant_algo": "NVFP4"})
    apart: dict[str, Any] = {
        **OFF,
        "gpu": "blackwell",
        "context": {"urls": ["a:1"], "path": str(plain)},
        "generation": {"urls": ["b:1"]},
    }
    assert "moves no KV" in found(awq, **apart)["trt.generation.kv_dtype"]
    assert found(awq, **apart, kv_dtype="fp8") == {}, "weights may differ, caches may not"
    assert found(awq, **apart | {"gpu": "hopper"}, kv_dtype="fp8").keys() == {"trt.gpu"}
    gone = apart | {"context": {"urls": ["a:1"], "path": "/elsewhere"}}
    assert "say it" in found(awq, **gone)["trt.generation.kv_dtype"]
    broken = apart | {"context": {"urls": ["a:1"], "path": str(tmp_path)}}
    assert found(awq, **broken).keys() == {"trt.context.path"}


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"x"', "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json", "build.json"])
def test_what_can_t_be_read_is_told(name: str, content: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", {"quant_algo": "FP8"})
    (folder / name).write_text(content)
    with pytest.raises(BadCheckpoint):
        read(folder)
    assert list(found(folder)) == ["path"]


ODD = [None, True, 0, -1, 1.5, "x", [], [1], {}, {"a": 1}, 10**30]


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("key", [*CONFIG, "sliding_window", "quantization_config", "text_config"])
def test_odd_words_in_a_config_break_nothing(key: str, value: Any, tmp_path: Path) -> None:
    found(checkpoint(tmp_path / "model", **{key: value}), tensor_parallel=2)


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("key", ["quant_algo", "kv_cache_quant_algo", "group_size"])
def test_odd_words_of_a_quantiser_break_nothing(key: str, value: Any, tmp_path: Path) -> None:
    told = {"quant_algo": "W4A16_AWQ", "group_size": 64, "kv_cache_quant_algo": "FP8"}
    found(checkpoint(tmp_path / "model", told | {key: value}, model_type="llama"))


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `bulkhead build` makes: INT4-AWQ in groups of 64, an FP8 cache."""
    folder = tmp_path_factory.mktemp("artefacts")
    built(model("llama", folder / "source"), folder / "good", text(folder))
    return folder / "good"


def test_what_bulkhead_builds_is_taken(artefact: Path) -> None:
    assert found(artefact) == {}
    assert found(artefact, gpu="ada", kv_dtype="fp8") == {}
    assert found(artefact, gpu="blackwell").keys() == {"trt.gpu"}


def test_a_planted_scale_that_isn_t_folded_in_is_refused(artefact: Path, tmp_path: Path) -> None:
    """TensorRT-LLM would load it without a word, and answer wrong."""
    folder = Path(shutil.copytree(artefact, tmp_path / "spoilt"))
    tensors = load_file(folder / "model.safetensors")
    factors = tensors[f"{LAYER}self_attn.o_proj.pre_quant_scale"]
    tensors[f"{LAYER}self_attn.q_proj.pre_quant_scale"] = factors.clone()
    save_file(tensors, folder / "model.safetensors")
    (reason,) = found(folder).values()
    assert "is not folded into the norm before" in reason


def test_each_gpu_s_part_has_whole_groups(artefact: Path) -> None:
    """Two GPUs share 128 inputs, a group each; of the other matrix' 64 each would have a half."""
    wrong = found(artefact, tensor_parallel=2)
    assert list(wrong) == ["trt.tensor_parallel"]
    assert "don't come in whole groups of 64" in wrong["trt.tensor_parallel"]


def test_values_beyond_fp8_are_kept_out_of_it(artefact: Path, tmp_path: Path) -> None:
    """As the build measured them, where the checkpoint itself asks for BF16."""
    folder = Path(shutil.copytree(artefact, tmp_path / "wide"))
    told = json.loads((folder / "build.json").read_text())
    told["kv"]["unit_scale"]["fits"] = False
    (folder / "build.json").write_text(json.dumps(told))
    described = json.loads((folder / "hf_quant_config.json").read_text())
    del described["quantization"]["kv_cache_quant_algo"]
    (folder / "hf_quant_config.json").write_text(json.dumps(described))
    assert "ends at 448" in found(folder, kv_dtype="fp8")["trt.kv_dtype"]


def test_the_digests_of_files_are_no_part_of_it(
    artefact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check is quick however many gigabytes there are; `bulkhead build --check` reads them."""
    monkeypatch.setattr("engines.build.preflight.sha256", lambda _: pytest.fail("read it all"))
    assert found(artefact) == {}


def test_rope_that_this_release_wouldn_t_read_is_told(tmp_path: Path) -> None:
    """transformers 5 writes it where transformers 4 doesn't look."""
    folder = model("llama", tmp_path / "plain")
    told = json.loads((folder / "config.json").read_text())
    told["rope_parameters"] = {"rope_type": "default", "rope_theta": told.pop("rope_theta", 1e4)}
    (folder / "config.json").write_text(json.dumps(told))
    assert "rope_theta" in found(folder)["path"]
    assert found(folder, version="1.4.0rc1") == {}
