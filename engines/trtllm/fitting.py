"""Whether a checkpoint can be served as it is to be: by these GPUs, so shared out, with this cache.

What isn't on this machine isn't looked at: its own machine does that when it is launched there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from engines.build import preflight
from engines.build.described import rope_faults
from engines.build.plan import GROUPS
from engines.build.shape import Shape, UnsuitableModel, read_json, shape_of
from engines.families import FAMILIES
from engines.trtllm import gpus, harmony
from engines.trtllm.checkpoint import BadCheckpoint, Checkpoint, read
from engines.trtllm.phases import Phase
from engines.trtllm.settings import Found
from engines.trtllm.versions import Version

Faults = Iterator[tuple[str, str]]

AWQ = "W4A16_AWQ"
MOST_TOLD = 5  # faults of one checkpoint: a wrong build has the same one in every layer


def faults(trt: Found, phases: Sequence[Phase], version: Version | None) -> Faults:
    """What is wrong with the checkpoints, or with them and the settings, as (key, reason)."""
    kept: list[tuple[Phase, str]] = []
    for phase in phases:
        if not phase.path or not is_here(phase.path):
            yield from _elsewhere(trt, phase)
            kept.append((phase, phase.kv_dtype or ""))
            continue
        try:
            found = read(folder := Path(phase.path))
        except BadCheckpoint as error:
            yield phase.path_key, str(error)
            continue
        yield from _gpu_faults(trt, phase, found)
        yield from _kv_faults(phase, found, version)
        yield from _share_faults(phase, found)
        yield from _length_faults(trt, found)
        yield from _guard_faults(trt, phase, found)
        yield from _content_faults(phase, folder, found, version)
        kv = found.own_kv if phase.kv_dtype == "auto" else phase.kv_dtype
        kept.append((phase, kv or ""))
    yield from _mixed(kept)


def is_here(path: str) -> bool:
    """Whether a checkpoint lies on this machine; a path that can't be one doesn't."""
    return os.path.exists(path)


def _elsewhere(trt: Found, phase: Phase) -> Faults:
    """Weights that lie with a server elsewhere are its own to look at; a launch needs them here."""
    is_launched = bool(trt.python or trt.image)
    if is_launched and phase.path == "":
        yield phase.path_key, "is missing: the checkpoint that is launched, a folder"
    elif is_launched and phase.path:
        yield (
            phase.path_key,
            (
                f"there is no folder {phase.path}: put the checkpoint there, or leave `python` and "
                "`image` to the configuration of the machine that launches it"
            ),
        )
    if trt.gpu is not None and phase.kv_dtype in gpus.KV:
        yield from _kv_gpu_faults(trt, phase, phase.kv_dtype)


def _gpu_faults(trt: Found, phase: Phase, found: Checkpoint) -> Faults:
    able = gpus.WEIGHTS.get(found.weights)
    if able is None:
        known = ", ".join(filter(None, gpus.WEIGHTS))
        yield phase.path_key, f"weights in {found.weights!r}: which GPU takes these? Known: {known}"
    elif trt.gpu is not None and trt.gpu not in able:
        told = f"{trt.gpu} has no kernels for weights in {found.weights}, only {gpus.named(able)}"
        yield "trt.gpu", f"{told}: another checkpoint is needed"
    if found.weights.startswith("W4") and found.group_size not in GROUPS:
        told = f"groups of {found.group_size or '?'}: TensorRT-LLM's kernels take 64 or 128"
        yield phase.path_key, told
    if trt.gpu is not None:
        yield from _kv_gpu_faults(trt, phase, _kv(phase, found))


def _kv_gpu_faults(trt: Found, phase: Phase, kv: str) -> Faults:
    able = gpus.KV.get(kv, gpus.ALL)
    if trt.gpu not in able:
        yield phase.key("kv_dtype"), f"{trt.gpu} has no cache in {kv}, only {gpus.named(able)}"


def _kv(phase: Phase, found: Checkpoint) -> str:
    return (found.own_kv if phase.kv_dtype == "auto" else phase.kv_dtype) or ""


def _kv_faults(phase: Phase, found: Checkpoint, version: Version | None) -> Faults:
    wanted, own, key = phase.kv_dtype, found.own_kv, phase.key("kv_dtype")
    if not own and wanted == "auto":
        yield phase.path_key, f"a cache in {found.kv!r} isn't known; known: FP8, NVFP4"
    elif wanted == "bf16" and own not in ("bf16", "fp8"):  # of fp8: see `bf16_view`
        told = (
            f"the checkpoint says {found.kv}, which can't be taken back: build one with --kv bf16"
        )
        yield key, told
    elif wanted == "nvfp4" != own:
        yield key, "needs scales that the checkpoint lacks: it has to be quantised for it"
    elif wanted == "fp8" and own not in ("bf16", "fp8") and not (version and version.overrides_kv):
        yield key, f"the checkpoint says {found.kv}, and {version} takes no other word"
    elif wanted == "fp8" and own == "bf16" and not found.fits_fp8:
        told = (
            "TensorRT-LLM stores FP8 at scale 1, which ends at 448, and this model's K or V don't"
        )
        yield key, f"{told} (build.json): leave it at bf16"


def _share_faults(phase: Phase, found: Checkpoint) -> Faults:
    """How it is shared out over GPUs. What config.json doesn't tell isn't judged."""
    heads, kv_heads = found.num_heads, found.num_kv_heads
    tensor, experts = phase.tensor_parallel, phase.expert_parallel
    if tensor and heads and heads % tensor:
        yield phase.key("tensor_parallel"), f"{heads} attention heads can't be shared by {tensor}"
    elif tensor and kv_heads and kv_heads % tensor and tensor % kv_heads:
        yield phase.key("tensor_parallel"), f"{kv_heads} heads of K and V can't be by {tensor}"
    if phase.pipeline_parallel and found.num_layers and phase.pipeline_parallel > found.num_layers:
        yield phase.key("pipeline_parallel"), f"there are only {found.num_layers} layers"
    if experts and experts > 1 and not found.num_experts:
        yield phase.key("expert_parallel"), "the model has no experts"
    elif experts and found.num_experts % experts:
        yield (
            phase.key("expert_parallel"),
            f"doesn't divide the model's {found.num_experts} experts",
        )


def _length_faults(trt: Found, found: Checkpoint) -> Faults:
    if trt.max_seq_len and found.max_context and trt.max_seq_len > found.max_context:
        yield "trt.max_seq_len", f"the model's context ends at {found.max_context}"


def _guard_faults(trt: Found, phase: Phase, found: Checkpoint) -> Faults:
    """Models whose blocks the guard can't follow, or whose requests carry no salt."""
    if found.family == harmony.FAMILY and trt.block_reuse:
        told = "TensorRT-LLM passes no salt on for this family: one tenant would be given another's"
        yield "trt.block_reuse", f"{told} prefixes; say false"
    if trt.guard is not True:
        return
    if found.family == harmony.FAMILY:
        yield "trt.guard", "tells tenants apart by salts, which this family's requests don't carry"
    elif found.has_window:
        yield (
            "trt.guard",
            "can't follow a model with a sliding window: blocks are replaced in place",
        )
    elif found.has_state:
        yield "trt.guard", "can't follow a model with a state: TensorRT-LLM takes no connector then"


