"""Which weights and which KV pages are compared, each an engine with options of its own.

Told folders; the first one whose weights aren't quantized is the base, over BF16 pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError, page_bytes
from engines.embedded.evaluation.speed import DECODED, MOST_PROMPT, REQUESTS
from engines.embedded.quantization import Quantization

KV = {"bf16": "bfloat16", "fp8": "fp8_e4m3"}
BASE_KV = "bf16"
# Options that are ours to set; drafts gain by what texts repeat, whatever the weights.
UNSUITED = {"public_prompts", "kv_memory_bytes", "kv_dtype", "speculation"}
ROUNDING = {"activations", "lm_head"}  # and these are none of weights in BF16


@dataclass(frozen=True, slots=True)
class Choice:
    """Weights over pages."""

    weights: str
    kv: str
    folder: Path
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """For people, and unlike any other's."""
        return f"{self.weights} weights, {self.kv} KV"

    @property
    def weight_bytes(self) -> int:
        """Of its files."""
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))


def choices(folders: Sequence[Path], options: Mapping[str, Any], longest: int) -> list[Choice]:
    """The base, then all others. `longest`: tokens of the longest text.

    Raises UnsupportedError: a folder can't be served, has another vocabulary, or none is a base.
    """
    folders = list(dict.fromkeys(folders))
    models = {folder: ModelConfig.from_folder(folder) for folder in folders}
    kinds = {folder: weights_of(folder) for folder in folders}
    base = next((folder for folder in folders if kinds[folder] == "bf16"), None)
    if base is None:
        raise UnsupportedError(
            "none of the folders holds BF16 weights to compare with; name theirs with --against"
        )
    for folder, model in models.items():
        if model.vocab_size != models[base].vocab_size:
            raise UnsupportedError(f"{folder} has another vocabulary than {base}")
    ordered = [base, *(folder for folder in folders if folder != base)]
    names = _names(ordered, kinds)
    found = []
    for folder in ordered:
        unsuited = UNSUITED | (ROUNDING if kinds[folder] == "bf16" else set())
        for kv in KV:
            kept = {name: value for name, value in options.items() if name not in unsuited}
            sized = _options(kept, kv, models[folder], longest)
            found.append(Choice(names[folder], kv, folder, sized))
    return found


def weights_of(folder: Path) -> str:
    """What kind they are, in a word or two."""
    found = Quantization.of_folder(folder)
    return f"int4 g{found.group_size}" if found and found.weights else "bf16"


def max_text(folder: Path, options: Mapping[str, Any]) -> int:
    """The most tokens that a text may have."""
    engine = EngineConfig.from_options(options)
    return engine.max_context or ModelConfig.from_folder(folder).max_context


def _names(folders: Sequence[Path], kinds: Mapping[Path, str]) -> dict[Path, str]:
    """A folder's kind; with its name where there are several of a kind, or else where it is."""
    found: dict[Path, str] = {}
    for folder in folders:
        alike = [other for other in folders if kinds[other] == kinds[folder]]
        names = [other.name for other in alike]
        if len(alike) == 1:
            found[folder] = kinds[folder]
        elif names.count(folder.name) == 1:
            found[folder] = f"{kinds[folder]} {folder.name}"
        else:
            found[folder] = f"{kinds[folder]} {folder}"
    return found


def _options(kept: dict[str, Any], kv: str, model: ModelConfig, longest: int) -> dict[str, Any]:
    if kv == BASE_KV:
        kept.pop("kv_scales", None)
    most = max(REQUESTS)
    budget = kept.get("max_batch_tokens", EngineConfig().max_batch_tokens)
    options = kept | {
        "dtype": "bfloat16",
        "kv_dtype": KV[kv],
        "prefix_cache": False,
        "max_running": most,
        "max_batch_tokens": max(most, budget),
    }
    engine = EngineConfig.from_options(options)
    pages = pages_of(max(longest, 1), engine) + most * pages_of(MOST_PROMPT + DECODED, engine)
    return options | {"kv_memory_bytes": (pages + 2 + most) * page_bytes(model, engine)}


def pages_of(tokens: int, engine: EngineConfig) -> int:
    """Pages that hold so many tokens, and the one after."""
    return tokens // engine.page_size + 1
