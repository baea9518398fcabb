"""Driving an engine in tests, and comparing its answers with a reference."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.api import Output, Request, Sampling
from engines.embedded.engine import EmbeddedEngine
from engines.kernels import native

needs_native = pytest.mark.skipif(
    not native.HAS_MODEL, reason="the native kernels aren't built: make native"
)
BACKENDS = ["torch", pytest.param("native", marks=needs_native)]
TIE = 1e-3  # logit gap under which float32 may order two tokens either way


def ask(
    id: str, prompt: list[int], max_tokens: int = 8, *, domain: str = "a", **sampling: Any
) -> Request:
    """A greedy request unless told else."""
    chosen = Sampling(max_tokens, **({"temperature": 0.0} | sampling))
    return Request(id, domain, tuple(prompt), chosen)


class Answers:
    """Outputs of several steps, by request."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[Output]] = {}

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)

    def tokens(self, id: str) -> list[int]:
        return [token for output in self.outputs.get(id, []) for token in output.token_ids]

    def last(self, id: str) -> Output:
        return self.outputs[id][-1]

    def cached(self, id: str) -> int:
        (told,) = [o.cached_tokens for o in self.outputs[id] if o.cached_tokens is not None]
        return told


def drive(engine: EmbeddedEngine, *requests: Request) -> Answers:
    """Add the requests and step until there's no work."""
    answers = Answers()
    for request in requests:
        engine.add(request)
    while engine.has_work():
        answers.take(engine.step())
    return answers


def random_prompt(length: int, seed: int, vocab: int = 256) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, vocab, (length,), generator=generator).tolist()
    return tokens


class Reference:
    """The same weights in transformers, without any cache."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from transformers import AutoModelForCausalLM

            self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> Tensor:
        """[len(tokens), vocab_size] in float32."""
        scores: Tensor = self._model(torch.tensor([tokens]), use_cache=False).logits[0]
        return scores.float()

    def assert_greedy(self, prompt: list[int], answer: list[int], tie: float = TIE) -> None:
        """Each token of the answer has the highest logit after its predecessors, or ties with it.

        Teacher-forced on the engine's own answer, so that one tie doesn't end the comparison.
        """
        gaps, _ = self.gaps(prompt, answer)
        worst = int(gaps.argmax())
        assert gaps[worst] < tie, f"token {worst} is {float(gaps[worst]):.5f} under the best logit"

    def gaps(
        self, prompt: list[int], answer: list[int], bf16_steps: int = 1
    ) -> tuple[Tensor, Tensor]:
        """How far each answer token lies under the best logit, and what `bf16_steps` are there."""
        assert answer
        scores = self.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
        chosen = scores.gather(1, torch.tensor(answer)[:, None])[:, 0]
        best = scores.max(dim=1).values
        step = torch.exp2(torch.floor(torch.log2(best.abs())) - 7)  # 8 bits of significand
        return best - chosen, bf16_steps * step
