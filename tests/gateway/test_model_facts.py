"""What is known of a model: from its card, its engine and its weights' files; never guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.catalog.facts import ModelFacts, facts_of
from runtime.settings import Settings, parse


def facts(folder: Path, model: str) -> ModelFacts:
    text = f'[[models]]\nid = "m"\n{model}\n'
    (folder / "bulkhead.toml").write_text(text)
    settings = Settings(
        file=parse(text, "x")[0],
        config_path=str(folder / "bulkhead.toml"),
        state_dir=folder / "state",
    )
    return facts_of(settings)["m"]


def test_the_shipped_card_of_a_source_whose_weights_aren_t_there_yet(tmp_path: Path) -> None:
    found = facts(tmp_path, 'engine = "embedded"\nsource = "smollm2-135m-instruct"')
    assert found.card.license.spdx == "Apache-2.0"
    assert (found.context_length, found.max_output_tokens) == (8192, 8192)
    assert (found.engine.dtype, found.engine.integrity) == ("bfloat16", "enforce")
    assert found.files == {}


def test_the_real_weights_digests_and_what_the_engine_really_takes(
    tmp_path: Path, model_dir: Path
) -> None:
    recorded = json.loads((model_dir / "source.json").read_text())["files"]
    small = 'options = { kv_memory_bytes = 16777216, integrity = "observe" }'
    found = facts(tmp_path, f'engine = "embedded"\npath = "{model_dir}"\n{small}')
    assert found.files == recorded
    assert found.context_length is not None
    assert 0 < found.context_length < 8192, "the page pool is smaller than the model's context"
    assert found.engine.integrity == "observe"
    assert found.card.name == "", "a path names no card"
    narrow = facts(
        tmp_path, f'engine = "embedded"\npath = "{model_dir}"\noptions = {{ max_context = 512 }}'
    )
    assert narrow.context_length == 512


@pytest.mark.parametrize("text", ["{", "[]", '{"files": 1}', '{"files": {"a": 1}}'])
def test_a_record_that_can_t_be_read_is_no_digest(
    tmp_path: Path, model_dir: Path, text: str
) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_bytes((model_dir / "config.json").read_bytes())
    (folder / "source.json").write_text(text)
    assert facts(tmp_path, f'engine = "embedded"\npath = "{folder}"').files == {}


def test_of_a_server_by_url_the_card_alone_is_known(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('context_length = 4096\ndtype = "float16"\n')
    found = facts(
        tmp_path, 'engine = "openai"\ncache = "salted"\nurl = "http://x/v1"\ncard = "c.toml"'
    )
    assert (found.context_length, found.max_output_tokens) == (4096, None)
    assert found.engine.integrity == ""
    plain = facts(tmp_path, 'engine = "openai"\ncache = "salted"\nurl = "http://x/v1"')
    assert plain == ModelFacts()


def test_a_card_that_broke_since_its_deploy_counts_as_none_and_is_logged(tmp_path: Path) -> None:
    """What is deployed must start again, whatever became of a file beside it."""
    (tmp_path / "c.toml").write_text("context_length = -1\n")
    with capture_logs() as log:
        found = facts(
            tmp_path, 'engine = "openai"\ncache = "salted"\nurl = "http://x/v1"\ncard = "c.toml"'
        )
    assert found == ModelFacts()
    (line,) = log
    assert line["event"] == "card_not_read"
    assert "m.card: c.toml: context_length" in line["fault"]


TRT = 'engine = "tensorrt-llm"\n'
UNGUARDED = "[models.trt]\nguard = false\n"
GUARDED = '[models.trt]\nguard_url = "http://127.0.0.1:9000"\n'


def checkpoint(folder: Path, **quantization: object) -> Path:
    folder.mkdir()
    sizes = {"model_type": "mixtral", "num_attention_heads": 8, "max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    return folder


def test_what_tensorrt_llm_serves_is_told_by_its_checkpoint_and_its_settings(
    tmp_path: Path,
) -> None:
    folder = checkpoint(tmp_path / "fp8", quant_algo="FP8", kv_cache_quant_algo="FP8")
    found = facts(tmp_path, f'{TRT}path = "{folder}"\n{GUARDED}')
    assert (found.context_length, found.max_output_tokens) == (8192, 8192)
    assert (found.engine.quantization, found.engine.kv_dtype) == ("FP8", "fp8_e4m3")
    assert (found.engine.backend, found.engine.integrity) == ("tensorrt-llm", "guard")
    short = facts(
        tmp_path, f'{TRT}path = "{folder}"\n[models.trt]\nguard = false\nmax_seq_len = 64\n'
    )
    assert (short.context_length, short.engine.integrity) == (64, "off")


def test_what_answers_are_computed_with_is_what_is_told_of_two_checkpoints(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "first", quant_algo="FP8", kv_cache_quant_algo="FP8")
    second = checkpoint(tmp_path / "second", quant_algo=None, kv_cache_quant_algo="FP8")
    found = facts(
        tmp_path,
        f'{TRT}path = "{first}"\n{UNGUARDED}[models.trt.context]\nurls = ["a:1"]\n'
        f'[models.trt.generation]\nurls = ["b:1"]\npath = "{second}"\n',
    )
    assert (found.engine.quantization, found.engine.kv_dtype) == ("", "fp8_e4m3")


def test_of_a_checkpoint_elsewhere_only_what_was_set_is_told(tmp_path: Path) -> None:
    found = facts(tmp_path, f'{TRT}path = "/elsewhere"\n{GUARDED}kv_dtype = "fp8"\n')
    assert (found.context_length, found.engine.quantization) == (None, "")
    assert found.engine.kv_dtype == "fp8_e4m3"
    said = facts(tmp_path, f"{TRT}{GUARDED}max_seq_len = 4096\n")
    assert (said.context_length, said.engine.kv_dtype) == (4096, "")
