"""OpenVINO GenAI in a process of its own, by its own Python: the whole runs that it is given.

Reads one line of JSON from stdin, {"model": GGUF file, "threads": n}, and says READY; then a line
for each run, {"prompts": [[token ids], ...], "max_tokens": n}, answered with `RESULT tokens/s`.
It has no HTTP server on the package index, so it is spared the cost of one.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

READY, RESULT = "READY", "RESULT "


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    pipeline, genai = _load(settings)
    print(READY, flush=True)
    for line in sys.stdin:
        print(f"{RESULT}{_tokens_per_s(pipeline, genai, json.loads(line))}", flush=True)


def _load(settings: dict[str, Any]) -> tuple[Any, Any]:
    import openvino_genai as genai  # only this Python has it

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2  # GiB: more than any run takes
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    threads = {"INFERENCE_NUM_THREADS": settings["threads"]}
    return genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", threads), genai


def _tokens_per_s(pipeline: Any, genai: Any, run: dict[str, Any]) -> float:
    """All prompts at once, to the end of the last."""
    import numpy as np
    import openvino as ov

    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = run["max_tokens"]
    config.ignore_eos = True
    began = time.perf_counter()
    handles = [
        pipeline.add_request(number, ov.Tensor(np.array([ids], np.int64)), config)
        for number, ids in enumerate(run["prompts"])
    ]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    tokens = sum(len(one.generated_ids) for handle in handles for one in handle.read_all())
    return tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
