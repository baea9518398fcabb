"""What computes an engine's steps: the native kernels, or torch. Reached by text, as engines are:
importing this imports neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from engines.embedded.batch import Batch, Ints
from engines.embedded.config import EngineConfig, ModelConfig
from engines.embedded.kv import PageBytes
from engines.embedded.prefix import KeyScope
from engines.embedded.settled import why_not_native

log = structlog.get_logger()

OPENERS = {
    "native": "engines.embedded.native_backend:open_backend",
    "torch": "engines.embedded.torch_backend:open_backend",
}


class Runner(Protocol):
    """The model over its pages."""

    def run(self, batch: Batch) -> dict[int, tuple[int, ...]]:
        """Write the batch's KV; row -> the model's choices, for rows that reach their newest token.

        One choice after each of the row's last `chunk.num_choices` tokens (`batch.choice_tokens`),
        in order: one token, or one more for each draft. They end before the first whose logits
        aren't finite; a row that has none isn't named: its numbers are broken, nobody else's are.
        """
        ...

    def logits(self, batch: Batch, tokens: Ints) -> NDArray[np.float32]:
        """Write the batch's KV; what the model makes of some of its tokens: [tokens, vocab_size].

        `tokens` are places in the ragged arrays. Nothing is sampled: for those who measure.
        """
        ...

    def close(self) -> None:
        """Let go of the weights. Nothing runs afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class Backend:
    """A model ready to run, and what its pages depend on beside the options."""

    runner: Runner
    kv: PageBytes
    revision: str  # of the weights
    kv_scales: str  # their digest
    layout: str  # of the numbers in a page
    arithmetic: str  # what the bits of a number depend on: kernels, and how they round

    def scopes(self, engine: EngineConfig) -> Callable[[str], KeyScope]:
        """What gives the scope of a domain's content keys."""

        def scope_of(domain: str) -> KeyScope:
            return KeyScope(
                domain=domain,
                model_revision=self.revision,
                adapter="",
                arithmetic=self.arithmetic,
                kv_dtype=engine.kv_dtype,
                kv_scales=self.kv_scales,
                layout=self.layout,
                page_size=engine.page_size,
            )

        return scope_of


def open_backend(folder: Path, model: ModelConfig, engine: EngineConfig) -> Backend:
    """Load the model in `folder`, with settled options. Raises UnsupportedError."""
    module, _, name = OPENERS[engine.backend].partition(":")
    opener: Callable[[Path, ModelConfig, EngineConfig], Backend] = getattr(
        import_module(module), name
    )
    backend = opener(folder, model, engine)
    log.info(
        "model_loaded",
        path=str(folder),
        backend=backend.arithmetic,
        kv_dtype=engine.kv_dtype,
        lm_head=engine.lm_head,
        threads=engine.threads,
        **why_not_native(engine, model),
    )
    return backend
