"""Drafts on the tiny model: the same tokens as without, in fewer steps, and KV of none rejected."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engines.api import FinishReason, Request
from engines.embedded.pages import State
from tests.engines.books import check_books, tables_of
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import Answers, ask, drive, random_prompt

ON_BOTH_BACKENDS = True


def requests(max_tokens: int = 60, **sampling: Any) -> list[Request]:
    """Some that repeat themselves in prompt and answer, and some that don't."""
    prompts = [random_prompt(3 + i, i) * (1 + i % 4) for i in range(8)]
    return [
        ask(f"r{i}", prompt, max_tokens, domain=f"d{i % 3}", **sampling)
        for i, prompt in enumerate(prompts)
    ]


@pytest.fixture(params=[True, False], ids=["overlap", "in turn"])
def make(
    request: pytest.FixtureRequest, make_tiny: EngineFactory, looping_dir: Path
) -> EngineFactory:
    # Few run at once, so that drafts are worth their computing.
    options = {"folder": looping_dir, "overlap": request.param, "max_running": 3}
    return partial(make_tiny, num_pages=300, **options)


def told(answers: Answers) -> dict[str, list[int]]:
    return {id: answers.tokens(id) for id in answers.outputs}


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("speculation", [1, 3, 8])
def test_the_answers_are_those_without_speculation(
    make: EngineFactory, speculation: int, page_size: int
) -> None:
    """Alone and in a crowd, wherever the pages end; and it takes fewer steps."""
    plain = make(page_size=page_size, num_pages=1200 // page_size)
    clean = drive(plain, *requests())
    engine = make(page_size=page_size, num_pages=1200 // page_size, speculation=speculation)
    answers = drive(engine, *requests())
    assert told(answers) == told(clean)
    stats = engine.stats()
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert stats.steps < plain.stats().steps
    assert stats.output_tokens == plain.stats().output_tokens
    assert stats.tag_mismatches == 0


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch_tokens": 8, "max_running": 8},
        {"max_batch_tokens": 9, "max_running": 4},
        {"max_running": 1},
        {"prefix_cache": False},
        {"integrity": "off"},
    ],
    ids=str,
)
def test_how_seqs_are_batched_changes_no_answer(
    make: EngineFactory, options: dict[str, Any]
) -> None:
    clean = drive(make(), *requests())
    answers = drive(make(speculation=8, **options), *requests())
    assert told(answers) == told(clean)


def test_drafts_take_nobody_s_place_in_a_step(make: EngineFactory) -> None:
    """With a budget of as many tokens as seqs that run there's room for drafts at the end only."""
    engine = make(max_batch_tokens=3, max_running=3, speculation=8, prefix_cache=False)
    steps: list[tuple[int, int]] = []
    engine.runway.at = lambda point, batch: steps.append((len(batch.chunks), len(batch.input_ids)))
    answers = drive(engine, *requests(40))
    assert max(tokens for _, tokens in steps) <= 3
    assert all(tokens == 3 for rows, tokens in steps if rows == 3)
    assert all(answers.last(id).finish for id in answers.outputs)


@pytest.mark.parametrize("max_tokens", range(1, 14))
def test_max_tokens_are_never_exceeded(make: EngineFactory, max_tokens: int) -> None:
    """Nor is the context, which prompt and answer fill to the last token here."""
    prompt = [7, 8] * 4
    engine = make(speculation=8, max_context=8 + max_tokens)
    answers = drive(engine, ask("x", prompt, max_tokens))
    whole = drive(make(), ask("x", prompt, 14)).tokens("x")
    assert answers.tokens("x") == whole[:max_tokens]
    assert answers.last("x").finish is FinishReason.LENGTH
    assert engine.stats().output_tokens == max_tokens


def test_an_end_inside_an_accepted_run_is_the_end(make: EngineFactory) -> None:
    """Whatever token is declared to be it: what the step has chosen behind it is never told."""
    request = ask("x", random_prompt(5, 1) * 3, 60)
    plain = drive(make(), request).tokens("x")
    runs = 0
    for end in dict.fromkeys(plain):
        engine = make(speculation=8, prefix_cache=False)
        engine.scheduler.eos_token_ids = frozenset([end])
        answers = drive(engine, request)
        expected = plain[: plain.index(end) + 1]
        assert answers.tokens("x") == expected
        assert answers.last("x").finish is FinishReason.STOP
        assert engine.stats().output_tokens == len(expected)
        runs += len(answers.last("x").token_ids) > 1
        check_books(engine.pool, [])
    assert runs > 0, "no end came in a run"


def test_what_is_drawn_is_never_guessed(make: EngineFactory) -> None:
    """The same draws as without the option, and not a single draft."""
    engine = make(speculation=8)
    answers = drive(engine, *requests(temperature=1.0, seed=3))
    assert told(answers) == told(drive(make(), *requests(temperature=1.0, seed=3)))
    assert engine.stats().drafted_tokens == 0


