"""Small pools of KV pages, filled and read back."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engines.embedded.config import EngineConfig, ModelConfig, page_bytes
from engines.embedded.kv.cache import KvCache

PAGE_SIZE = 4
MODEL = ModelConfig(
    vocab_size=8,
    hidden_size=48,
    intermediate_size=8,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_context=64,
    tied_embeddings=True,
    eos_token_ids=frozenset(),
)
KV_DTYPES = ["float32", "bfloat16", "fp8_e4m3"]


def config(kv_dtype: str = "float32", num_pages: int = 9, dtype: str = "float32") -> EngineConfig:
    engine = EngineConfig(dtype=dtype, kv_dtype=kv_dtype, page_size=PAGE_SIZE)
    return replace(engine, kv_memory_bytes=num_pages * page_bytes(MODEL, engine))


def cache(kv_dtype: str = "float32", num_pages: int = 9) -> KvCache:
    return KvCache(MODEL, config(kv_dtype, num_pages))


def small_integers(*shape: int, seed: int = 0) -> Tensor:
    """Numbers that every dtype holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 9, shape, generator=generator).float()


def fill(kv: KvCache, pages: list[int], seed: int = 0) -> None:
    """Other numbers in each layer, page and head, K and V."""
    slots = torch.tensor([p * PAGE_SIZE + offset for p in pages for offset in range(PAGE_SIZE)])
    for layer in range(MODEL.num_layers):
        k, v = small_integers(2, len(slots), 2, 8, seed=seed + layer)
        kv.write(layer, slots, k, v)


def everything(kv: KvCache, pages: list[int]) -> Tensor:
    """K and V of these pages in all layers, as attention would read them."""
    table = torch.tensor([pages])
    layers = [torch.stack(kv.read(layer, table)) for layer in range(MODEL.num_layers)]
    return torch.stack(layers)
