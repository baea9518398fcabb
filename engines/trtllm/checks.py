"""What is wrong with a model's settings for TensorRT-LLM, each with its reason. Cheap; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def faults(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Everything wrong with one model's settings, as (key, reason).

    None stands for a value that had a fault of its own.
    """
    trt = settings.get("trt")
    if trt is None:
        return
    if trt.python and trt.image:
        yield "trt.image", "a launch takes `python` or `image`, not both"
