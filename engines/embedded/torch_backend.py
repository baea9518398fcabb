"""The torch backend: any dtype, on any machine that torch runs on."""

from __future__ import annotations

from pathlib import Path

import torch

from engines.embedded.backend import Backend
from engines.embedded.checkpoint import Checkpoint, revision
from engines.embedded.config import EngineConfig, ModelConfig
from engines.embedded.kv import Scales
from engines.embedded.kv.cache import LAYOUT, TORCH_DTYPES, KvCache
from engines.embedded.loader import load
from engines.embedded.models.llama import Llama
from engines.embedded.runner import Runner


def open_backend(folder: Path, model: ModelConfig, engine: EngineConfig) -> Backend:
    """See backend.open_backend."""
    torch.set_num_threads(engine.threads)
    weights = load(Checkpoint(folder), model, TORCH_DTYPES[engine.dtype])
    scales = Scales.of(folder, model, engine)
    kv = KvCache(model, engine, scales)
    return Backend(
        runner=Runner(Llama(model, weights), kv, engine.page_size),
        kv=kv,
        revision=revision(folder),
        kv_scales=scales.digest,
        layout=LAYOUT,
        arithmetic=f"torch/{engine.dtype}",
    )
