"""Our embedded engine without HTTP, gateway or host: what the stack around it costs.

A child of bench_engine. It's told cells as `clients:requests`, keeps `clients` requests in the
engine until `requests` were answered, and prints one line, `RESULT [tokens/s, ...]`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from benchmarks.prompts import prompts
from engines import registry
from engines.api import Engine, EngineSpec, Request, Sampling

RESULT = "RESULT "


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    parser.add_argument("cells", nargs="+")
    options = parser.parse_args()
    engine = registry.load("embedded")(EngineSpec(options.model.name, str(options.model)))
    requests = _requests(options.model, options.seed, options.prompt_tokens, options.max_tokens)
    _tokens_per_s(engine, list(islice(requests, 4)), 4)  # warm up
    rates = []
    for cell in options.cells:
        clients, number = map(int, cell.split(":"))
        rates.append(_tokens_per_s(engine, list(islice(requests, number)), clients))
    engine.close()
    print(RESULT + json.dumps(rates), flush=True)


def _requests(model: Path, seed: str, prompt_tokens: int, max_tokens: int) -> Iterator[Request]:
    for number, ids in enumerate(prompts(model, prompt_tokens, seed)):
        sampling = Sampling(max_tokens, temperature=0.0)
        yield Request(f"r{number}", "bench", tuple(ids), sampling)


def _tokens_per_s(engine: Engine, waiting: list[Request], clients: int) -> float:
    running = tokens = 0
    began = time.perf_counter()
    while waiting or running:
        while waiting and running < clients:
            engine.add(waiting.pop())
            running += 1
        for output in engine.step():
            tokens += len(output.token_ids)
            running -= output.finish is not None
    return tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
