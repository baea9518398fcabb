"""The command lines that start servers of vLLM and SGLang as a model's configuration has them.

Flags are those of vLLM 0.32 and SGLang 0.5.23. Nothing secret is in them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from runtime.config.models import ModelSettings

Phase = Literal["", "prefill", "decode"]
KINDS = ("vllm", "sglang")
PORTS = {"http": 80, "https": 443}  # where the gateway calls if a URL names none
FP8 = ("--kv-cache-dtype", "fp8_e4m3")
CONNECTORS = {"prefill": "kv_producer", "decode": "kv_consumer"}  # roles, as vLLM names them


@dataclass(frozen=True, slots=True)
class Wish:
    """What the configuration doesn't say of a server."""

    weights: str = ""  # a folder; "": the model's name there, which it downloads
    kv: Literal["fp8", "auto"] = "fp8"
    tensor_parallel: int = 1
    phase: Phase = ""  # of a pair that prompts and answers are split between


def lines(model: ModelSettings, wish: Wish) -> Iterator[str]:
    """As a shell reads them: one command for each of the model's servers, and what to know."""
    make = vllm if model.kind == "vllm" else sglang
    yield f"# {model.id}: {model.kind}; cached prefixes: {model.cache or 'salted'}."
    if model.api_key_secret:
        yield f"# It asks for the key in the secret {model.api_key_secret}: " + (
            "put it into VLLM_API_KEY."
            if model.kind == "vllm"
            else "add --api-key, which others on its machine can read."
        )
    if wish.phase:
        yield "# The gateway calls what routes between prefill and decode servers. Nobody else may"
        yield "# reach these, or send `kv_transfer_params` or a `bootstrap_room`: they name KV."
    for server in model.attached:
        parts = urlsplit(server.url)
        room = server.max_in_flight or model.max_in_flight
        at = ("--host", parts.hostname or "", "--port", str(parts.port or PORTS[parts.scheme]))
        yield shlex.join([*make(model, wish, room), *at])


def vllm(model: ModelSettings, wish: Wish, room: int) -> list[str]:
    """Its command, without where it listens. `room`: requests at once."""
    name = model.upstream_model or model.id
    words = ["vllm", "serve", wish.weights or name, "--served-model-name", name]
    words += FP8 if wish.kv == "fp8" else ()
    if model.cache == "off":
        words += ["--no-enable-prefix-caching"]
    else:
        # A hash that nobody can make collide; and the cached tokens are told, which are billed.
        words += ["--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256"]
        words += ["--enable-prompt-tokens-details"]
    words += ["--max-num-seqs", str(room), "--tensor-parallel-size", str(wish.tensor_parallel)]
    if wish.phase:
        transfer = {"kv_connector": "NixlConnector", "kv_role": CONNECTORS[wish.phase]}
        words += ["--kv-transfer-config", json.dumps(transfer)]
    return words


def sglang(model: ModelSettings, wish: Wish, room: int) -> list[str]:
    """Its command, without where it listens. `room`: requests at once."""
    name = model.upstream_model or model.id
    words = ["python3", "-m", "sglang.launch_server", "--model-path", wish.weights or name]
    words += ["--served-model-name", name]
    words += FP8 if wish.kv == "fp8" else ()
    words += ["--disable-radix-cache"] if model.cache == "off" else ["--enable-cache-report"]
    words += ["--enable-metrics", "--max-running-requests", str(room)]
    words += ["--tensor-parallel-size", str(wish.tensor_parallel)]
    if wish.phase:
        words += ["--disaggregation-mode", wish.phase, "--disaggregation-transfer-backend", "nixl"]
    return words
