"""Keys that a release of TensorRT-LLM doesn't know are told before it is started with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.trtllm import manifest, schema
from tests.trtllm.options import KNOWN, NESTED


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"tensor_paralel_size": 2}, "tensor_paralel_size"),
        ({"kv_cache_config": {"page_size": 2}}, "kv_cache_config.page_size"),
        ({"tensor_parallel_size": "2"}, "tensor_parallel_size"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size"),
        ({"enable_chunked_prefill": 1}, "enable_chunked_prefill"),
        ({"kv_cache_config": None}, "kv_cache_config"),
        ({"post_processor_hook": "a.b"}, "post_processor_hook"),
        ({"kv_cache_config": {"disk_cache_size": 1}}, "kv_cache_config.disk_cache_size"),
    ],
)
def test_a_key_that_it_doesn_t_know_is_told_with_its_path(
    settings: dict[str, Any], path: str
) -> None:
    assert [where for where, _ in manifest.faults("1.2.1", settings)] == [path]


def test_releases_differ() -> None:
    hook = {"post_processor_hook": "a.b"}
    assert manifest.has("1.3.0rc22", "post_processor_hook")
    assert not manifest.has("1.3.0rc21", "post_processor_hook")
    assert list(manifest.faults("1.4.0rc1", hook)) == []
    gone = {"kv_cache_config": {"onboard_blocks": True}}
    assert list(manifest.faults("1.2.1", gone)) == []
    assert [where for where, _ in manifest.faults("1.3.0rc29", gone)] == [
        "kv_cache_config.onboard_blocks"
    ]


def test_what_stands_in_for_it_in_tests_knows_what_we_may_write() -> None:
    """Both lists were made from the same public sources; this keeps them from drifting apart."""
    for path in ("tensor_parallel_size", "disable_overlap_scheduler", "kv_connector_config"):
        assert path in KNOWN
    for name, keys in NESTED.items():
        ours = {
            path.partition(".")[2]
            for path in manifest.known("1.2.1")
            if path.startswith(f"{name}.")
        }
        assert ours >= keys, name


SCHEMA: dict[str, Any] = {
    "$defs": {
        "Cache": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "dtype": {"type": "string", "enum": ["auto", "fp8"]},
                "max_tokens": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
        }
    },
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "cache": {"$ref": "#/$defs/Cache"},
        "other": {"anyOf": [{"$ref": "#/$defs/Cache"}, {"type": "null"}]},
        "size": {"allOf": [{"type": "integer"}]},
        "tokenizer_mode": {"type": "Literal['auto', 'slow']"},
        "backend": {"type": "string", "const": "pytorch"},
        "anything": {},
    },
}


@pytest.mark.parametrize(
    ("settings", "paths"),
    [
        ({"cache": {"dtype": "fp8", "max_tokens": None}, "other": None, "anything": [1]}, []),
        ({"cache": {"dtype": "fp4"}}, ["cache.dtype"]),
        ({"cache": {"max_tokens": "9"}}, ["cache.max_tokens"]),
        ({"other": {"dtipe": "fp8"}}, ["other.dtipe"]),
        ({"other": 3}, ["other"]),
        ({"size": True, "sise": 1}, ["size", "sise"]),
        ({"cache": []}, ["cache"]),
        ({"tokenizer_mode": "auto", "backend": "pytorch"}, []),
        ({"backend": "tensorrt"}, ["backend"]),
    ],
)
def test_a_recorded_schema_is_what_counts(settings: dict[str, Any], paths: list[str]) -> None:
    assert [path for path, _ in schema.faults(settings, SCHEMA)] == paths


@pytest.fixture
def a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a package in which recordings lie; none there yet."""
    (tmp_path / "recorded").mkdir()
    (tmp_path / "serve_keys.txt").write_text((manifest.HERE / "serve_keys.txt").read_text())
    monkeypatch.setattr(manifest, "HERE", tmp_path)
    manifest.recorded.cache_clear()
    yield tmp_path / "recorded"
    manifest.recorded.cache_clear()


def test_where_a_release_was_recorded_the_list_counts_for_nothing(a_recording: Path) -> None:
    (a_recording / "1.4.0.json").write_text(json.dumps({"schemas": {"TorchLlmArgs": SCHEMA}}))
    (a_recording / "1.4.1.json").write_text(json.dumps({"schemas": {}, "missing": {}}))
    wrong = {"tensor_parallel_size": 1, "size": 3}
    assert [path for path, _ in manifest.faults("1.4.0", wrong)] == ["tensor_parallel_size"]
    assert [path for path, _ in manifest.refused("1.4.0", wrong)] == ["tensor_parallel_size"]
    assert list(manifest.doubtful("1.4.0", wrong)) == []
    assert not manifest.has("1.4.0", "post_processor_hook")
    for other in ("1.4.1", "1.4.2"):
        assert [path for path, _ in manifest.faults(other, wrong)] == ["size"]
        assert list(manifest.refused(other, wrong)) == []
        assert [path for path, _ in manifest.doubtful(other, wrong)] == ["size"]
