"""What a release of TensorRT-LLM really takes, written down where it is installed.

    python record.py [--out FOLDER] [--url http://127.0.0.1:8000 --model NAME]

A script of its own, standard library alone, for TensorRT-LLM's Python on a machine with a GPU. It
writes FOLDER/<version>.json: the JSON schemas of its settings and of its requests, the interface of
its connectors and of its hook, and, where a server runs at the URL, what that answers to a few
requests of ours. Nothing of the machine is in it but the GPU's name. Put into
`engines/trtllm/recorded/` it counts more than what was read in sources, and the tests hold to it
what we render, send and load.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PYEXECUTOR = "tensorrt_llm._torch.pyexecutor"
CONNECTORS = (f"{PYEXECUTOR}.connectors.kv_cache_connector", f"{PYEXECUTOR}.kv_cache_connector")
SETTINGS = ("tensorrt_llm.llmapi.llm_args",)
PROTOCOL = ("tensorrt_llm.serve.openai_protocol",)
HOOK = ("tensorrt_llm.executor.postprocessor_hook",)
REQUEST = (f"{PYEXECUTOR}.llm_request",)
ATTENTION = ("tensorrt_llm._torch.attention_backend.trtllm",)
SCHEMAS = {
    "TorchLlmArgs": SETTINGS,
    "KvCacheConfig": SETTINGS,
    "KvCacheConnectorConfig": SETTINGS,
    "ChatCompletionRequest": PROTOCOL,
    "CompletionRequest": PROTOCOL,
}
INTERFACES = {
    "KvCacheConnectorScheduler": CONNECTORS,
    "KvCacheConnectorWorker": CONNECTORS,
    "TrtllmAttentionMetadata": ATTENTION,
}
DATA = {
    "SchedulerOutput": CONNECTORS,
    "RequestData": CONNECTORS,
    "PostProcessorHookChunk": HOOK,
    "PostProcessorHookVerdict": HOOK,
}
FUNCTIONS = {"emit": HOOK, "terminate": HOOK}
NAMES = {"LlmRequest": REQUEST}  # of which the guard reads attributes
ANSWER_S = 120.0
MAX_TEXT = 64 * 1024
LONG = "A prompt of more than one block of tokens, the same each time it is sent. " * 8
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 8,
    "temperature": 0,
    "cache_salt": "recorder",
}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
SALTED: dict[str, Any] = CHAT | {"messages": [{"role": "user", "content": LONG}]}
# What is asked of a server, in this order: a name, a route, and a body.
ASKED: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("health", "/health", None),
    ("version", "/version", None),
    ("models", "/v1/models", None),
    ("chat", "/v1/chat/completions", CHAT),
    ("chat_stream", "/v1/chat/completions", CHAT | STREAM),
    ("chat_counting", "/v1/chat/completions",
     CHAT | STREAM | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    ("chat_stopped", "/v1/chat/completions", CHAT | {"stop": ["e"], "max_tokens": 32}),
    ("salt_first", "/v1/chat/completions", SALTED | {"cache_salt": "one"}),
    ("salt_again", "/v1/chat/completions", SALTED | {"cache_salt": "one"}),
    ("salt_other", "/v1/chat/completions", SALTED | {"cache_salt": "other"}),
    ("token_ids", "/v1/chat/completions",
     CHAT | {"messages": [], "prompt_token_ids": [1, 2, 3, 4]}),
    ("completion", "/v1/completions", {"prompt": "Say hello.", "max_tokens": 8, "temperature": 0}),
    ("completion_salted", "/v1/completions",
     {"prompt": "Say hello.", "max_tokens": 8, "cache_salt": "recorder"}),
    ("unknown_field", "/v1/chat/completions", CHAT | {"no_such_field": 1}),
    ("wrong_type", "/v1/chat/completions", CHAT | {"max_tokens": "eight"}),
    ("too_long", "/v1/chat/completions", CHAT | {"max_tokens": 10**9}),
)  # fmt: skip


class Absent(Exception):
    """This release has no such thing there. Says where it was looked for."""


def record() -> dict[str, Any]:
    """What this Python's TensorRT-LLM has. What it hasn't, or not there, is in `missing`."""
    missing: dict[str, str] = {}
    return {
        "version": importlib.import_module("tensorrt_llm").__version__,
        "python": ".".join(map(str, sys.version_info[:2])),
        "gpu": _gpu(),
        "modules": _each({"connectors": CONNECTORS}, _module_of, missing),
        "schemas": _each(SCHEMAS, lambda name, paths: _schema(_found(name, paths)), missing),
        "interfaces": _each(INTERFACES, lambda name, paths: _methods(_found(name, paths)), missing),
        "data": _each(DATA, lambda name, paths: _fields(_found(name, paths)), missing),
        "functions": _each(FUNCTIONS, lambda name, paths: _shape(_found(name, paths)), missing),
        "names": _each(NAMES, lambda name, paths: _names(_found(name, paths)), missing),
        "missing": missing,
    }


def converse(url: str, model: str) -> dict[str, Any]:
    """What a server answers to each of our requests."""
    return {name: _ask(url.rstrip("/"), path, body, model) for name, path, body in ASKED}


def _each(wanted: Mapping[str, Any], read: Any, missing: dict[str, str]) -> dict[str, Any]:
    found = {}
    for name, paths in wanted.items():
        try:
            found[name] = read(name, paths)
        except Exception as fault:  # noqa: BLE001 - whatever a release does: the rest is wanted
            missing[name] = f"{type(fault).__name__}: {fault}"[:400]
    return found


def _module_of(_: str, paths: Iterable[str]) -> str:
    return str(_first(paths).__name__)


def _first(paths: Iterable[str]) -> Any:
    """The first of these modules that there is. Raises Absent."""
    for path in paths:
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError:
            continue
    raise Absent(f"none of {', '.join(paths)}")


def _found(name: str, paths: Iterable[str]) -> Any:
    return getattr(_first(paths), name)


def _schema(model: Any) -> Any:
    """Of a pydantic model. What has no schema, such as a class of theirs, may be anything."""
    try:
        return model.model_json_schema()
    except Exception:  # noqa: BLE001 - pydantic's, which isn't imported by us
        return model.model_json_schema(schema_generator=_lenient())


def _lenient() -> type:
    generator = importlib.import_module("pydantic.json_schema").GenerateJsonSchema

    def anything(*_: object) -> dict[str, Any]:
        return {}

    return type("Lenient", (generator,), {"handle_invalid_for_json_schema": anything})


def _methods(kind: type) -> dict[str, Any]:
    """By name: parameters but `self`, and whether it has to be implemented."""
    found = {}
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("__") or name == "__init__":
            shape = _shape(member)
            shape["parameters"] = shape["parameters"][1:]
            found[name] = shape
    return found


def _shape(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {
        "parameters": [one.name for one in parameters],
        "optional": [one.name for one in parameters if one.default is not one.empty],
        "abstract": bool(getattr(function, "__isabstractmethod__", False)),
    }


def _fields(kind: type) -> list[str]:
    """Of a data class, or of whatever else names its fields."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(inspect.signature(kind).parameters)


