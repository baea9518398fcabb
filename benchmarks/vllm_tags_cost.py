"""What page tags cost vLLM a step, in one process, by vLLM's own Python.

    PYTHONPATH=benchmarks/spikes/vllm_tags PYTHON -m benchmarks.vllm_tags_cost MODEL

Rounds of the same requests, with the plugin's methods in place and without them, in an order that
is drawn: CPU time of step n over CPU time of step n, the median of all steps. `A/A` is the same of
two arms without them: what this machine can tell. `own us` is the CPU time inside the methods
alone, by a clock in each of them, which costs something itself.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.vllm_peer import SETTINGS, load

ROUNDS = 6
ANSWER = 40  # tokens
SHAPES = ((1, 256), (8, 256), (32, 128))  # requests, tokens of each prompt
VOCABULARY = 49_000
Methods = dict[tuple[type, str], Callable[..., Any]]


class OwnTime:
    """CPU seconds inside the plugin's methods, without those of what they wrap."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def method(self, act: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
        def timed_inner(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds -= time.thread_time() - began

        def method(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return act(timed_inner, *args, **kwargs)
            finally:
                self.seconds += time.thread_time() - began

        return method


def plain(act: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: act(inner, *args, **kwargs)


def made(make: Callable[..., Callable[..., Any]]) -> tuple[Methods, Methods]:
    """vLLM's methods, and the plugin's around them."""
    from bulkhead_vllm_tags import patching, scheduler, worker

    before: Methods = {}
    after: Methods = {}

    def around(owner: type, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def put(act: Callable[..., Any]) -> Callable[..., Any]:
            before[owner, name] = inner = getattr(owner, name)
            after[owner, name] = make(act, inner)
            return act

        return put

    patching.around = around
    for module in (scheduler, worker):
        importlib.reload(module).install()
    return before, after


def use(methods: Methods) -> None:
    for (owner, name), method in methods.items():
        setattr(owner, name, method)


def main() -> None:
    os.environ.update(SETTINGS)
    clock = OwnTime()
    without, with_tags = made(plain)
    _, with_clock = made(clock.method)
    use(with_tags)
    engine = load(sys.argv[1], 32)
    for requests, prompt in SHAPES:
        arms: dict[str, list[list[float]]] = {"on": [], "off": [], "off again": []}
        own, steps = 0.0, 0
        for number in range(ROUNDS + 1):
            for arm in random.sample(sorted(arms), len(arms)):
                use(with_tags if arm == "on" else without)
                arms[arm].append(step_times(engine, requests, prompt, number))
            use(with_clock)
            clock.seconds = 0.0
            steps += len(step_times(engine, requests, prompt, number))
            own += clock.seconds
        off = arms["off"][1:]  # the first round warms up
        found = {
            "requests": requests,
            "prompt": prompt,
            "step_ms": median(one for times in off for one in times) * 1000,
            "on_off_percent": percent(arms["on"][1:], off),
            "aa_percent": percent(arms["off again"][1:], off),
            "own_us": own / steps * 1e6,
        }
        print(json.dumps({name: round(value, 3) for name, value in found.items()}), flush=True)


def step_times(engine: Any, requests: int, prompt: int, seed: int) -> list[float]:
    """CPU seconds of each step in which all requests decode."""
    from vllm import SamplingParams

    chance = random.Random(seed)
    sampling = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    for number in range(requests):
        ids = [chance.randrange(VOCABULARY) for _ in range(prompt)]
        one = {"prompt_token_ids": ids, "cache_salt": f"tenant-{number % 4}"}
        engine.add_request(f"r{number}", one, sampling)
    times = []
    while engine.has_unfinished_requests():
        began = time.process_time()
        outputs = engine.step()
        took = time.process_time() - began
        if len(outputs) == requests and all(len(o.outputs[0].token_ids) > 1 for o in outputs):
            times.append(took)
    engine.reset_prefix_cache()
    return times


def percent(arm: list[list[float]], other: list[list[float]]) -> float:
    """By how much the steps of one took longer: the median of the same step's ratios."""
    ratios = [
        math.log(mine / theirs)
        for one, two in zip(arm, other, strict=True)
        for mine, theirs in zip(one, two, strict=False)
    ]
    return (math.exp(median(ratios)) - 1) * 100


if __name__ == "__main__":
    main()