def test_drafts_come_from_the_request_s_own_tokens(make: EngineFactory) -> None:
    """Whatever else runs or is cached, of its own domain too, each step's drafts are the same."""

    def drafts(*others: Request) -> list[tuple[int, ...]]:
        engine, seen = make(speculation=8), list[tuple[int, ...]]()

        def at(point: str, batch: Any) -> None:
            if point == "computed":
                seen.extend(c.drafts for c in batch.chunks if c.seq.request.id == "x" and c.drafts)

        engine.runway.at = at
        drive(engine, *others)
        assert drive(engine, ask("x", random_prompt(6, 3), 40)).tokens("x")
        return seen

    alone = drafts()
    assert alone
    prompt = random_prompt(6, 3)
    assert drafts(ask("y", prompt * 3 + random_prompt(9, 4), 30), ask("z", prompt[:5], 30)) == alone


def test_who_gives_way_with_drafts_on_their_way_answers_the_same(make: EngineFactory) -> None:
    """Preempted in the middle of a step that computes its drafts: all of that is void."""
    clean = told(drive(make(), *requests(30)))
    engine = make(speculation=8)
    preempted = 0

    def at(point: str, batch: Any) -> None:
        nonlocal preempted
        drafting = [c for c in batch.chunks if c.drafts and c.is_live]
        if point == "checked" and drafting and preempted < 10:
            preempted += 1
            engine.scheduler._preempt(drafting[0].seq)

    engine.runway.at = at
    answers = drive(engine, *requests(30))
    assert told(answers) == clean
    assert preempted == 10
    assert engine.stats().tag_mismatches == 0


def test_a_full_pool_costs_no_answer(make: EngineFactory) -> None:
    """Drafts take free pages only: nobody is preempted for a guess."""
    few = [ask(f"x{i}", random_prompt(5, i) * 4, 40, domain=f"d{i}") for i in range(3)]
    clean = told(drive(make(), *few))
    engine = make(num_pages=26, speculation=8)
    assert told(drive(engine, *few)) == clean
    assert engine.stats().preempted > 0


def test_a_whole_prompt_that_is_cached_may_speculate_at_once(make: EngineFactory) -> None:
    """Its newest token is computed in a copy of its last page, and drafts in the page after it."""
    prompt = random_prompt(4, 2) * 3
    first = drive(make(), ask("x", prompt, 20)).tokens("x")
    engine = make(speculation=8)
    for id in ("cold", "warm", "again"):
        answers = drive(engine, ask(id, prompt, 20))
        assert answers.tokens(id) == first
    assert answers.cached("again") == len(prompt) - 1


def test_rejected_drafts_leave_no_page_to_be_found(make: EngineFactory, backend: str) -> None:
    """Every page that is cached holds what a sound engine without drafts computes for its key."""
    plain, engine = make(), make(speculation=8)
    for request in requests(40):
        answer = drive(plain, request).tokens(request.id)
        drive(engine, request)
        keys = engine.tables.keys_of(request.domain, [*request.prompt, *answer])
        found, owed = engine.tables.prefix.match(keys), plain.tables.prefix.match(keys)
        assert len(found) == len(owed) == (len(request.prompt) + len(answer) - 1) // 4
        for page, other in zip(found, owed, strict=True):
            ours, theirs = engine.kv.bytes_of(page.id), plain.kv.bytes_of(other.id)
            if backend == "native":  # whose numbers don't depend on who shares a step
                assert (ours == theirs).all()
            else:
                assert abs(ours.view("f4") - theirs.view("f4")).max() < 1e-4
            assert engine.pool.states[page.id] == State.CACHED
    assert engine.stats().accepted_tokens < engine.stats().drafted_tokens


def test_who_is_aborted_with_drafts_on_their_way_leaves_everything(make: EngineFactory) -> None:
    engine = make(speculation=8)
    for request in requests():
        engine.add(request)
    for _ in range(9):
        engine.step()
    for request in requests():
        engine.abort(request.id)
    while engine.has_work():
        assert engine.step() == []
    engine.tend()
    check_books(engine.pool, tables_of(engine))
    assert not engine.scheduler.running


def test_steps_wait_for_each_other_only_while_drafts_may_come(make_tiny: EngineFactory) -> None:
    """A text that never repeats itself is computed with steps that overlap, as ever."""
    once, again = list(range(100, 120)), [*range(100, 120), 100, 101, 102]
    for prompt, on_their_way in ((once, 1), (again, 0)):
        engine = make_tiny(speculation=8)
        engine.add(ask("x", prompt, 9))
        engine.step()
        assert len(engine._flights) == on_their_way, "when the first has landed"
