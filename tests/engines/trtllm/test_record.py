"""The recorder is run where a stand-in is installed, and what it wrote is held to what is ours.

So is every recording of a real release that there is. A contradiction that is planted is found.
"""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.trtllm import manifest, record
from tests.engines.trtllm.recordings import contradictions, real
from tests.engines.trtllm.stub_tensorrt_llm import write_stub
from tests.stack import REPO
from tests.trtllm import protocol
from tests.trtllm.serving import served

VERSIONS = {"earlier": "1.2.1", "later": "1.3.0rc29"}
KINDS = {
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "str": "string",
    "list": "array",
    "table": "object",
}
SETTINGS = """
import json, pathlib
from pydantic import BaseModel

SCHEMA = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())


class TorchLlmArgs:
    @classmethod
    def model_json_schema(cls):
        return SCHEMA


class KvCacheConfig(TorchLlmArgs):
    pass


class Handle:
    pass


class KvCacheConnectorConfig(BaseModel, arbitrary_types_allowed=True):
    connector_module: str
    handle: Handle
"""
PROTOCOL = """
from typing import Any
from pydantic import create_model
from pydantic.config import ConfigDict

STRICT = ConfigDict(extra="forbid")
CHAT, COMPLETION = {chat!r}, {completion!r}
ChatCompletionRequest = create_model(
    "Chat", __config__=STRICT, **{{name: (Any, None) for name in CHAT}})
CompletionRequest = create_model(
    "Completion", __config__=STRICT, **{{name: (Any, None) for name in COMPLETION}})
"""
REQUEST = """
class Bound:
    request_id = context_current_position = 0

    def get_tokens(self, beam):
        return []


class LlmRequest(Bound):
    def __init__(self, client_id):
        self.py_client_id = client_id
"""


def schema_of(keys: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """What pydantic would write of a list of keys by path."""
    properties: dict[str, Any] = {}
    for path, kind in keys.items():
        name = path.removeprefix(prefix)
        if not path.startswith(prefix) or "." in name:
            continue
        one: dict[str, Any] = {}
        if kind.startswith("table"):
            one = schema_of(keys, f"{path}.")
        elif kind != "any":
            one = {"type": KINDS[kind.rstrip("?")]}
        properties[name] = {"anyOf": [one, {"type": "null"}]} if kind.endswith("?") else one
    return {"type": "object", "properties": properties, "additionalProperties": False}


def install(folder: Path, generation: str) -> None:
    write_stub(folder, generation)
    package, version = folder / "tensorrt_llm", VERSIONS[generation]
    chat, completion = sorted(protocol.CHAT), sorted(protocol.COMPLETION)
    files = {
        "__init__.py": f'__version__ = "{version}"\n',
        "llmapi/__init__.py": "",
        "llmapi/llm_args.py": SETTINGS,
        "llmapi/llm_args.json": json.dumps(schema_of(manifest.known(version))),
        "serve/__init__.py": "",
        "serve/openai_protocol.py": PROTOCOL.format(chat=chat, completion=completion),
        "_torch/pyexecutor/llm_request.py": REQUEST,
    }
    for name, text in files.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text)


