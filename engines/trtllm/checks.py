"""What is wrong with a model's settings for TensorRT-LLM, each with its reason. Quick; no torch.

A setting that had a fault of its own is None here, and no rule speaks of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import astuple

from engines.trtllm import extra, fitting, guarded, manifest, phases, places, versions
from engines.trtllm.phases import Phase
from engines.trtllm.render import Unrenderable, serve_settings
from engines.trtllm.roles import roles
from engines.trtllm.settings import Found, TrtSettings
from engines.trtllm.versions import Version
from engines.trtllm.yaml_text import Key, yaml_text

Faults = Iterator[tuple[str, str]]


def faults(settings: Mapping[str, Any]) -> Faults:
    """Everything wrong with one model's settings, as (key, reason)."""
    found = dict.fromkeys(_faults(settings))  # two phases may have the same one
    yield from found or _unrenderable(settings)


def _faults(settings: Mapping[str, Any]) -> Faults:
    trt: Found = settings.get("trt", TrtSettings())
    yield from _server_faults(settings)
    if trt is None:
        return
    cache = settings.get("cache", "")
    version = None
    if trt.version is not None:
        try:
            version = versions.parsed(trt.version)
        except ValueError as error:
            yield "trt.version", str(error)
    yield from _version_faults(trt, version)
    yield from _size_faults(trt)
    if trt.python and trt.image:
        yield "trt.image", "a launch takes `python` or `image`, not both"
    if cache == "off" and trt.block_reuse is True:
        yield "cache", '"off" says that nothing is reused there, and `block_reuse` is true'
    yield from guarded.faults(trt, cache)
    yield from guarded.url_faults(trt, version, settings.get("servers", ()))
    contradictions = dict(extra.faults(trt, cache))
    yield from contradictions.items()
    yield from _unknown_faults(trt, version, contradictions)
    yield from phases.faults(trt)
    apart = phases.phases(trt, settings.get("path", ""))
    for phase in apart:
        yield from _share_faults(phase)
    yield from fitting.faults(trt, apart, version)


def _unrenderable(settings: Mapping[str, Any]) -> Faults:
    """What `extra` and the rest say of one key, where no rule knew of it."""
    trt: Found = settings.get("trt", TrtSettings())
    tables = (trt, trt and trt.context, trt and trt.generation)
    if any(table is None or None in astuple(table) for table in tables):
        return
    try:
        for role in roles(settings.get("path") or "", trt):
            serve_settings(trt, role)
    except Unrenderable as fault:
        yield "trt.extra", str(fault).removeprefix("extra.")


def _server_faults(settings: Mapping[str, Any]) -> Faults:
    """Their form is checked where that of every attached server is."""
    urls = [("url", settings.get("url"))]
    for i, server in enumerate(settings.get("servers") or ()):
        urls.append((f"servers[{i}].url", server and server.url))
    for key, url in urls:
        if url and (told := places.url_fault(url)):
            yield key, told


def _version_faults(trt: Found, version: Version | None) -> Faults:
    """What a release does wrong, and another doesn't."""
    if version is None:
        return
    if version < versions.FLOOR:
        yield (
            "trt.version",
            f"{version} shows requests each other's cached blocks: {versions.FLOOR} is the first "
            "release with the fixes",
        )
        return
    if trt.overlap_scheduler is True and not version.has_safe_overlap:
        yield (
            "trt.overlap_scheduler",
            f"a step of {version} may read the blocks of another step's requests with it (PR "
            f"15546): {versions.OVERLAP} is the first release that surely doesn't",
        )
    elif trt.overlap_scheduler is True and trt.kv_manager == "v2":
        yield (
            "trt.overlap_scheduler",
            "a step may read the blocks of another step's requests with it and `kv_manager` "
            '"v2" (PR 16088), in every release that is known',
        )
    if trt.chunked_prefill is True and trt.block_reuse is True and not version.has_safe_chunks:
        yield (
            "trt.chunked_prefill",
            f"{version} offers blocks for reuse with it before they are computed (PR 12673): "
            f"{versions.FLOOR} doesn't, nor do releases from {versions.CHUNKS} on",
        )


def _unknown_faults(trt: Found, version: Version | None, told: Mapping[str, str]) -> Faults:
    """Keys that end the release as it starts, and values that no YAML of ours can hold."""
    for key, value in (trt.extra or {}).items():
        try:
            yaml_text((Key(key, value),))
        except (TypeError, ValueError) as error:
            yield f"trt.extra.{key}", str(error)
    if version is None or not trt.extra:
        return
    for path, reason in manifest.refused(trt.version, trt.extra):
        if not any(f"trt.extra.{path}.".startswith(f"{key}.") for key in told):
            yield f"trt.extra.{path}", reason


def _size_faults(trt: Found) -> Faults:
    block = trt.tokens_per_block
    if block is not None and block & (block - 1):
        yield "trt.tokens_per_block", f"expected a power of 2, such as 32, found {block}"
    longest, most = trt.max_seq_len, trt.max_num_tokens
    if longest and most and trt.chunked_prefill is False and most < longest:
        yield (
            "trt.max_num_tokens",
            f"a prompt may have {longest} tokens (`max_seq_len`) and is computed in one step: one "
            "that is longer than a step makes TensorRT-LLM hang (issue 4441)",
        )
    if trt.max_seq_len and block and trt.max_seq_len < block:
        yield "trt.max_seq_len", f"is less than a block, {block}"


def _share_faults(phase: Phase) -> Faults:
    """How many GPUs share what, whatever the model."""
    tensor, experts = phase.tensor_parallel, phase.expert_parallel
    if tensor and experts and tensor % experts:
        told = (
            f"a layer is shared by {tensor} GPUs (`tensor_parallel`), its experts by some of them"
        )
        yield phase.key("expert_parallel"), f"{told}: it must divide {tensor}"
    batch, tokens = phase.max_batch_size, phase.max_num_tokens
    if batch and tokens and batch > tokens:
        told = f"each of {batch} requests needs a token of a step, which has {tokens}"
        yield phase.key("max_batch_size"), f"{told} (`max_num_tokens`)"
