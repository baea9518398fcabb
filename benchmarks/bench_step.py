"""What a token costs beside computing it: a step's bookkeeping, and a host's part of an answer.

`bookkeeping`: the whole engine on a runner that computes nothing: CPU time a step (all threads; the
middle one of many), of requests that all decode, steps overlapping as they do in service. `check`:
both tag checks of such a step by their own clock.
`host`: a host's process on an engine that computes nothing either, but takes its time: CPU time a
token, from the engine's thread to the bytes on the socket, with so many streams at once.

How to read it: CPU time, so neighbours on the machine disturb it little; all else is unlike service
only in that caches aren't cold of a model's weights.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bulkhead import model_folder
from benchmarks.host_alone import MODEL, SEED
from benchmarks.process import Child, Foreign, child, end_on_sigterm, python
from benchmarks.report import at_most, emit, foreign_note, median, table
from engines.api import EngineSpec, Request, Sampling
from engines.embedded.batch import Batch
from engines.embedded.engine import EmbeddedEngine, create
from runtime.capability import Signer

ROWS = (1, 8, 32, 64)
PROMPT, STEPS, WARM_STEPS = 128, 400, 40
CLIENTS, STEP_S, HOST_S = (1, 32), 0.01, 6.0
BOOKKEEPING_US = {1: 150, 32: 600}  # targets, by rows
CHECK_US = {1: 10, 64: 30}
TOKEN_US = {32: 60}


class Nothing:
    """A runner that computes nothing: each row goes on with the same token."""

    def run(self, batch: Batch) -> dict[int, tuple[int, ...]]:
        """See engines.embedded.backend.Runner."""
        return {row: (17,) for row, chunk in enumerate(batch.chunks) if chunk.samples}


@dataclass(frozen=True, slots=True)
class Step:
    """Microseconds."""

    bookkeeping: float
    check: float


def main() -> None:
    end_on_sigterm()
    foreign, folder = Foreign(), model_folder()
    steps = _steps(folder, random.Random(1))
    tokens = {clients: asyncio.run(_token_us(folder, clients)) for clients in CLIENTS}
    _report(steps, tokens, foreign.share())


def _steps(folder: Path, chance: random.Random) -> dict[int, Step]:
    with closing(create(EngineSpec(MODEL, str(folder), {"max_running": max(ROWS)}))) as engine:
        engine.runway._model = Nothing()
        engine.kv.zero(range(engine.kv.num_pages))  # in memory, as pages that were written are
        return {rows: _step(engine, rows, chance) for rows in ROWS}


def _step(engine: EmbeddedEngine, rows: int, chance: random.Random) -> Step:
    requests = [_request(f"{rows}-{number}", chance) for number in range(rows)]
    for request in requests:
        engine.add(request)
    while engine.scheduler.waiting or any(not seq.has_answered for seq in engine.scheduler.running):
        engine.step()
    for _ in range(WARM_STEPS):
        engine.step()
    check_s, times = engine.stats().tag_check_s, []
    for _ in range(STEPS):
        began = time.process_time()
        engine.step()
        times.append(time.process_time() - began)
    check_s = engine.stats().tag_check_s - check_s
    for request in requests:
        engine.abort(request.id)
    while engine.has_work():
        engine.step()
    return Step(median(times) * 1e6, check_s / STEPS * 1e6)


def _request(name: str, chance: random.Random) -> Request:
    prompt = tuple(chance.randrange(1000, 40000) for _ in range(PROMPT))
    most = PROMPT + WARM_STEPS + STEPS
    return Request(name, f"d{chance.randrange(4)}", prompt, Sampling(most, temperature=0.0))


async def _token_us(folder: Path, clients: int) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        socket = Path(scratch) / "host.sock"
        command = python("benchmarks.host_alone", str(socket), str(folder), str(STEP_S))
        with child(command, "ready") as host:
            ask = [asyncio.ensure_future(_stream(socket, number)) for number in range(clients)]
            await asyncio.sleep(HOST_S / 4)  # all have begun
            return await _spent(host, ask)


@dataclass(slots=True)
class Heard:
    """What came of all streams."""

    tokens: int = 0


HEARD = Heard()


async def _spent(host: Child, ask: Sequence[asyncio.Future[None]]) -> float:
    cpu_s, tokens = host.cpu_s(), HEARD.tokens
    await asyncio.sleep(HOST_S)
    cpu_s, tokens = host.cpu_s() - cpu_s, HEARD.tokens - tokens
    for one in ask:
        one.cancel()
    await asyncio.gather(*ask, return_exceptions=True)
    return cpu_s / tokens * 1e6


async def _stream(socket: Path, number: int) -> None:
    """One answer that ends with the measurement."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    prompt = " ".join(str(number * word) for word in range(300))
    body = b'{"model": "%s", "max_tokens": 4000, "stream": true, "messages": ' % MODEL.encode()
    body += b'[{"role": "user", "content": "%s"}]}' % prompt.encode()
    capability = Signer(SEED).mint(f"d{number % 4}", MODEL)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n"
        b"authorization: Bearer %s\r\n\r\n" % (len(body), capability.encode()) + body
    )
    try:
        while line := await reader.read(65536):
            HEARD.tokens += line.count(b": t=")
    finally:
        writer.close()


def _report(steps: dict[int, Step], tokens: dict[int, float], foreign: float) -> None:
    print(
        table(
            ("requests that decode", "bookkeeping us", "check us"),
            [(str(rows), step.bookkeeping, step.check) for rows, step in steps.items()],
        )
    )
    print()
    print(
        table(
            ("streams of a host", "CPU us a token"),
            [(str(clients), cost) for clients, cost in tokens.items()],
        )
    )
    print(foreign_note(foreign))
    targets = {
        f"bookkeeping us, c={rows}": at_most(steps[rows].bookkeeping, most)
        for rows, most in BOOKKEEPING_US.items()
    }
    targets |= {
        f"both checks us, c={rows}": at_most(steps[rows].check, most)
        for rows, most in CHECK_US.items()
    }
    targets |= {
        f"host us a token, c={clients}": at_most(tokens[clients], most)
        for clients, most in TOKEN_US.items()
    }
    raw = {"steps": {str(rows): vars_of(step) for rows, step in steps.items()}}
    emit("step", targets, raw | {"host_us_a_token": {str(c): us for c, us in tokens.items()}})


def vars_of(step: Step) -> dict[str, float]:
    """As it goes into the last line."""
    return {"bookkeeping_us": step.bookkeeping, "check_us": step.check}


if __name__ == "__main__":
    main()
