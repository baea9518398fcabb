"""What is served and how: ModelConfig from a model folder, EngineConfig from an engine's options.

Both are frozen and checked once, here; every fault is an UnsupportedError that names the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from engines import families, regular
from engines.api import EngineError
from engines.build.sources import SOURCES
from engines.families import FAMILIES, RopeScaling

DTYPES = {"bfloat16": 2, "float32": 4}  # bytes an element
KV_DTYPES = DTYPES | {"fp8_e4m3": 1}
KV_SCALES = ("unit", "checkpoint")
AUTO = "auto"  # until `settled` has seen the model and this installation
BACKENDS = ("native", "torch")
INTEGRITY = ("enforce", "observe", "off")


class UnsupportedError(EngineError):
    """This model or these options can't be served: nothing was started."""

    code = "unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(families.Sizes):
    """The shape of a model, of any of families.FAMILIES."""

    eos_token_ids: frozenset[int]
    qkv_bias: bool = False  # q, k and v have a bias
    qk_norm: bool = False  # each head of q and k is normalised before it turns
    rope_scaling: RopeScaling | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read the folder's JSON files. Raises UnsupportedError for another family."""
        config = _read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        eos = _read_json(generation).get("eos_token_id") if generation.is_file() else None
        try:
            if wrong := list(families.faults(config)):
                raise UnsupportedError(f"{folder}/config.json: {'; '.join(wrong)}")
            return cls._from_json(config, config.get("eos_token_id") if eos is None else eos)
        except families.MALFORMED as error:
            raise UnsupportedError(f"{folder}/config.json: missing or malformed {error}") from error

    @classmethod
    def _from_json(cls, config: Mapping[str, Any], eos: int | list[int] | None) -> ModelConfig:
        family = FAMILIES[config["model_type"]]
        return cls(
            **families.sizes(config),
            eos_token_ids=frozenset([eos] if isinstance(eos, int) else eos or []),
            qkv_bias=family.qkv_bias,
            qk_norm=family.qk_norm,
            rope_scaling=families.rope_scaling(config),
        )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine runs. Defaults suit a small CPU machine; see `settled` for what AUTO means."""

    backend: str = AUTO  # what computes
    dtype: str = "bfloat16"  # of weights and activations
    activations: str = AUTO  # of products with 4-bit weights
    lm_head: str = AUTO  # how the head's weights lie in memory
    kv_dtype: str = AUTO
    kv_scales: str = "unit"  # of FP8 pages: 1, as TensorRT-LLM runs them, or the checkpoint's
    kv_memory_bytes: int = 1 << 30
    page_size: int = 16  # tokens
    max_batch_tokens: int = 512  # the budget of one step
    max_running: int = 64  # seqs
    max_context: int = 0  # tokens; 0 means the model's own limit
    threads: int = 0  # 0 means as many as there are cores for; torch's is 1, see decision 8
    integrity: str = "enforce"
    overlap: bool = True  # prepare the next step while one runs
    speculation: int = 0  # drafts a step that a greedy request may have computed; 0 for none
    prefix_cache: bool = True
    packed_folder: str = ""  # where packed weights are kept; "" means the model's own folder
    public_prompts: Sequence[str] = ()  # system prompts whose pages all tenants share

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> EngineConfig:
        """Build from EngineSpec.options. Raises UnsupportedError naming each option at fault."""
        if wrong := option_faults(options):
            raise UnsupportedError("; ".join(reason for _, reason in wrong))
        return cls(**options)


def page_bytes(model: ModelConfig, engine: EngineConfig) -> int:
    """Bytes that one page takes over all layers, K and V together. Of settled options."""
    elements = model.num_layers * model.num_kv_heads * model.head_dim * engine.page_size
    return 2 * elements * KV_DTYPES[engine.kv_dtype]


def max_context(model: ModelConfig, engine: EngineConfig, num_pages: int) -> int:
    """Tokens of prompt and answer that one request may have: the null page is nobody's."""
    return min(engine.max_context or model.max_context, (num_pages - 1) * engine.page_size)


def faults(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with a model's settings for this engine, as (key, reason)."""
    source, path = settings.get("source"), settings.get("path")
    if bool(source) == bool(path):
        yield "source", "name either `source` or `path`, where the weights are"
    elif source and source not in SOURCES:
        yield "source", f"unknown source {source!r}; known: {', '.join(SOURCES)}"
    elif path:
        try:
            ModelConfig.from_folder(Path(path))
        except UnsupportedError as error:
            yield "path", str(error)
    for name, reason in option_faults(settings.get("options") or {}):
        yield f"options.{name}", reason


def option_faults(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything that is wrong with an engine's options, as (option, reason)."""
    kinds = {field.name: type(field.default) for field in fields(EngineConfig)}
    kinds["public_prompts"] = list
    wrong = [
        (name, reason) for name, value in options.items() if (reason := _fault(name, value, kinds))
    ]
    names = {name for name, _ in wrong}
    running, budget = (options.get(name, getattr(EngineConfig(), name)) for name in PAIR)
    if names.isdisjoint(PAIR) and running > budget:  # each running seq may need a token a step
        wrong.append((PAIR[0], f"option {PAIR[0]!r} may not exceed {PAIR[1]!r}"))
    kv_dtype = options.get("kv_dtype", AUTO)
    if options.get("kv_scales") == "checkpoint" and kv_dtype in DTYPES:
        reason = f"option 'kv_scales' is for kv_dtype 'fp8_e4m3', not {kv_dtype!r}"
        wrong.append(("kv_scales", reason))
    return wrong


PAIR = ("max_running", "max_batch_tokens")
OPTIONAL = ("max_context", "overlap", "speculation", "prefix_cache", "threads")
LEAST = dict.fromkeys(OPTIONAL, 0)  # else 1
MOST = {"speculation": 16}
CHOICES = {
    "backend": (AUTO, *BACKENDS),
    "dtype": tuple(DTYPES),
    "activations": (AUTO, "int8", "bfloat16"),
    "lm_head": (AUTO, "int8", "int6", "bfloat16"),
    "kv_dtype": (AUTO, *KV_DTYPES),
    "kv_scales": KV_SCALES,
    "integrity": INTEGRITY,
}


def _fault(name: str, value: object, kinds: Mapping[str, type]) -> str | None:
    if name not in kinds:
        return f"unknown engine option {name!r}; known: {', '.join(sorted(kinds))}"
    if type(value) is not kinds[name]:
        return f"option {name!r} must be {kinds[name].__name__}, not {value!r}"
    if isinstance(value, list) and not all(isinstance(text, str) and text for text in value):
        return f"option {name!r} must be a list of texts, none of them empty"
    if isinstance(value, int):
        return _size_fault(name, value)
    if name in CHOICES and value not in CHOICES[name]:
        return f"option {name!r} must be one of {', '.join(CHOICES[name])}, not {value!r}"
    return None


def _size_fault(name: str, value: int) -> str | None:
    if value < LEAST.get(name, 1):
        return f"option {name!r} is too small: {value}"
    if value > MOST.get(name, value):
        return f"option {name!r} may not exceed {MOST[name]}"
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(regular.read(path))
    except OSError as error:
        raise UnsupportedError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UnsupportedError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedError(f"{path} holds no JSON object")
    return value
