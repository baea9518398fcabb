"""A whole model in native kernels against the same in torch, on random weights of each family.

Torch computes in float32: what differs is what the native kernels round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engines.embedded.backend import Backend
from engines.embedded.batch import Batch, build
from engines.embedded.config import EngineConfig, ModelConfig
from engines.embedded.native_backend import open_backend
from engines.embedded.native_runner import NativeRunner
from engines.embedded.quantization import Quantization
from engines.embedded.seq import Page, Seq
from engines.embedded.settled import settled
from engines.embedded.torch_backend import open_backend as open_torch
from engines.kernels import native
from tests.engines.helpers import ask, needs_native, random_prompt
from tests.engines.native.tiny_models import KINDS, tiny_model

pytestmark = needs_native

ISAS = native.module.isas() if native.HAS_MODEL else []
KV_DTYPES = ["bfloat16", "fp8_e4m3"]
PAGE = 4
Logits = NDArray[np.float32]


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tiny_model(tmp_path, request.param)


def engine_config(folder: Path, **options: Any) -> EngineConfig:
    told = {"page_size": PAGE, "kv_memory_bytes": 1 << 20, "kv_dtype": "bfloat16"} | options
    return settled(EngineConfig.from_options(told), Quantization.of_folder(folder))


def opened(folder: Path, isa: str = "", **options: Any) -> Backend:
    model = ModelConfig.from_folder(folder)
    return open_backend(folder, model, engine_config(folder, **options), isa)


class Story:
    """Seqs over one backend's pages, fed in any chunks."""

    def __init__(self, backend: Backend, lengths: list[int], seed: int = 0) -> None:
        self.backend = backend
        self.seqs = [
            Seq.of(ask(f"s{i}", random_prompt(n, seed + i), 4)) for i, n in enumerate(lengths)
        ]
        self.logits: list[list[Logits]] = [[] for _ in lengths]
        pages = np.random.default_rng(seed).permutation(np.arange(1, backend.kv.num_pages))
        free = iter(pages.tolist())
        for seq in self.seqs:
            for _ in range(-(-len(seq.tokens) // PAGE)):
                seq.hold(Page(next(free), 1))
            seq.begin(0)

    def step(self, counts: dict[int, int]) -> None:
        """`counts` tokens of these seqs."""
        chunks = {i: self.seqs[i].next_chunk(n) for i, n in counts.items()}
        batch: Batch = build(list(chunks.values()), PAGE)
        found = self.backend.runner.logits(batch, np.arange(len(batch.input_ids)))
        for row, chunk in enumerate(batch.chunks):
            (i,) = (i for i, one in chunks.items() if one is chunk)
            self.logits[i].append(found[batch.token_rows == row])

    def whole(self) -> list[Logits]:
        """All that is left, at once."""
        self.step({i: len(s.tokens) - s.num_scheduled for i, s in enumerate(self.seqs)})
        return [np.concatenate(parts) for parts in self.logits]

    def cut(self, seed: int) -> list[Logits]:
        """In random chunks, of random seqs at a time."""
        chance = np.random.default_rng(seed)
        while left := {
            i: len(s.tokens) - s.num_scheduled
            for i, s in enumerate(self.seqs)
            if len(s.tokens) > s.num_scheduled
        }:
            chosen = [i for i in left if chance.random() < 0.6] or list(left)
            self.step({i: min(left[i], int(chance.choice([1, 1, 2, 5, 17]))) for i in chosen})
        return [np.concatenate(parts) for parts in self.logits]

    def pages(self) -> list[bytes]:
        """What lies in the pages of each seq."""
        kv = self.backend.kv
        return [b"".join(kv.bytes_of(p).tobytes() for p in seq.block_table) for seq in self.seqs]


LENGTHS = [1, 5, 23, 64, 90]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_it_computes_what_torch_computes(folder: Path, isa: str, kv_dtype: str) -> None:
    """Every token's logits, but for rounding."""
    exact = engine_config(folder, backend="torch", dtype="float32", kv_dtype=kv_dtype)
    twin = open_torch(folder, ModelConfig.from_folder(folder), exact)
    expected = np.concatenate(Story(twin, LENGTHS).whole())
    for activations in ("bfloat16", "int8"):
        backend = opened(folder, isa, kv_dtype=kv_dtype, activations=activations)
        found = np.concatenate(Story(backend, LENGTHS).whole())
        errors = np.abs(found - expected).mean() / expected.std()
        assert errors < (0.03 if activations == "bfloat16" else 0.05), activations
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_no_bit_depends_on_who_shares_the_step(folder: Path, isa: str, kv_dtype: str) -> None:
    """Nor on how a prompt is cut, nor on threads: logits and pages are equal to the bit."""
    head = "int8" if kv_dtype == "bfloat16" else "int6"
    options = {"kv_dtype": kv_dtype, "lm_head": head, "activations": "int8"}
    whole = Story(opened(folder, isa, **options), LENGTHS)
    expected = whole.whole()
    for seed, threads in ((1, 1), (2, 3)):
        story = Story(opened(folder, isa, threads=threads, **options), LENGTHS)
        for found, logits in zip(story.cut(seed), expected, strict=True):
            np.testing.assert_array_equal(found, logits)
        assert story.pages() == whole.pages()


def test_a_long_context_is_the_same_shared_among_threads(tmp_path: Path) -> None:
    """One row's context is cut in segments where there are threads to take them."""
    folder = tiny_model(tmp_path, "llama", max_context=4096)
    found = []
    for threads in (1, 3):
        story = Story(opened(folder, threads=threads), [1500])
        story.step({0: 1499})
        story.step({0: 1})
        found.append(story.logits[0][-1])
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_tables", 10_000),
        ("block_tables", -1),
        ("slot_mapping", 1 << 40),
        ("slot_mapping", -4),
        ("positions", 256),
        ("positions", -1),
        ("input_ids", 300),
        ("input_ids", -1),
        ("context_lens", 90),
        ("query_lens", 6),
        ("query_lens", 0),
    ],
)
def test_a_step_that_names_what_is_not_there_writes_nothing(
    tmp_path: Path, name: str, value: int
) -> None:
    """Without the tag check, too, no number is an index before it is known to lie inside."""
    backend = opened(tiny_model(tmp_path, "llama"))
    story = Story(backend, [5, 8])
    batch = build([seq.next_chunk(len(seq.tokens)) for seq in story.seqs], PAGE)
    array = getattr(batch, name)
    array[(-1,) * array.ndim] = value
    with pytest.raises(IndexError, match="a step names"):
        backend.runner.logits(batch, np.arange(3))
    assert all(backend.kv.is_zero(page) for page in range(backend.kv.num_pages))


