"""The most that a check can cost: next to no model, and as many pages as an engine may hold.

The packaged model cut to its first two layers decodes 64 rows over some 8K tokens each: 32,000
pages a step. Computing those prompts would take an hour, so their pages come through the door by
which another process fills pages, as noise: all the bookkeeping is as after a real transfer, and
attention takes as long over noise as over anything else.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
import xxhash
from safetensors.torch import load_file, save_file

from benchmarks.bulkhead import SCRATCH
from engines.api import EngineSpec, Request, Sampling
from engines.embedded.config import EngineConfig, ModelConfig, page_bytes
from engines.embedded.engine import EmbeddedEngine, create
from engines.embedded.settled import settled_options

LAYERS, ROWS = 2, 64
CONTEXT, STEPS = 8192, 126  # tokens of a row, the last of which are decoded in so many steps
PAGE = EngineConfig().page_size
FILLED = (CONTEXT - STEPS) // PAGE * PAGE  # tokens of a row that come through the door


def two_layers(folder: Path) -> Path:
    """A folder with the model of `folder` cut short. It never ends an answer by itself."""
    short = SCRATCH / f"{folder.name}-{LAYERS}-layers"
    short.mkdir(parents=True, exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": LAYERS, "eos_token_id": []}
    (short / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (short / name).write_bytes((folder / name).read_bytes())
    weights = load_file(folder / "model.safetensors")
    dropped = tuple(f"model.layers.{i}." for i in range(LAYERS, 1000))
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(dropped)}
    save_file(kept, short / "model.safetensors")
    return short


def engine(folder: Path, backend: str, *, overlap: bool) -> EmbeddedEngine:
    """One with room for exactly this."""
    options = {"backend": backend, "overlap": overlap, "max_running": ROWS}
    settled = settled_options(options, folder)
    pages = ROWS * (CONTEXT // PAGE + 2) + 1
    size = pages * page_bytes(ModelConfig.from_folder(folder), settled)
    return create(EngineSpec("two-layers", str(folder), options | {"kv_memory_bytes": size}))


def requests(seed: str, domains: int) -> list[Request]:
    """One a row; a single token of each prompt isn't in the filled pages."""
    chance = random.Random(seed)
    return [
        Request(
            f"long{row}",
            f"d{row % domains}",
            tuple(chance.randrange(1000, 49_000) for _ in range(FILLED + 1)),
            Sampling(STEPS, temperature=0.0),
        )
        for row in range(ROWS)
    ]


def fill(engine: EmbeddedEngine, requests: list[Request]) -> None:
    """Let the pages of their prompts come through the engine's door."""
    page = _noise(engine.kv.page_bytes)
    checksum = xxhash.xxh3_64_intdigest(page)
    for request in requests:
        load = engine.door.open(request.domain, list(request.prompt[:FILLED]))
        for place in load.pages:
            engine.kv.bytes_of(place.id)[:] = memoryview(page)
        engine.door.commit(load.id, load.incarnation, [checksum] * len(load.pages))


def _noise(size: int) -> bytes:
    numbers = torch.randn(size // 2, generator=torch.Generator().manual_seed(1))
    return bytes(numbers.bfloat16().view(torch.uint8).numpy().tobytes())
