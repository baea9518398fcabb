"""The whole engine on a tiny random model: same answers however they come about, and its limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.api import (
    ContextLengthExceeded,
    EngineFailed,
    EngineSpec,
    FinishReason,
    RequestRefused,
)
from engines.embedded.engine import create
from tests.engines.books import check_books
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import TIE, Answers, Reference, ask, drive, random_prompt

ON_BOTH_BACKENDS = True
AssertGreedy = Callable[[list[int], list[int]], None]

LENGTHS = [1, 3, 4, 5, 8, 17, 30, 41]
PROMPTS = {f"r{length}": random_prompt(length, seed=length) for length in LENGTHS}


@pytest.fixture(scope="module")
def exact(tiny_dir: Path) -> Reference:
    return Reference(tiny_dir, torch.float32)


@pytest.fixture
def assert_greedy(exact: Reference, backend: str) -> AssertGreedy:
    """Asserts that an answer is the model's own. bfloat16 may order near logits either way."""
    tie = {"torch": TIE, "native": 0.15}[backend]
    return partial(exact.assert_greedy, tie=tie)


def requests(**sampling: Any) -> list[Any]:
    return [ask(id, prompt, 12, **sampling) for id, prompt in PROMPTS.items()]


def test_paged_attention_equals_a_forward_pass_without_cache(
    make_tiny: EngineFactory, assert_greedy: AssertGreedy
) -> None:
    """Greedy answers over pages, batched and chunked, are the model's own."""
    answers = drive(make_tiny(max_batch_tokens=64, num_pages=200), *requests())
    for id, prompt in PROMPTS.items():
        assert len(answers.tokens(id)) in range(1, 13)
        assert_greedy(prompt, answers.tokens(id))


@pytest.mark.parametrize(
    "options",
    [
        {"max_running": 1},
        {"max_batch_tokens": 8, "max_running": 8},
        {"max_batch_tokens": 64},
        {"page_size": 1},
        {"page_size": 32},
        {"prefix_cache": False},
        {"integrity": "off"},
        {"overlap": False},
        {"overlap": False, "max_running": 2},
    ],
    ids=str,
)
def test_how_seqs_are_batched_chunked_and_paged_changes_no_answer(
    make_tiny: EngineFactory, assert_greedy: AssertGreedy, options: dict[str, Any]
) -> None:
    """Alone, in small chunks, in pages of 1 or 32 tokens: equal to the model's own choice."""
    engine = make_tiny(**({"max_batch_tokens": 64, "num_pages": 300} | options))
    answers = drive(engine, *requests())
    for id, prompt in PROMPTS.items():
        assert_greedy(prompt, answers.tokens(id))


def test_where_a_seq_lies_in_the_pool_changes_no_answer(make_tiny: EngineFactory) -> None:
    """The same request over other, scattered pages gives the same tokens."""
    prompt = PROMPTS["r30"]
    engine = make_tiny(prefix_cache=False)
    first = drive(engine, ask("x", prompt)).tokens("x")
    drive(engine, *[ask(f"n{i}", random_prompt(5 + 7 * i, i), 3 + i) for i in range(5)])
    assert drive(engine, ask("y", prompt)).tokens("y") == first


def test_a_cached_prefix_changes_no_answer(
    make_tiny: EngineFactory, assert_greedy: AssertGreedy
) -> None:
    """Warm equals cold, also when only a part of the prompt is shared."""
    engine = make_tiny()
    drive(engine, ask("cold", PROMPTS["r30"]))
    for id, prompt in (("same", PROMPTS["r30"]), ("fork", PROMPTS["r30"][:17] + PROMPTS["r8"])):
        answers = drive(engine, ask(id, prompt))
        assert answers.cached(id) > 0
        assert_greedy(prompt, answers.tokens(id))


def test_seeded_sampling_repeats_and_ignores_batch_mates(make_tiny: EngineFactory) -> None:
    """The same seed gives the same answer alone and in a crowd; another seed another one."""
    sampling: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95}
    engine = make_tiny(num_pages=300, max_batch_tokens=64, prefix_cache=False)
    crowd = drive(engine, *requests(seed=5, **sampling))
    for id, prompt in PROMPTS.items():
        alone = drive(engine, ask(id, prompt, 12, seed=5, **sampling)).tokens(id)
        assert alone == crowd.tokens(id)
    other = drive(engine, *requests(seed=6, **sampling))
    assert any(other.tokens(id) != crowd.tokens(id) for id in PROMPTS)


