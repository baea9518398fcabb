"""What limits cost a gateway: a request reserved and settled, in process and in Redis.

Six limits, as a request has them that is counted by its key and its tenant: requests, tokens and
places of each. `none` is the same request without any. `alone` is counted in process, `redis` in a
server of its own on this machine, where the script is sent twice a request. Headers are made, too.
At each number in flight that many tasks ask one after the other: CPU of this process and throughput
are the whole run's; what a request waits is timed for each. Where redis-server isn't installed that
arm is left out.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import at_least, at_most, emit, median, percentile, table
from gateway.limits import told
from gateway.limits.alone import Alone
from gateway.limits.fallback import Fallback
from gateway.limits.gate import Gate
from gateway.limits.limit import Kind, Limit, Take
from gateway.limits.limiter import Limiter
from gateway.limits.local import LocalLimiter
from gateway.limits.redis_client import Address, RedisClient
from gateway.limits.redis_limiter import RedisLimiter

REQUESTS, ROUNDS = 10_000, 3
IN_FLIGHT = (1, 64)
SERVER = "redis-server"
ALONE_US, ALONE_RATE = 25.0, 30_000.0  # a tenth of a request's CPU
REDIS_US, REDIS_RATE, REDIS_P99_MS = 150.0, 4_000.0, 5.0
TOKENS = 500


@dataclass
class Run:
    """One arm at one number in flight."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)


def takes() -> list[Take]:
    """So large that none refuses."""
    found = []
    for scope in ("key", "tenant"):
        for kind, amount in ((Kind.REQUESTS, 1), (Kind.TOKENS, TOKENS), (Kind.CONCURRENT, 1)):
            limit = Limit(f"{scope}:one::{kind.value}", kind, 10**9, scope)
            found.append(Take(limit, amount))
    return found


async def measure(gate: Gate, wanted: list[Take], in_flight: int, run: Run) -> None:
    """Some requests of each of so many tasks."""

    async def ask(task: int) -> None:
        for i in range(REQUESTS // in_flight):
            began = time.perf_counter()
            verdict, grant = await gate.enter(f"req_{task}_{i}", wanted)
            told.headers(verdict.takes, verdict.levels)
            assert grant is not None, "these limits refuse nobody"
            async with grant:
                await grant.settle(1, TOKENS // 2)
            run.waits_ms.append((time.perf_counter() - began) * 1000)

    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(ask(task) for task in range(in_flight)))
    done = REQUESTS // in_flight * in_flight
    run.rates.append(done / (time.perf_counter() - began))
    run.cpu_us.append((time.process_time() - cpu) / done * 1e6)


@contextmanager
def server() -> Iterator[str]:
    """The URL of one that is started for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.sock"
        options = ("--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no")
        with subprocess.Popen([SERVER, *options], stdout=subprocess.DEVNULL) as process:
            while not path.exists():
                time.sleep(0.01)
            yield f"unix://{path}"
            process.terminate()


@asynccontextmanager
async def redis() -> AsyncIterator[Limiter]:
    """In a server's memory."""
    with server() as url:
        client = RedisClient(Address.of(url))
        limiter = RedisLimiter(client, "bench", 5.0)
        together = Fallback(limiter, "bench")
        await together.beat()
        yield together
        assert together.is_together, "it was counted alone: these are no figures of Redis"
        await client.aclose()


@asynccontextmanager
async def alone() -> AsyncIterator[Limiter]:
    """In process."""
    yield Alone(lambda: 1, LocalLimiter())


async def compare() -> dict[tuple[str, int], Run]:
    """All arms in turn, again and again."""
    arms = {"none": alone, "alone": alone} | ({"redis": redis} if shutil.which(SERVER) else {})
    found = {(arm, in_flight): Run() for arm in arms for in_flight in IN_FLIGHT}
    for _ in range(ROUNDS):
        for arm, opened in arms.items():
            async with opened() as limiter:
                wanted = [] if arm == "none" else takes()
                for in_flight in IN_FLIGHT:
                    await measure(Gate(limiter), wanted, in_flight, found[arm, in_flight])
    return found


def main() -> None:
    """Measure, and print."""
    found = asyncio.run(compare())
    if not shutil.which(SERVER):
        print(f"{SERVER} isn't installed: without its arm", file=sys.stderr)
    rows = [
        (
            f"{arm}, {in_flight} in flight",
            median(run.rates),
            median(run.cpu_us),
            percentile(run.waits_ms, 50) * 1000,
            percentile(run.waits_ms, 99) * 1000,
        )
        for (arm, in_flight), run in found.items()
    ]
    print(table(("limits", "requests/s", "CPU µs", "p50 µs", "p99 µs"), rows))
    none = {in_flight: median(found["none", in_flight].cpu_us) for in_flight in IN_FLIGHT}
    busy = IN_FLIGHT[-1]
    targets = {
        "alone_cpu_us": at_most(median(found["alone", busy].cpu_us) - none[busy], ALONE_US),
        "alone_per_s": at_least(median(found["alone", busy].rates), ALONE_RATE),
    }
    if ("redis", busy) in found:
        run = found["redis", busy]
        targets |= {
            "redis_cpu_us": at_most(median(run.cpu_us) - none[busy], REDIS_US),
            "redis_per_s": at_least(median(run.rates), REDIS_RATE),
            "redis_one_p99_ms": at_most(percentile(found["redis", 1].waits_ms, 99), REDIS_P99_MS),
        }
    raw = {
        f"{arm}_{in_flight}": {"per_s": run.rates, "cpu_us": run.cpu_us}
        for (arm, in_flight), run in found.items()
    }
    emit("limits", targets, raw)


if __name__ == "__main__":
    main()