def _content_faults(
    phase: Phase, folder: Path, found: Checkpoint, version: Version | None
) -> Faults:
    """What its tensors and its rope say, where it is of a kind that can be looked over."""
    key = phase.path_key
    if found.weights == AWQ and found.family not in FAMILIES:
        known = ", ".join(FAMILIES)
        yield (
            key,
            f"4-bit weights of {found.family!r} can't be looked over (those of {known} can), and "
            "TensorRT-LLM loads a scale that isn't folded in without a word, and wrong",
        )
    elif found.family in FAMILIES and found.weights in ("", AWQ) and found.kv in ("", "FP8"):
        if found.is_described:
            told = preflight.faults(folder, is_quick=True)
            yield from ((key, str(fault)) for fault in islice(told, MOST_TOLD))
            if len(told) > MOST_TOLD:
                yield key, f"and {len(told) - MOST_TOLD} more: bulkhead build --check {folder}"
        elif version is not None and not version.reads_rope_parameters:
            yield from _rope(key, folder)
        yield from _group_faults(phase, folder, found)


def _rope(key: str, folder: Path) -> Faults:
    try:
        told = list(rope_faults(read_json(folder / "config.json"), shape_of(folder)))
    except UnsuitableModel:
        return  # not one of ours to judge
    yield from ((key, str(fault)) for fault in told)


def _group_faults(phase: Phase, folder: Path, found: Checkpoint) -> Faults:
    """Each GPU's part of a matrix that is cut across its inputs has whole groups."""
    ranks = phase.tensor_parallel or 1
    if ranks == 1 or found.weights != AWQ or not found.group_size:
        return
    try:
        shape: Shape = shape_of(folder, quantised=True)
    except UnsuitableModel:
        return  # told already
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        columns = shape.linears()[name][1]
        if columns % (ranks * found.group_size):
            told = f"{name}'s {columns} inputs, shared by {ranks}, don't come in whole groups"
            yield phase.key("tensor_parallel"), f"{told} of {found.group_size}"


def _mixed(kept: Sequence[tuple[Phase, str]]) -> Faults:
    """KV that one phase writes and the other reads is in the same numbers."""
    if len(kept) != 2 or not all(kv for _, kv in kept):
        return
    (context, ours), (generation, theirs) = kept
    if ours != theirs and "auto" not in (ours, theirs):
        yield (
            generation.key("kv_dtype"),
            f"`context` writes {ours} and `generation` reads {theirs}: TensorRT-LLM moves no KV "
            "between caches that differ",
        )
    elif ours != theirs or (ours == "auto" and context.path != generation.path):
        yield (
            generation.key("kv_dtype"),
            "which cache a checkpoint elsewhere says isn't known here, and both must be in the "
            "same: say it, for both",
        )