def run(folder: Path, *words: str) -> dict[str, Any]:
    """As on a machine that has TensorRT-LLM and this one file."""
    script = folder / "record.py"
    script.write_text(Path(record.__file__).read_text())
    done = subprocess.run(
        [sys.executable, str(script), "--out", str(folder), *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(Path(done.stdout.strip()).read_text())
    return found


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found = {}
    for generation in VERSIONS:
        folder = tmp_path_factory.mktemp(generation)
        install(folder, generation)
        found[generation] = run(folder)
    return found


def test_all_of_a_release_is_written_down(recordings: dict[str, dict[str, Any]]) -> None:
    earlier, later = recordings["earlier"], recordings["later"]
    assert (earlier["version"], later["version"]) == tuple(VERSIONS.values())
    assert later["missing"] == {}
    assert set(earlier["missing"]) == {
        "PostProcessorHookChunk",
        "PostProcessorHookVerdict",
        "emit",
        "terminate",
    }
    assert earlier["modules"] == {"connectors": record.CONNECTORS[1]}
    assert later["modules"] == {"connectors": record.CONNECTORS[0]}
    worker = later["interfaces"]["KvCacheConnectorWorker"]
    assert worker["get_finished"] == {
        "parameters": ["finished_gen_req_ids", "started_loading_req_ids"],
        "optional": [],
        "abstract": True,
    }
    assert worker["register_forward_pass_callable"]["abstract"] is False
    assert later["data"]["RequestData"][:2] == ["request_id", "new_tokens"]
    assert {"py_client_id", "request_id", "get_tokens"} <= set(later["names"]["LlmRequest"])
    odd = later["schemas"]["KvCacheConnectorConfig"]["properties"]
    assert odd["connector_module"]["type"] == "string"
    assert "type" not in odd["handle"]


@pytest.mark.parametrize("generation", VERSIONS)
def test_a_recording_of_what_we_know_contradicts_nothing(
    recordings: dict[str, dict[str, Any]], generation: str
) -> None:
    assert contradictions(recordings[generation]) == []


def test_no_recording_of_a_real_release_contradicts_us() -> None:
    """There may be none yet: docs/tensorrt-llm.md says how to make one."""
    told = {path.stem: contradictions(json.loads(path.read_text())) for path in real()}
    assert all(faults == [] for faults in told.values()), told


def planted(found: dict[str, Any], *path: str) -> Any:
    """The last of these, to be spoilt, in a copy."""
    for name in path:
        found = found[name]
    return found


SPOILT = {
    "a key is gone": (("schemas", "TorchLlmArgs", "properties"), "kv_cache_config"),
    "a field is gone": (("schemas", "ChatCompletionRequest", "properties"), "cache_salt"),
    "token ids are gone": (("schemas", "ChatCompletionRequest", "properties"), "prompt_token_ids"),
    "a method has others": (("interfaces", "KvCacheConnectorWorker"), "save_kv_layer"),
    "a method is new": (("interfaces", "KvCacheConnectorScheduler"), "request_moved"),
    "requests lack": (("data", "RequestData"), "new_block_ids"),
    "chunks lack": (("data", "PostProcessorHookChunk"), "request_id"),
    "attention has no": (("interfaces", "TrtllmAttentionMetadata"), "prepare"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_planted_is_found(recordings: dict[str, dict[str, Any]], name: str) -> None:
    found = copy.deepcopy(recordings["later"])
    path, key = SPOILT[name]
    inner = planted(found, *path)
    if name == "a method has others":
        inner[key]["parameters"] = ["layer"]
    elif name == "a method is new":
        inner[key] = {"parameters": ["request"], "optional": [], "abstract": True}
    elif isinstance(inner, list):
        inner.remove(key)
    else:
        del inner[key]
    assert any(key in told for told in contradictions(found))


def test_a_conversation_is_recorded_and_read_as_the_relay_reads_it(tmp_path: Path) -> None:
    install(tmp_path, "earlier")
    with served(tmp_path) as fake:
        found = run(tmp_path, "--url", fake.url.removesuffix("/v1"), "--model", "m")
        assert contradictions(found) == []
        assert found["conversation"]["health"]["status"] == 200
        asked = [seen["target"] for seen in fake.seen() if seen["method"] == "POST"]
        assert set(asked) == {"/v1/chat/completions", "/v1/completions"}
        fake.fail("no_salts", "other_prompt", "no_done")
        told = contradictions(run(tmp_path, "--url", fake.url.removesuffix("/v1")))
    assert any(one.startswith("salts: ") for one in told)
    assert any(one.startswith("token_ids: ") for one in told)
    assert any(one.startswith("chat_stream: ") for one in told)


def test_it_needs_no_more_than_python_3_10() -> None:
    source = Path(record.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 10))
    modules = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert {str(name).partition(".")[0] for name in modules} <= sys.stdlib_module_names
    assert REPO in Path(record.__file__).parents
