"""The YAML for trtllm-serve says what the settings say, and no key that the release lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from yamllint import linter
from yamllint.config import YamlLintConfig

from engines.trtllm import manifest
from engines.trtllm.disaggregated import disaggregated_yaml, front_settings
from engines.trtllm.render import Unrenderable, serve_settings, serve_yaml
from engines.trtllm.roles import is_disaggregated, roles
from engines.trtllm.settings import TrtServers, TrtSettings
from tests.engines.trtllm.settings import PAIR, any_settings
from tests.trtllm.options import BadConfig, read_options

LINT = YamlLintConfig("extends: default\nrules: {line-length: {max: 100}}")
PATH = "/models/llama: 8b"


def rendered(**settings: Any) -> dict[str, Any]:
    trt = TrtSettings(**settings)
    found: dict[str, Any] = yaml.safe_load(serve_yaml("llama", trt, roles(PATH, trt)[0]))
    return found


@given(any_settings())
def test_what_is_written_is_read_as_what_was_set(trt: TrtSettings) -> None:
    for role in roles(PATH, trt):
        text = serve_yaml("llama", trt, role)
        found = yaml.safe_load(text)
        assert found == serve_settings(trt, role)
        assert list(manifest.faults(trt.version, found)) == []
        assert found["tensor_parallel_size"] == role.tensor_parallel
        assert found["kv_cache_config"]["free_gpu_memory_fraction"] == role.memory_fraction
        assert list(linter.run(text, LINT)) == []
    if is_disaggregated(trt):
        text = disaggregated_yaml("llama", PATH, trt, "0.0.0.0", 8000)
        found = yaml.safe_load(text)
        assert found == front_settings(PATH, trt, "0.0.0.0", 8000)
        assert list(manifest.front_faults(found)) == []
        assert list(linter.run(text, LINT)) == []


def test_what_is_safe_is_said_even_where_it_is_the_default_of_today() -> None:
    """Defaults change between releases: V2's manager becomes one, partial reuse is one."""
    found = rendered()
    assert found["kv_cache_config"] == {
        "dtype": "auto",
        "tokens_per_block": 32,
        "free_gpu_memory_fraction": 0.9,
        "enable_block_reuse": True,
        "enable_partial_reuse": False,
        "host_cache_size": 0,
        "use_kv_cache_manager_v2": False,
    }
    assert found["scheduler_config"] == {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}
    assert found["disable_overlap_scheduler"] is True
    assert found["enable_chunked_prefill"] is False
    assert found["kv_connector_config"]["connector_module"] == "engines.trtllm.guard"
    assert "model" not in found


def test_the_hook_is_named_where_the_release_has_one() -> None:
    assert "post_processor_hook" not in rendered(version="1.2.1")
    assert rendered(version="1.3.0rc29")["post_processor_hook"].startswith("engines.trtllm.hook.")
    assert "post_processor_hook" not in rendered(version="1.3.0rc29", guard=False)


@pytest.mark.parametrize(
    ("dtype", "told"), [("auto", "auto"), ("bf16", "auto"), ("fp8", "fp8"), ("nvfp4", "nvfp4")]
)
def test_the_cache_s_numbers_are_named_as_tensorrt_llm_names_them(dtype: Any, told: str) -> None:
    assert rendered(kv_dtype=dtype)["kv_cache_config"]["dtype"] == told


def test_context_servers_run_without_overlap_and_generation_servers_as_they_were_told() -> None:
    trt = TrtSettings(**PAIR, overlap_scheduler=True, transfer="ucx")
    context, generation = (serve_settings(trt, role) for role in roles(PATH, trt))
    assert context["disable_overlap_scheduler"] is True
    assert generation["disable_overlap_scheduler"] is False
    for found in (context, generation):
        assert found["cache_transceiver_config"] == {"backend": "UCX"}
        assert "kv_connector_config" not in found


def test_a_phase_says_what_differs_and_takes_the_rest_from_the_model() -> None:
    trt = TrtSettings(
        **PAIR | {"generation": TrtServers(urls=("g:1",), tensor_parallel=8, path="/other")},
        tensor_parallel=2,
        max_batch_size=64,
    )
    context, generation = roles(PATH, trt)
    assert (context.path, context.tensor_parallel, context.max_batch_size) == (PATH, 2, 64)
    assert (generation.path, generation.tensor_parallel, generation.ranks) == ("/other", 8, 8)


def test_a_router_that_looks_for_blocks_is_told_how_prompts_are_cut_and_hears_of_them() -> None:
    context = TrtServers(urls=("a:1", "b:2"), router="kv_cache_aware")
    trt = TrtSettings(**PAIR | {"context": context}, tokens_per_block=64)
    front = front_settings(PATH, trt, "localhost", 8000)
    assert front["context_servers"]["router"] == {"type": "kv_cache_aware", "tokens_per_block": 64}
    assert "router" not in front["generation_servers"]
    first, second = (serve_settings(trt, role)["kv_cache_config"] for role in roles(PATH, trt))
    assert first["event_buffer_max_size"] > 0
    assert "event_buffer_max_size" not in second


def test_further_keys_go_where_they_belong() -> None:
    found = rendered(extra={"kv_cache_config": {"max_tokens": 9}, "print_iter_log": True})
    assert found["kv_cache_config"]["max_tokens"] == 9
    assert found["kv_cache_config"]["enable_partial_reuse"] is False
    assert found["print_iter_log"] is True


def test_further_keys_that_say_the_same_are_no_fault_and_others_are_refused() -> None:
    same = {"kv_cache_config": {"enable_partial_reuse": False}, "tensor_parallel_size": 1}
    assert rendered(extra=same) == rendered()
    for extra in ({"tensor_parallel_size": 2}, {"kv_cache_config": {"dtype": "fp8"}},
                  {"kv_connector_config": {"connector_module": "lmcache"}}):  # fmt: skip
        with pytest.raises(Unrenderable, match=f"extra.{next(iter(extra))}"):
            rendered(extra=extra)


def test_it_is_taken_by_what_stands_in_for_trtllm_serve(tmp_path: Path) -> None:
    """Which refuses keys that it doesn't know, as TensorRT-LLM does."""
    file = tmp_path / "serve.yaml"
    for version in ("1.2.1", "1.3.0rc29"):
        trt = TrtSettings(version=version, max_batch_size=16, tokens_per_block=64)
        file.write_text(serve_yaml("llama", trt, roles(PATH, trt)[0]))
        options = read_options([PATH, "--config", str(file)], version)
        assert (options.max_batch_size, options.tokens_per_block) == (16, 64)
        assert not options.reuses_parts
    with pytest.raises(BadConfig, match="post_processor_hook"):
        read_options([PATH, "--config", str(file)], "1.2.1")
