"""The process that evaluates, from its parent's side: started, followed, and ended with it.

It loads an engine, which no gateway may; what prompts say stays over there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

from msgspec import MsgspecError, Struct, json

PROGRAM = ("-m", "engines.evaluate")

Rates = dict[str, float]  # by requests at once


class EvaluationFailed(Exception):
    """There are no figures; the message says why, all faults of the prompts included."""


class Job(Struct, frozen=True, kw_only=True):
    """What is to be compared. `folders`: the model's own first."""

    engine: str
    folders: list[str]
    options: dict[str, object]
    prompts: str  # a path
    rounds: int  # of timing; 0: none
    memory_bytes: int  # the most that it may take


class Speed(Struct, frozen=True):
    """Tokens a second over all requests."""

    prefill: Rates
    decode: Rates


class Choice(Struct, frozen=True, kw_only=True):
    """Weights over pages. Divergences are nats a token, from the first choice."""

    weights: str
    kv: str
    folder: str
    weight_bytes: int
    backend: str  # what computes it
    activations: str
    lm_head: str
    kv_bytes_per_token: float
    kl_mean: float
    kl_p99: float
    top1_agreement: float
    perplexity_prompts: float | None
    perplexity_answers: float | None
    tokens_per_s: Speed | None


class Skipped(Struct, frozen=True):
    """What can't be had here."""

    weights: str
    kv: str
    reason: str


class Result(Struct, frozen=True):
    """All choices over the same texts."""

    texts: int
    tokens: int
    choices: list[Choice]
    skipped: list[Skipped]


class _Line(Struct, frozen=True):
    stage: tuple[str, int, int] | None = None
    error: str = ""
    faults: list[str] = []
    result: Result | None = None


Follow = Callable[[str, int, int], None]  # a stage, how much of it is done, and of how much


def evaluate(job: Job, env: Mapping[str, str], follow: Follow) -> Result:
    """Have the job done. Raises EvaluationFailed; the process has ended in any case."""
    process = subprocess.Popen(  # noqa: S603 - this Python, on a module of ours
        [sys.executable, *PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        start_new_session=True,  # a Ctrl-C at the terminal is ours: we end it
    )
    with process:
        try:
            return _follow(process, job, follow)
        finally:
            process.kill()


def _follow(process: subprocess.Popen[bytes], job: Job, follow: Follow) -> Result:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.encode(job) + b"\n")
        process.stdin.flush()  # it stays open: its end would be the process's
        for text in process.stdout:
            line = json.decode(text, type=_Line)
            if line.result is not None:
                return line.result
            if line.error:
                raise EvaluationFailed(_reasons(line, job))
            if line.stage is not None:
                follow(*line.stage)
    except BrokenPipeError:
        pass  # it ended before it had its job
    except MsgspecError as fault:
        raise EvaluationFailed(
            f"the process that evaluates said what nobody knows: {fault}"
        ) from None
    raise EvaluationFailed(f"the process that evaluates {_ending(process.wait())}")


def _reasons(line: _Line, job: Job) -> str:
    return "\n".join(f"{job.prompts}: {fault}" for fault in line.faults) or line.error


def _ending(code: int) -> str:
    return "was killed: perhaps memory ran out" if code < 0 else f"exited with {code}"
