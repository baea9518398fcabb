"""`bulkhead eval`, the part that computes: texts are read by all engines side by side.

Position by position: of each engine's opinions a few dozen tokens' are held at once, whatever the
number of texts. Told a job as JSON has it; tells its progress and its result the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from engines.api import EngineError, EngineSpec
from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError, page_bytes
from engines.embedded.engine import EmbeddedEngine, create
from engines.embedded.evaluation import metrics, speed
from engines.embedded.evaluation.choices import Choice, choices, max_text
from engines.embedded.evaluation.metrics import Losses, Tally
from engines.embedded.evaluation.prompts import Text, read
from engines.embedded.evaluation.reading import side_by_side
from engines.embedded.footprint import memory_bytes
from engines.embedded.settled import settled_options
from engines.tokenizer import FolderTokenizer

Tell = Callable[[str, int, int], None]  # a stage, how much of it is done, and of how much
SLICE = 8  # tokens whose probabilities are held in full at once
TAIL = 0.99


def evaluate(job: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Do the job: the figures of each choice, the base's first. Raises EngineError.

    `job` has folders, options, prompts (a path), rounds, and memory_bytes: the most to take.
    """
    folders = [Path(folder) for folder in job["folders"]]
    most = max_text(folders[0], job["options"])
    texts = read(Path(job["prompts"]), FolderTokenizer(folders[0]), most)
    longest = max(len(text.tokens) for text in texts)
    wanted = choices(folders, job["options"], longest)
    _refuse_too_many(wanted, job["memory_bytes"])
    with ExitStack() as stack:
        engines, skipped = _loaded(wanted, stack, tell)
        page_size = EngineConfig.from_options(wanted[0].options).page_size
        quality = _quality(engines, page_size, texts, tell)
        rates = _rates(engines, texts, job["rounds"], tell)
    return {
        "texts": len(texts),
        "tokens": sum(len(text.tokens) for text in texts),
        "choices": [
            {
                "weights": choice.weights,
                "kv": choice.kv,
                "folder": str(choice.folder),
                "weight_bytes": choice.weight_bytes,
                **_terms(choice),
                **quality[choice.name],
                "tokens_per_s": rates.get(choice.name),
            }
            for choice in wanted
            if choice.name in engines
        ],
        "skipped": skipped,
    }


def _refuse_too_many(wanted: Sequence[Choice], limit: int) -> None:
    """All engines are there at once, so that they can take turns."""
    needed = sum(memory_bytes(str(choice.folder), choice.options) for choice in wanted)
    if needed > limit:
        raise UnsupportedError(
            f"{len(wanted)} choices side by side take {needed / 1e9:.1f} GB of memory at most, and "
            f"{limit / 1e9:.1f} GB are there: name fewer with --against"
        )


def _loaded(
    wanted: Sequence[Choice], stack: ExitStack, tell: Tell
) -> tuple[dict[str, EmbeddedEngine], list[dict[str, str]]]:
    """By name, the base first; and those that can't be had here, with the reason."""
    engines: dict[str, EmbeddedEngine] = {}
    skipped = []
    for number, choice in enumerate(wanted):
        tell("loading", number, len(wanted))
        try:
            engine = create(EngineSpec(choice.name, str(choice.folder), choice.options))
        except UnsupportedError as error:
            if number == 0:
                raise
            skipped.append({"weights": choice.weights, "kv": choice.kv, "reason": str(error)})
            continue
        stack.callback(engine.close)
        engines[choice.name] = engine
    tell("loading", len(wanted), len(wanted))
    return engines, skipped


def _quality(
    engines: Mapping[str, EmbeddedEngine], page_size: int, texts: Sequence[Text], tell: Tell
) -> dict[str, dict[str, Any]]:
    each = {name: _Quality(name) for name in engines}
    done, total = 0, sum(len(text.tokens) for text in texts)
    tell("reading", 0, total)
    for text in texts:
        for start, parts in side_by_side(list(engines.values()), page_size, text.tokens):
            for first in range(0, len(parts[0]), SLICE):
                slices = [part[first : first + SLICE] for part in parts]
                base = metrics.log_probs(slices[0])
                for quality, logits in zip(each.values(), slices, strict=True):
                    quality.add(base, metrics.log_probs(logits), text, start + first)
            done += len(parts[0])
            tell("reading", done, total)
    return {name: quality.figures() for name, quality in each.items()}


class _Quality:
    """One choice's figures as they come; of the base too, so that a slip of ours would show."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tally = Tally()
        self._prompts = Losses()
        self._answers = Losses()

    def add(self, base: metrics.Logs, logs: metrics.Logs, text: Text, start: int) -> None:
        """Some tokens of a text, from `start` on."""
        if not np.isfinite(logs.max(axis=1)).all():
            raise EngineError(f"{self._name}: what is computed isn't finite, and no answer can be")
        self._tally.add(metrics.divergences(base, logs), int(metrics.agreements(base, logs).sum()))
        targets = np.array(text.targets[start : start + len(logs)], np.int64)
        of_tokens = metrics.nats(logs[: len(targets)], targets)
        in_prompt = max(0, text.prompt_len - 1 - start)
        self._prompts.add(of_tokens[:in_prompt])
        self._answers.add(of_tokens[in_prompt:])

    def figures(self) -> dict[str, Any]:
        return {
            "kl_mean": self._tally.mean,
            "kl_p99": self._tally.quantile(TAIL),
            "top1_agreement": self._tally.agreement,
            "perplexity_prompts": self._prompts.perplexity,
            "perplexity_answers": self._answers.perplexity,
        }


def _rates(
    engines: Mapping[str, EmbeddedEngine], texts: Sequence[Text], rounds: int, tell: Tell
) -> dict[str, dict[str, dict[str, float]]]:
    """By choice, then phase, then requests at once."""
    if not rounds:
        return {}
    room = min(engine.max_context_tokens for engine in engines.values()) - speed.DECODED
    most = max(1, min(speed.MOST_PROMPT, room))
    prompts = [text.tokens[: text.prompt_len][:most] for text in texts]
    done, total = 0, speed.turns(len(engines), rounds)
    tell("timing", 0, total)

    def turn() -> None:
        nonlocal done
        done += 1
        tell("timing", done, total)

    found = speed.measure(engines, prompts, rounds, turn)
    return {
        name: {
            "prefill": {str(n): rates.prefill for n, rates in by_number.items()},
            "decode": {str(n): rates.decode for n, rates in by_number.items()},
        }
        for name, by_number in found.items()
    }


def _terms(choice: Choice) -> dict[str, Any]:
    """What computes it, in which numbers; and what its pages take."""
    engine = settled_options(choice.options, choice.folder)
    model = ModelConfig.from_folder(choice.folder)
    return {
        "backend": engine.backend,
        "activations": engine.activations,
        "lm_head": engine.lm_head,
        "kv_bytes_per_token": page_bytes(model, engine) / engine.page_size,
    }
