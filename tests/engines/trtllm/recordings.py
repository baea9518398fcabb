"""A recording of a release, and all that we render, send, load and read, held to it.

`contradictions` says what doesn't fit, a line each. A recording is made by `engines.trtllm.record`
where TensorRT-LLM is installed; here it is also made of a stand-in, so that what holds is tried.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engines.trtllm
from engines.trtllm import schema
from engines.trtllm.manifest import has
from engines.trtllm.render import serve_settings
from engines.trtllm.roles import roles
from engines.trtllm.settings import TrtServers, TrtSettings
from gateway.relay.extra_fields import FIELDS, as_chat
from runtime.trt.token import Asker
from tests.engines.trtllm.connector_wheels import connectors, methods
from tests.engines.trtllm.conversation import unread

INSIDE = Path(engines.trtllm.__file__).parent
RECORDED = INSIDE / "recorded"
GUARD_URL = "http://gpu:9000"
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"guard": False},
    "guarded": {"guard_url": GUARD_URL, "kv_dtype": "fp8", "max_batch_size": 64},
    "shared": {"guard_url": GUARD_URL, "tensor_parallel": 4, "cuda_graphs": False},
    "apart": {
        "guard": False,
        "context": TrtServers(urls=("ctx:8001",), max_num_tokens=8192),
        "generation": TrtServers(urls=("gen:8002",), router="kv_cache_aware"),
    },
}
CHAT: dict[str, Any] = {
    "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5,
    "temperature": 0.5, "top_p": 0.5, "seed": 3, "stop": ["x"], "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "cache_salt": "s" * 64,
}  # fmt: skip
READ_OF_DATA = {
    "SchedulerOutput": ("new_requests", "cached_requests"),
    "RequestData": (
        *("request_id", "new_tokens", "new_block_ids", "computed_position"),
        "num_scheduled_tokens",
    ),
}
READ_OF_REQUEST = ("request_id", "context_current_position", "get_tokens")
READ_BY_HOOK = ("request_id", "text_diff", "token_ids_diff")


def real() -> list[Path]:
    """The recordings that were made where TensorRT-LLM is."""
    return sorted(RECORDED.glob("*.json"))


def contradictions(found: dict[str, Any]) -> list[str]:
    """What of ours a release wouldn't take, or wouldn't be."""
    told = [*_settings(found), *_requests(found), *_connectors(found), *_objects(found)]
    said = found.get("conversation")
    return [*told, *_hook(found), *(unread(said) if said else ())]


def _settings(found: dict[str, Any]) -> Iterator[str]:
    for name, settings in SETTINGS.items():
        trt = TrtSettings(version=found["version"], **settings)
        for role in roles("/models/m", trt):
            told = serve_settings(trt, role)
            for path, why in schema.faults(told, found["schemas"]["TorchLlmArgs"]):
                yield f"{name}.{role.phase}.yaml: {path} {why}"


def _requests(found: dict[str, Any]) -> Iterator[str]:
    assert CHAT.keys() == FIELDS - {"prompt"}
    ids = {"prompt": "hi"} | CHAT
    as_chat(ids, [1, 2, 3])
    plain = {"prompt": "hi"} | {name: CHAT[name] for name in CHAT.keys() - {"messages"}}
    del plain["cache_salt"]  # no plain prompt is sent with one
    asker = Asker("http://127.0.0.1:1/v1", "m", "salt")
    bodies = {"a chat": CHAT, "a prompt of token ids": ids, "a launcher's ask": asker.body}
    schemas = found["schemas"]
    for what, body in bodies.items():
        for path, why in schema.faults(body, schemas["ChatCompletionRequest"]):
            yield f"{what}: {path} {why}"
    for path, why in schema.faults(plain, schemas["CompletionRequest"]):
        yield f"a plain prompt: {path} {why}"
    if "cache_salt" in schemas["CompletionRequest"].get("properties", {}):
        yield "a plain prompt can be salted now: it needn't be sent as a chat"


def _connectors(found: dict[str, Any]) -> Iterator[str]:
    tree = ast.parse((INSIDE / "guard.py").read_text())
    ours = {c.bases[0].id: methods(c) for c in connectors(tree)}  # type: ignore[attr-defined]
    for kind, interface in found["interfaces"].items():
        for name, shape in interface.items() if kind in ours else ():
            mine, theirs = ours[kind].get(name), shape["parameters"]
            if mine is None and shape["abstract"]:
                yield f"{kind}.{name} isn't implemented"
            elif mine is not None and name != "cancel_load" and mine != theirs:
                yield f"{kind}.{name} takes {theirs}, ours {mine}"


def _objects(found: dict[str, Any]) -> Iterator[str]:
    for kind, names in READ_OF_DATA.items():
        for name in names:
            if name not in found["data"][kind]:
                yield f"{kind} has no {name}"
    for name in READ_OF_REQUEST:
        if name not in found["names"]["LlmRequest"]:
            yield f"LlmRequest has no {name}"
    if "prepare" not in found["interfaces"].get("TrtllmAttentionMetadata", {}):
        yield "attention's metadata has no prepare: the device's table isn't checked"


def _hook(found: dict[str, Any]) -> Iterator[str]:
    if has(found["version"], "post_processor_hook"):
        for name in READ_BY_HOOK:
            if name not in found["data"].get("PostProcessorHookChunk", ()):
                yield f"PostProcessorHookChunk has no {name}"
        for name in ("emit", "terminate"):
            if len(found["functions"].get(name, {}).get("parameters", ())) != 1:
                yield f"the hook's {name} doesn't take one thing"
