"""What each generation of GPUs can compute with: TensorRT-LLM's hardware matrix, as documented."""

from __future__ import annotations

ALL = frozenset({"ampere", "ada", "hopper", "blackwell"})
# By the names that a checkpoint's hf_quant_config.json has. "": plain BF16 or F16.
WEIGHTS: dict[str, frozenset[str]] = {
    "": ALL,
    "W4A16_AWQ": ALL - {"blackwell"},
    "W4A16_GPTQ": ALL - {"blackwell"},
    "W4A8_AWQ": frozenset({"ada", "hopper"}),
    "FP8": ALL - {"ampere"},
    "FP8_PER_CHANNEL_PER_TOKEN": frozenset({"hopper"}),
    "FP8_BLOCK_SCALES": frozenset({"hopper", "blackwell"}),
    "NVFP4": frozenset({"blackwell"}),
    "mxfp4": frozenset({"hopper", "blackwell"}),
    "MIXED_PRECISION": ALL,  # of which numbers, only TensorRT-LLM reads
}
KV: dict[str, frozenset[str]] = {"bf16": ALL, "fp8": ALL, "nvfp4": frozenset({"blackwell"})}


def named(gpus: frozenset[str]) -> str:
    """`ada, hopper`, oldest first."""
    return ", ".join(gpu for gpu in ("ampere", "ada", "hopper", "blackwell") if gpu in gpus)
