"""Two models of the same weights over HTTP, one with the tag check and one without, asked in turns.

The whole stack: gateway, keys, ledger, and a host for each model. Each client asks both, one after
the other in an order that is drawn, and so on until the time is up.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.bulkhead import bulkhead
from benchmarks.load import Connection, Sample, Target, ask, connect
from benchmarks.overhead import LEVEL
from benchmarks.paired import Floats, Interval, Pairs, Statistic, interval
from benchmarks.prompts import bodies, prompts

CLIENTS, PROMPT_TOKENS, MAX_TOKENS = 8, 64, 24
PATIENCE_S = 120.0
WITH, WITHOUT = "with-check", "without-check"
MODEL = """
[[models]]
id = "{id}"
engine = "embedded"
path = "{folder}"
min_hosts = 1
options = {{ integrity = "{integrity}", backend = "{backend}" }}
price = {{ input = "0.10", output = "0.30" }}
"""


@dataclass(slots=True)
class Latencies:
    """Milliseconds with the check and without it, of each pair of requests."""

    ttft: list[tuple[float, float]] = field(default_factory=list)
    total: list[tuple[float, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def measured(folder: Path, backend: str, seed: str, seconds: float) -> Latencies:
    """Start the stack, ask for so long, and end it."""
    config = MODEL.format(id=WITH, folder=folder, integrity="enforce", backend=backend)
    config += MODEL.format(id=WITHOUT, folder=folder, integrity="off", backend=backend)
    with bulkhead(config) as served:
        target = served.target("/completions")
        asyncio.run(_load(target, folder, f"warm-up {seed}", 0.0))
        return asyncio.run(_load(target, folder, seed, seconds))


async def _load(target: Target, folder: Path, seed: str, seconds: float) -> Latencies:
    """Each client asks once at least."""
    found, ends = Latencies(), time.monotonic() + seconds
    await asyncio.gather(
        *(_client(target, folder, f"{seed} {number}", ends, found) for number in range(CLIENTS))
    )
    return found


async def _client(target: Target, folder: Path, seed: str, ends: float, found: Latencies) -> None:
    chance, connection = random.Random(seed), Connection()
    requests = {
        model: bodies(prompts(folder, PROMPT_TOKENS, seed), model, MAX_TOKENS)
        for model in (WITH, WITHOUT)
    }
    while True:
        samples = {}
        for model in chance.sample((WITH, WITHOUT), 2):
            if not connection.is_open:
                connection = await connect(target)
            samples[model] = await _asked(connection, target, requests[model])
        _record(samples[WITH], samples[WITHOUT], found)
        if time.monotonic() > ends:
            break
    connection.close()


async def _asked(connection: Connection, target: Target, requests: Iterator[bytes]) -> Sample:
    return await ask(connection, target.request(next(requests)), PATIENCE_S)


def _record(with_check: Sample, without: Sample, found: Latencies) -> None:
    both = (with_check, without)
    if errors := [one.error for one in both if one.error]:
        found.errors += errors
        return
    first, again = ((one.arrivals[0] - one.began) * 1000 for one in both)
    found.ttft.append((first, again))
    first, again = ((one.ended - one.began) * 1000 for one in both)
    found.total.append((first, again))


def quantile_ratio(quantile: float) -> Statistic:
    """That quantile of the candidates over that of the controls."""

    def ratio(candidate: Floats, control: Floats) -> Floats:
        of_both = (np.quantile(arm, quantile, axis=-1) for arm in (candidate, control))
        return np.asarray(np.divide(*of_both))

    return ratio


@dataclass(frozen=True, slots=True)
class Quantile:
    """One quantile of both arms, in milliseconds, and its ratio."""

    name: str
    with_check: float
    without: float
    ratio: Interval


def quantiles(found: Latencies, chance: np.random.Generator) -> list[Quantile]:
    """The medians and 95th percentiles of the time to the first token and of the whole."""
    rows = []
    for name, times in (("TTFT", found.ttft), ("whole answer", found.total)):
        pairs = Pairs.of(times)
        for quantile in (0.5, 0.95) if len(pairs) else ():
            with_check, without = (
                float(np.quantile(arm, quantile)) for arm in (pairs.candidate, pairs.control)
            )
            ratio = interval(pairs, quantile_ratio(quantile), chance, LEVEL)
            rows.append(Quantile(f"{name} p{quantile * 100:.0f}", with_check, without, ratio))
    return rows
