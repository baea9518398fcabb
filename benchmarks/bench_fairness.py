"""What a tenant that floods a model costs one that asks it now and then, and how greedy ones share.

One model, a fake engine of a fixed step, 8 requests at a time; the whole of Bulkhead before it.

    alone      one client asks, one request after the other
    flooded    the same client, while another tenant's 64 clients ask for answers of all lengths
    first come the same, all of it under one tenant's name: first come, first served

Three to a round, in turns; `light p95` is over all rounds. Then four greedy tenants, with more and
more clients that ask for longer and longer answers, share the model by themselves, and under one
tenant's name. What each got is counted in tokens until the end, those of unfinished answers too
(one of an answer counts twice, as the gateway counts). Jain's index of it is 1 if all got the same,
and 0.25 if one got everything.

How to read it: the ratios. The engine sleeps, so that the CPU's speed plays no part if it suffices.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence

import msgspec

from benchmarks.bulkhead import Served, bulkhead
from benchmarks.load import Run, Sample, Target, closed_loop
from benchmarks.process import Foreign, end_on_sigterm
from benchmarks.report import at_least, at_most, emit, foreign_note, percentile, table
from gateway.relay.fairness import cost_of

PLACES, STEP_S, FLOOD = 8, 0.01, 64
CONFIG = f"""
[[models]]
id = "echo"
engine = "fake"
min_hosts = 1
max_in_flight = {PLACES}
options = {{ step_s = {STEP_S}, max_running = {PLACES} }}
"""
PATH = "/completions"
TOKENS = 20  # of the light one's answers
LENGTHS = range(4, 37)  # of the flood's: as many, in the middle
GREEDY = {"a": (8, 10), "b": (12, 20), "c": (16, 40), "d": (24, 80)}  # clients, tokens
LEAD_S = 1.0  # until a flood is at its height
MOST_SLOWER, LEAST_JAIN = 2.0, 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each arm of each round")
    options = parser.parse_args()
    end_on_sigterm()
    foreign = Foreign()
    waits: dict[str, list[Sample]] = {"alone": [], "flooded": [], "first come": []}
    with bulkhead(CONFIG) as served:
        heavy, light = (_tenant(served, name) for name in ("heavy", "light"))
        greedy = [_tenant(served, name) for name in GREEDY]
        time.sleep(1.5)  # a gateway hears of new keys within a second
        for _ in range(options.rounds):
            waits["alone"] += asyncio.run(_light(light, None, options.seconds))
            waits["flooded"] += asyncio.run(_light(light, heavy, options.seconds))
            waits["first come"] += asyncio.run(_light(heavy, heavy, options.seconds))
        shares = {
            "by tenant": asyncio.run(_shares(greedy, options.seconds)),
            "first come": asyncio.run(_shares([heavy] * len(GREEDY), options.seconds)),
        }
    _tell(waits, shares, foreign.share())


def _tell(
    waits: dict[str, list[Sample]], shares: dict[str, list[int]], foreign_share: float
) -> None:
    p95 = {arm: percentile(_total_ms(samples), 95) for arm, samples in waits.items()}
    rows = [
        (arm, len(waits[arm]), percentile(_total_ms(waits[arm]), 50), ms, ms / p95["alone"])
        for arm, ms in p95.items()
    ]
    print(table(("light client", "answers", "p50 ms", "p95 ms", "p95 / alone"), rows))
    index = {arm: jain(got) for arm, got in shares.items()}
    greedy = [(arm, *got, index[arm]) for arm, got in shares.items()]
    print("\n" + table(("four greedy", *GREEDY, "Jain's index"), greedy))
    print(foreign_note(foreign_share))
    slower = {arm: ms / p95["alone"] for arm, ms in p95.items()}
    targets = {
        "light p95, flooded / alone": at_most(slower["flooded"], MOST_SLOWER),
        "Jain's index of four": at_least(index["by tenant"], LEAST_JAIN),
    }
    emit("fairness", targets, {"p95_ms": p95, "slower": slower, "shares": shares, "jain": index})


def jain(got: Sequence[float]) -> float:
    """1 if all got the same; one in their number if one got everything."""
    return sum(got) ** 2 / (len(got) * sum(one**2 for one in got))


async def _light(light: Target, flood: Target | None, seconds: float) -> list[Sample]:
    """The answers that one client had, once the flood was at its height."""

    async def later() -> Run:
        await asyncio.sleep(LEAD_S)
        return await closed_loop(light, _bodies([TOKENS]), 1, seconds=seconds)

    if flood is None:
        return _whole(await later())
    around = closed_loop(flood, _bodies(LENGTHS), FLOOD, seconds=seconds + 2 * LEAD_S)
    found, others = await asyncio.gather(later(), around)
    _whole(others)
    return _whole(found)


async def _shares(targets: Sequence[Target], seconds: float) -> list[int]:
    """What each of the greedy had by the end."""
    end = time.perf_counter() + seconds
    runs = await asyncio.gather(
        *(
            closed_loop(target, _bodies([tokens]), clients, seconds=seconds)
            for target, (clients, tokens) in zip(targets, GREEDY.values(), strict=True)
        )
    )
    return [sum(had(sample, end) for sample in _whole(run)) for run in runs]


def had(sample: Sample, end: float) -> int:
    """Of one answer until then. Its closing events are no tokens."""
    events = sum(arrival <= end for arrival in sample.arrivals)
    if not events:
        return 0
    return cost_of(sample.prompt_tokens, min(events, sample.output_tokens))


def _whole(run: Run) -> list[Sample]:
    if run.errors:
        raise SystemExit(f"{len(run.errors)} requests failed, such as: {run.errors[0]}")
    return run.samples


def _bodies(lengths: Sequence[int]) -> Iterator[bytes]:
    """Streams of these lengths; no prompt is as long as a page, so nothing comes from a cache."""
    chance = random.Random(6)
    for number in itertools.count():
        yield msgspec.json.encode(
            {
                "model": "echo",
                "prompt": f"ask {number % 1000}",
                "max_tokens": chance.choice(lengths),
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )


def _total_ms(samples: Sequence[Sample]) -> list[float]:
    return [(sample.ended - sample.began) * 1000 for sample in samples]


def _tenant(served: Served, name: str) -> Target:
    (key,) = served.new_tenant(name)
    return served.target(PATH, key)


if __name__ == "__main__":
    main()