@pytest.mark.parametrize("steps", [0, 2, 6])
def test_an_abort_frees_all_pages(make_tiny: EngineFactory, steps: int) -> None:
    """Waiting, in prefill or decoding: nothing follows, and no page stays held."""
    engine = make_tiny(max_batch_tokens=16, max_running=4)
    engine.add(ask("x", PROMPTS["r41"], 40))
    for _ in range(steps):
        engine.step()
    engine.abort("x")
    engine.abort("x")
    assert drive(engine).outputs == {}
    assert not engine.has_work()
    pages = engine.stats().pages
    assert pages["free"] + pages["cached"] == 64
    assert engine.stats().aborted == 1
    check_books(engine.pool, [])


def test_an_aborted_neighbour_changes_nothing(make_tiny: EngineFactory) -> None:
    """Others go on with the same tokens."""
    engine = make_tiny(prefix_cache=False)
    clean = drive(engine, ask("keep", PROMPTS["r17"], 12)).tokens("keep")
    answers = Answers()
    engine.add(ask("keep", PROMPTS["r17"], 12))
    engine.add(ask("gone", PROMPTS["r30"], 12))
    for _ in range(4):
        answers.take(engine.step())
    engine.abort("gone")
    while engine.has_work():
        answers.take(engine.step())
    assert answers.tokens("keep") == clean
    assert answers.last("gone").finish is None


@pytest.mark.parametrize("overlap", [True, False])
def test_who_gave_way_when_pages_ran_out_answers_the_same(
    make_tiny: EngineFactory, overlap: bool
) -> None:
    """Three requests of half a pool each: preempted and computed anew, to the same tokens."""
    requests = [ask(f"x{i}", random_prompt(20, i), 20, domain=f"d{i}") for i in range(3)]
    roomy = drive(make_tiny(num_pages=200), *requests)
    engine = make_tiny(num_pages=21, overlap=overlap)
    tight = drive(engine, *requests)
    assert engine.stats().preempted > 0
    for request in requests:
        assert tight.tokens(request.id) == roomy.tokens(request.id)
        assert tight.cached(request.id) == 0
    assert engine.stats().output_tokens == sum(len(tight.tokens(r.id)) for r in requests)


def test_cached_pages_make_room_for_new_work(make_tiny: EngineFactory) -> None:
    """A pool full of cached pages is as good as an empty one."""
    engine = make_tiny(num_pages=17)
    for i in range(8):
        answers = drive(engine, ask(f"x{i}", random_prompt(30, i), 20, domain=f"d{i}"))
        assert answers.last(f"x{i}").finish is not None
    assert engine.stats().pages["cached"] > 0


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (ask("x", []), RequestRefused, "empty"),
        (ask("x", [300]), RequestRefused, "outside 0..299"),
        (ask("x", [-1]), RequestRefused, "outside"),
        (ask("x", [1], 0), RequestRefused, "max_tokens"),
        (ask("x", [1], temperature=-0.1), RequestRefused, "temperature"),
        (ask("x", [1], temperature=float("nan")), RequestRefused, "temperature"),
        (ask("x", [1], top_p=0.0), RequestRefused, "top_p"),
        (ask("x", [1], top_p=1.1), RequestRefused, "top_p"),
        (ask("x", [1] * 200, 57), ContextLengthExceeded, "context of 256"),
    ],
)
def test_what_can_never_run_is_refused(
    make_tiny: EngineFactory, request_: Any, error: type[Exception], words: str
) -> None:
    """With the reason, and nothing is queued."""
    engine = make_tiny()
    with pytest.raises(error, match=words):
        engine.add(request_)
    assert not engine.has_work()


def test_a_prompt_that_exactly_fits_runs(make_tiny: EngineFactory) -> None:
    """The context is prompt and answer together, to the last token."""
    engine = make_tiny()
    answers = drive(engine, ask("x", [1] * 250, 6))
    assert answers.last("x").finish is not None


