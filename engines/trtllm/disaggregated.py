"""The front of a model whose prompts are computed apart from its answers, as the YAML it reads."""

from __future__ import annotations

from typing import Any

from engines.trtllm.roles import PHASES, Role, roles
from engines.trtllm.settings import TrtSettings
from engines.trtllm.yaml_text import Key, Keys, plain, yaml_text

TOKENS_PER_BLOCK = 32  # what the front's router takes for granted


def disaggregated_yaml(model: str, path: str, trt: TrtSettings, host: str, port: int) -> str:
    """The whole file, byte for byte the same for the same settings. It listens at host and port."""
    head = (
        f"{model}: the front of its context and generation servers, TensorRT-LLM {trt.version}.\n"
        "Written by `bulkhead trt render`. The gateway calls the front alone; it and its servers\n"
        "ask nobody for a key and speak plain HTTP, so nobody else may reach them."
    )
    return yaml_text(front_keys(path, trt, host, port), head)


def front_settings(path: str, trt: TrtSettings, host: str, port: int) -> dict[str, Any]:
    """What the file says, as the front reads it."""
    found: dict[str, Any] = plain(front_keys(path, trt, host, port))
    return found


def front_keys(path: str, trt: TrtSettings, host: str, port: int) -> Keys:
    """Its keys in order."""
    found = {role.phase: role for role in roles(path, trt)}
    return (
        Key("hostname", host),
        Key("port", port),
        *(Key(f"{phase}_servers", _servers(trt, found[phase])) for phase in PHASES),
    )


def _servers(trt: TrtSettings, role: Role) -> Keys:
    keys = (Key("num_instances", len(role.urls)), Key("urls", list(role.urls)))
    if not role.router:
        return keys
    router = [Key("type", role.router)]
    if role.router == "kv_cache_aware" and trt.tokens_per_block != TOKENS_PER_BLOCK:
        why = "It finds no cached block unless it cuts prompts as the servers do."
        router.append(Key("tokens_per_block", trt.tokens_per_block, why))
    return (*keys, Key("router", tuple(router), "Which of them gets a request."))
