"""build.json: what an artefact was made of, how, and what it is like.

Nothing in it changes from one run of the same plan to the next.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engines import regular
from engines.build.kv_range import LARGEST, KvRange, Side
from engines.build.plan import Plan
from engines.build.quality import Quality
from engines.build.shape import Shape
from engines.build.tensorfile import entries_of

NAME = "build.json"


def key_of(folder: Path) -> str:
    """The key of the plan that led to what `folder` holds. "": it's nothing of ours."""
    try:
        told = json.loads(regular.read(folder / NAME))
        return str(told["key"]) if told["builder"] and told["options"] else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def record(
    plan: Plan, shape: Shape, folder: Path, ranges: list[KvRange], quality: Quality | None
) -> dict[str, Any]:
    """For a folder whose weights are written."""
    return plan.told() | {
        "sizes": sizes(shape, folder),
        "quality": {
            "of": "held-out windows of the calibration text, KV in BF16",
            **(quality.told() if quality else {}),
        },
        "kv": {"unit_scale": unit_scale(ranges), "layers": [_layer(one) for one in ranges]},
    }


def sizes(shape: Shape, folder: Path) -> dict[str, Any]:
    """Bytes: of the file, and of the layers' matrices with all that belongs to them."""
    entries = entries_of(folder)
    names = tuple(f".{name}." for name in shape.linears())
    linear = sum(
        entry.size
        for name, entry in entries.items()
        if any(part in name for part in names) and not name.endswith(("bias", "k_scale", "v_scale"))
    )
    bf16 = 2 * shape.num_layers * sum(rows * columns for rows, columns in shape.linears().values())
    return {
        "file": sum(path.stat().st_size for path in folder.glob("*.safetensors")),
        "linear": linear,
        "linear_in_bf16": bf16,
        "ratio": round(linear / bf16, 4),
    }


def unit_scale(ranges: list[KvRange]) -> dict[str, Any]:
    """Whether FP8 pages may hold K and V as they are, as TensorRT-LLM stores them."""
    most = max(max(one.k.amax, one.v.amax) for one in ranges)
    return {"fits": most <= LARGEST, "amax": most}


def _layer(found: KvRange) -> dict[str, Any]:
    return {"k": _side(found.k), "v": _side(found.v)}


def _side(side: Side) -> dict[str, Any]:
    return {"amax": side.amax, "below_smallest_normal": side.small_share}