def test_the_context_is_no_longer_than_the_pool(make_tiny: EngineFactory) -> None:
    """Eight pages of 4 tokens hold 32."""
    engine = make_tiny(num_pages=9)
    assert engine.max_context_tokens == 32
    with pytest.raises(ContextLengthExceeded):
        engine.add(ask("x", [1] * 30, 3))


def test_an_id_in_use_is_refused(make_tiny: EngineFactory) -> None:
    """Once it has ended, it may be used again."""
    engine = make_tiny()
    engine.add(ask("x", [1]))
    with pytest.raises(RequestRefused, match="in use"):
        engine.add(ask("x", [2]))
    drive(engine)
    drive(engine, ask("x", [2]))


def test_the_end_token_is_reported_with_stop(make_tiny: EngineFactory) -> None:
    """Declare the token that the model will choose third to be the end: two are answered before."""
    engine = make_tiny()
    answer = drive(engine, ask("x", PROMPTS["r8"], 6)).tokens("x")
    engine.scheduler.eos_token_ids = frozenset([answer[2]])
    again = drive(engine, ask("y", PROMPTS["r8"], 6))
    expected = answer[: answer.index(answer[2]) + 1]
    assert again.tokens("y") == expected
    assert again.last("y").finish is FinishReason.STOP


def test_cached_tokens_are_told_once_at_admission(make_tiny: EngineFactory) -> None:
    """Even in a step that yields no token yet."""
    engine = make_tiny(max_batch_tokens=8, max_running=4)
    engine.add(ask("x", PROMPTS["r30"]))
    (first,) = engine.step()
    assert first.cached_tokens == 0
    assert first.token_ids == ()
    assert all(output.cached_tokens is None for output in drive(engine).outputs["x"])


def test_stats_count_what_happened(make_tiny: EngineFactory) -> None:
    """Prompt, cached and output tokens add up over requests; every page is in one state."""
    engine = make_tiny()
    answers = drive(engine, ask("x", PROMPTS["r17"], 4))
    answers.take(drive(engine, ask("y", PROMPTS["r17"], 4)).outputs["y"])
    stats = engine.stats()
    assert stats.prompt_tokens == 34
    assert stats.cached_tokens == 16
    assert stats.output_tokens == len(answers.tokens("x")) + len(answers.tokens("y"))
    assert sum(stats.pages.values()) == 64
    assert stats.tag_pages_checked > 0
    assert (stats.tag_mismatches, stats.integrity_aborts, stats.waiting, stats.running) == (0,) * 4


def test_a_broken_step_breaks_the_engine_for_good(make_tiny: EngineFactory) -> None:
    """EngineFailed then and ever after, with the cause."""
    engine = make_tiny()
    engine.add(ask("x", [1]))
    engine.runner.run = lambda batch: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    for _ in range(2):
        with pytest.raises(EngineFailed, match="ZeroDivisionError"):
            engine.step()


def test_a_closed_engine_says_so(tiny_dir: Path) -> None:
    """A step after close is an EngineFailed."""
    engine = create(EngineSpec("tiny", str(tiny_dir)))
    engine.close()
    with pytest.raises(EngineFailed, match="closed"):
        engine.step()


def test_bf16_pages_under_float32_weights_work(make_tiny: EngineFactory) -> None:
    """Compute and KV dtypes are chosen apart."""
    engine = make_tiny(kv_dtype="bfloat16", num_pages=129)
    assert len(drive(engine, ask("x", PROMPTS["r17"], 4)).tokens("x")) == 4


def test_no_integrity_error_without_a_fault(make_tiny: EngineFactory) -> None:
    """Many requests of several domains through a tight pool: no false alarm."""
    engine = make_tiny(num_pages=41, max_batch_tokens=16, max_running=8)
    for i in range(30):
        engine.add(ask(f"x{i}", random_prompt(3 + i, i % 7), 6, domain=f"d{i % 3}"))
    answers = drive(engine)
    assert all(answers.last(f"x{i}").finish is not FinishReason.ERROR for i in range(30))
    assert engine.stats().tag_mismatches == 0