def _names(kind: type) -> list[str]:
    """Attributes that can be seen of a class, and those that its `__init__` sets."""
    code = getattr(vars(kind).get("__init__"), "__code__", None)
    assigned = code.co_names if code else ()
    return sorted({name for name in (*dir(kind), *assigned) if not name.startswith("_")})


def _gpu() -> str:
    try:
        return str(importlib.import_module("torch").cuda.get_device_name(0))
    except Exception:  # noqa: BLE001 - it is only told
        return ""


def _ask(url: str, path: str, body: dict[str, Any] | None, model: str) -> dict[str, Any]:
    data = None if body is None else json.dumps({"model": model} | body).encode()
    headers = {"content-type": "application/json"} if data else {}
    request = urllib.request.Request(url + path, data=data, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310
            status, kind, text = answer.status, answer.headers.get_content_type(), answer.read()
    except urllib.error.HTTPError as fault:
        status, kind, text = fault.code, fault.headers.get_content_type(), fault.read()
    told = text[:MAX_TEXT].decode("utf-8", "replace")
    return {"path": path, "body": body, "status": status, "content_type": kind, "text": told}


def main(arguments: list[str]) -> Path:
    """Write the recording: its path."""
    parser = argparse.ArgumentParser(description="Record what this TensorRT-LLM takes.")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--url", default="", help="Of a trtllm-serve that runs, without /v1.")
    parser.add_argument("--model", default="model", help="Its model's name.")
    options = parser.parse_args(arguments)
    found = record()
    if options.url:
        found["conversation"] = converse(options.url, options.model)
    path: Path = options.out / f"{found['version']}.json"
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{main(sys.argv[1:])}\n")