@pytest.mark.parametrize("kept", [0, 1, 70, 183])
def test_the_best_tokens_are_those_of_the_logits_kept_or_not(tmp_path: Path, kept: int) -> None:
    """More than are computed at a time: only what is drawn from needs its logits."""
    backend = opened(tiny_model(tmp_path, "llama"))
    runner = backend.runner
    assert isinstance(runner, NativeRunner)
    batch = build([s.next_chunk(len(s.tokens)) for s in Story(backend, LENGTHS).seqs], PAGE)
    tokens = np.random.default_rng(0).permutation(len(batch.input_ids))
    expected = runner.logits(batch, tokens)
    best, logits = np.empty(len(tokens), np.int64), np.empty((kept, 300), np.float32)
    runner._model.run(batch.view, tokens, best, logits)
    np.testing.assert_array_equal(best, expected.argmax(axis=1))
    np.testing.assert_array_equal(logits, expected[:kept])


def test_numbers_that_are_not_finite_choose_no_token_for_their_row(tmp_path: Path) -> None:
    """Pages gone wrong: that row has no token, and nobody else's changes a bit."""
    backend = opened(tiny_model(tmp_path, "int4"), kv_dtype="fp8_e4m3")
    story = Story(backend, [9, 9])
    story.step({0: 8, 1: 8})
    backend.kv.bytes_of(story.seqs[0].block_table[0])[:] = 0x7F  # e4m3's NaN
    batch = build([seq.next_chunk(1) for seq in story.seqs], PAGE)
    told = backend.runner.run(batch)
    (row,) = (row for row, chunk in enumerate(batch.chunks) if chunk.seq is story.seqs[1])
    clean = Story(opened(tmp_path, kv_dtype="fp8_e4m3"), [9, 9])
    clean.step({0: 8, 1: 8})
    again = clean.backend.runner.run(build([seq.next_chunk(1) for seq in clean.seqs], PAGE))
    assert told == {row: again[row]}


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """At the boundary, in words: kernels trust what they are told."""
    module = native.module
    packed = module.pack_bf16(np.zeros((32, 64), np.uint16))
    module.Linear("w16a16", packed, 32, 64, 0)
    with pytest.raises(ValueError, match=r"packed weights of \d+ bytes; this shape has \d+"):
        module.Linear("w16a16", packed, 48, 64, 0)
    with pytest.raises(ValueError, match="unknown product 'w2a2'"):
        module.Linear("w2a2", packed, 32, 64, 0)
    with pytest.raises(ValueError, match="factors has 32 numbers instead of 64"):
        module.Linear("w16a16", packed, 32, 64, 0, None, np.ones(32, np.float32))
    told: dict[str, Any] = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 16, "page_size": 4}
    told |= {"numbers": "bfloat16", "k_scales": [1.0], "v_scales": [1.0]}
    memory = np.zeros(4096, np.uint8)
    module.Pages(memory=memory, **told)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"head_dim": 24}, "head_dim is no multiple of 16"),
        ({"page_size": 3}, "page_size is no multiple of 2"),
        ({"numbers": "float32"}, "no pages hold numbers of float32"),
        ({"k_scales": []}, "one number a layer"),
        ({"page_size": 6}, "no whole pages"),
    ]
    for change, words in changes:
        with pytest.raises(ValueError, match=words):
            module.Pages(memory=memory, **(told | change))


def test_pages_of_other_kernels_have_other_keys(tmp_path: Path) -> None:
    """Whatever the bits of a page depend on: instruction set, rounding, dtype, and the backend."""
    folder = tiny_model(tmp_path, "int4")
    exact = engine_config(folder, backend="torch", kv_dtype="bfloat16")
    backends = [(opened(folder, isa, activations=numbers), engine_config(folder))
                for isa in ISAS for numbers in ("int8", "bfloat16")]  # fmt: skip
    backends.append((open_torch(folder, ModelConfig.from_folder(folder), exact), exact))
    scopes = {backend.scopes(engine)("a") for backend, engine in backends}
    assert len(scopes) == 2 * len(ISAS) + 1
    assert len({scope.model_revision for scope in scopes}) == 1
