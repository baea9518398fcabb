"""Pages of KV: written by slot, read by table, copied, zeroed, and seen as bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engines.embedded.config import EngineConfig, UnsupportedError
from engines.embedded.kv import SharedMemory
from engines.embedded.kv.cache import KvCache
from tests.engines.kv_pools import (
    KV_DTYPES,
    MODEL,
    PAGE_SIZE,
    cache,
    config,
    everything,
    fill,
    small_integers,
)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_what_is_written_at_a_slot_is_read_through_a_table(kv_dtype: str) -> None:
    """By token, head and layer; K apart from V; rows apart from each other."""
    kv = cache(kv_dtype)
    table = torch.tensor([[3, 1], [5, 7]])
    written = {}
    for layer in range(MODEL.num_layers):
        k, v = written[layer] = small_integers(2, 16, 2, 8, seed=layer)
        slots = (table[:, :, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()
        order = torch.randperm(16, generator=torch.Generator().manual_seed(layer))
        kv.write(layer, slots[order], k[order], v[order])
    for layer, sides in written.items():
        for found, values in zip(kv.read(layer, table), sides, strict=True):
            assert found.dtype == torch.float32
            assert torch.equal(found, values.view(2, 8, 2, 8).permute(2, 0, 1, 3))


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_page_s_bytes_are_all_of_it_and_nothing_else(kv_dtype: str) -> None:
    """Carried to another pool's page they read the same; the pages beside stay zero."""
    kv, other = cache(kv_dtype), cache(kv_dtype)
    fill(kv, [4])
    assert kv.bytes_of(4).shape == (kv.page_bytes,)
    assert kv.bytes_of(4).flags.c_contiguous
    other.bytes_of(6)[:] = kv.bytes_of(4)
    assert torch.equal(everything(other, [6]), everything(kv, [4]))
    assert [page for page in range(9) if not kv.is_zero(page)] == [4]
    assert [page for page in range(9) if not other.is_zero(page)] == [6]


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_pages_are_copied_whole_and_at_once(kv_dtype: str) -> None:
    """All layers, K and V; a target may be another's source, as it was before."""
    kv = cache(kv_dtype)
    fill(kv, [1, 2, 3])
    before = {page: everything(kv, [page]) for page in (1, 2, 3)}
    kv.copy([1, 2, 3], [5, 1, 6])
    assert torch.equal(everything(kv, [5]), before[1])
    assert torch.equal(everything(kv, [1]), before[2])
    assert torch.equal(everything(kv, [6]), before[3])
    assert torch.equal(everything(kv, [2, 3]), torch.cat([before[2], before[3]], dim=4))
    assert [page for page in range(9) if not kv.is_zero(page)] == [1, 2, 3, 5, 6]


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_zeroed_pages_are_zero_and_others_are_kept(kv_dtype: str) -> None:
    """Every byte of them: one set bit is seen."""
    kv = cache(kv_dtype)
    fill(kv, [2, 3, 4])
    kept = everything(kv, [3])
    kv.zero([2, 4])
    assert kv.is_zero(2)
    assert kv.is_zero(4)
    assert torch.equal(everything(kv, [3]), kept)
    kv.bytes_of(4)[kv.page_bytes - 1] = 1
    assert not kv.is_zero(4)


def test_empty_lists_of_pages_are_fine() -> None:
    """A step that copies and zeroes nothing needs no branch."""
    kv, none = cache(), np.array([], np.int64)
    kv.copy(none, none)
    kv.zero(none)


def test_fp8_pages_are_twice_as_many_as_bfloat16_pages_in_the_same_memory() -> None:
    """And four times as many as float32's."""
    pages = {}
    for kv_dtype in KV_DTYPES:
        engine = EngineConfig(kv_dtype=kv_dtype, page_size=PAGE_SIZE, kv_memory_bytes=12 << 20)
        pages[kv_dtype] = KvCache(MODEL, engine).num_pages
    assert pages["fp8_e4m3"] == 2 * pages["bfloat16"] == 4 * pages["float32"]


def test_memory_that_holds_no_two_pages_is_refused_by_the_option() -> None:
    """The null page is nobody's."""
    with pytest.raises(UnsupportedError, match="'kv_memory_bytes' holds 1 pages of 1536 bytes"):
        cache(num_pages=1)


def test_memory_that_the_machine_hasn_t_is_refused_by_the_option() -> None:
    """More than fits into any address space."""
    with pytest.raises(UnsupportedError, match=r"'kv_memory_bytes': no 11258\d+ bytes: "):
        KvCache(MODEL, EngineConfig(kv_dtype="bfloat16", kv_memory_bytes=1 << 50))


def test_memory_made_for_another_pool_is_refused() -> None:
    """Its pages would lie elsewhere."""
    with pytest.raises(ValueError, match="instead of"):
        KvCache(MODEL, config(), memory=SharedMemory.create(4096))


def test_pages_begin_where_the_system_s_do() -> None:
    """At the default model's shape, so that each can be protected alone."""
    model = replace(MODEL, num_layers=30, num_kv_heads=3, head_dim=64)
    kv = KvCache(model, EngineConfig(kv_dtype="fp8_e4m3", kv_memory_bytes=1 << 20))
    addresses = [kv.bytes_of(page).ctypes.data for page in range(kv.num_pages)]
    assert not any(address % 4096 for address in addresses)
    assert np.diff(addresses).tolist() == [kv.page_bytes] * (kv.num_pages - 1)
