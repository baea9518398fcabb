"""Every fault that can be planted, planted under load: who notices, and that nobody else does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from engines.api import EngineFailed, FinishReason, KvIntegrityAbort
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.faults import BETWEEN_STEPS, FAULTS, plant
from engines.embedded.pages import State
from engines.embedded.seq import Seq
from engines.embedded.victims import FaultImpossible
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import Answers, ask, drive, random_prompt

ON_BOTH_BACKENDS = True

QUOTING = ask("x", random_prompt(7, 0) * 4, 60)  # of the looping model, see conftest
SHARED = random_prompt(12, 99)  # what all prompts of a domain begin with


def requests() -> list[object]:
    """Six of three domains, whose prompts share three pages inside a domain."""
    return [
        ask(f"r{i}", SHARED + random_prompt(3 + i, i), 16, domain=f"d{i % 3}") for i in range(6)
    ]


@pytest.fixture(params=[True, False], ids=["overlap", "in turn"])
def make(request: pytest.FixtureRequest, make_faulty: EngineFactory) -> EngineFactory:
    return partial(make_faulty, overlap=request.param, num_pages=129, max_batch_tokens=64)


def run(engine: EmbeddedEngine, kind: str | None = None, after: int = 6) -> Answers:
    """Drive all requests; plant the fault once they answer."""
    answers = Answers()
    for each in requests():
        engine.add(each)  # type: ignore[arg-type]
    for number in range(200):
        if number == after and kind is not None:
            plant(engine, kind)
        if not engine.has_work():
            return answers
        answers.take(engine.step())
    raise AssertionError("the engine never came to an end")


def aborted(answers: Answers) -> set[str]:
    return {
        id
        for id in answers.outputs
        if isinstance(answers.last(id).error, KvIntegrityAbort)
        and answers.last(id).finish is FinishReason.ERROR
    }


# kind -> how many rows are stopped, the phase and the kind of what is noticed
STOPS = {
    "free-held-page": (1, "before", {"stale", "domain"}),
    "bump-tag-in-step": (1, "after", {"stale"}),
    "swap-tables": (2, "before", {"domain"}),
    "swap-tables-and-tags": (2, "before", {"domain"}),
    "stale-staging": (1, "before", {"domain"}),
    "evict-held-page": (None, "before", {"stale", "domain"}),
    "seal-too-soon": (1, "before", {"slot"}),
    "negative-slot": (1, "before", {"slot"}),
    "share-active-page": (1, "before", {"slot"}),
}


@pytest.mark.parametrize("kind", STOPS)
def test_a_planted_fault_stops_its_rows_and_no_other(make: EngineFactory, kind: str) -> None:
    """The named layer notices; the others' tokens are those of a run without it."""
    clean = run(make())
    engine = make()
    answers = run(engine, kind)
    number, phase, kinds = STOPS[kind]
    stopped = aborted(answers)
    assert stopped
    assert number is None or len(stopped) == number
    for id in clean.outputs:
        if id in stopped:
            assert clean.tokens(id)[: len(answers.tokens(id))] == answers.tokens(id)
        else:
            assert answers.tokens(id) == clean.tokens(id)
    stats = engine.stats()
    assert stats.integrity_aborts == stats.integrity_aborts_streamed == len(stopped)
    noticed = {tuple(key.split("/")) for key in stats.mismatches}
    assert noticed <= {(a, b) for a in ("before", "after") for b in (*kinds, "quarantined")}
    if not engine.overlaps or FAULTS[kind].layer != BETWEEN_STEPS:
        assert {seen for seen, _ in noticed} == {phase}
    free = [page for page in range(1, 129) if engine.pool.states[page] == State.FREE]
    assert all(engine.kv.is_zero(page) for page in free)


@pytest.mark.parametrize("kind", ["double-free", "disable-check"])
def test_a_fault_of_the_engine_itself_breaks_it(make: EngineFactory, kind: str) -> None:
    """It answers nothing any more rather than something that may be wrong."""
    with pytest.raises(EngineFailed):
        run(make(), kind)


def test_a_key_that_drops_the_domain_is_an_incident(make: EngineFactory) -> None:
    """The reader starts again, cold; the engine retires."""
    engine = make()
    prompt = random_prompt(17, 3)
    plant(engine, "drop-domain-from-key")
    drive(engine, ask("first", prompt, 2, domain="a"))
    answers = drive(engine, ask("thief", prompt, 2, domain="b"))
    assert answers.tokens("thief") == drive(make(), ask("x", prompt, 2)).tokens("x")
    assert engine.stats().mismatches.keys() == {"before/domain"}
    assert "another domain" in engine.retirement


def test_an_entry_of_a_freed_page_is_a_miss(make: EngineFactory) -> None:
    """Its tag is another one by now."""
    engine = make()
    prompt = random_prompt(17, 3)
    first = drive(engine, ask("x", prompt)).tokens("x")
    for _ in range(4):
        plant(engine, "stale-index-entry")
    answers = drive(engine, ask("y", prompt))
    assert answers.cached("y") < 16
    assert answers.tokens("y") == first
    assert engine.stats().tag_mismatches == 0


def test_a_flipped_bit_is_found_when_its_page_is_reused(make: EngineFactory) -> None:
    """The page is taken out of use, and computed anew."""
    engine = make()
    prompt = random_prompt(17, 3)
    first = drive(engine, ask("x", prompt, 1)).tokens("x")
    plant(engine, "flip-bit")
    answers = drive(engine, ask("y", prompt, 1))
    assert answers.cached("y") < 16
    assert answers.tokens("y") == first
    assert engine.stats().scrubbed["mismatches"] == 1
    assert engine.stats().pages["quarantined"] == 1


@pytest.mark.parametrize(
    ("kind", "counter"), [("null-page-written", "residues"), ("skip-wiping", "residues")]
)
def test_scrubbing_finds_what_should_be_zero(make: EngineFactory, kind: str, counter: str) -> None:
    """In the background, whoever looks next."""
    engine = make(prefix_cache=False)
    plant(engine, kind)
    run(engine)
    scrubber = engine.tables.scrubber
    assert scrubber is not None
    scrubber.look(engine.pool.num_pages)
    assert engine.stats().scrubbed[counter] > 0


def test_spent_generations_retire_the_engine(make: EngineFactory) -> None:
    """What runs goes on to its end; nothing new begins."""
    engine = make()
    answers = run(engine, "spend-generations")
    ends = (FinishReason.LENGTH, FinishReason.STOP)
    assert all(answers.last(id).finish in ends for id in answers.outputs)
    assert "generations" in engine.retirement


def test_a_page_sealed_over_a_rejected_draft_is_read_by_nobody(
    make: EngineFactory, looping_dir: Path
) -> None:
    """Who wrote it is stopped at its next write; who found it meanwhile starts again, cold."""
    make = partial(make, folder=looping_dir)
    clean = drive(make(), QUOTING).tokens("x")
    engine, answers = make(speculation=8), Answers()
    seq = _drive_to_a_page_sealed_early(engine, answers)
    reader = ask("reader", [*seq.tokens, 1], 8)
    assert len(seq.tokens) % 4 == 0
    found = engine.tables.prefix.match(engine.tables.keys_of("a", seq.tokens))
    assert len(found) == len(seq.tokens) // 4, "the page is there to be found"
    engine.add(reader)
    while engine.has_work():
        answers.take(engine.step())
    assert aborted(answers) == {"x"}
    assert answers.tokens("x") == clean[: len(answers.tokens("x"))]
    assert answers.tokens("reader") == drive(make(), reader).tokens("reader")
    assert engine.stats().mismatches == {"before/slot": 1, "after/quarantined": 1}
    assert engine.stats().integrity_retries == 1


def test_nobody_finds_such_a_page_of_one_that_goes(make: EngineFactory, looping_dir: Path) -> None:
    """It gave way before it could write again: the page goes out of use, and isn't cached."""
    engine = make(folder=looping_dir, speculation=8)
    seq = _drive_to_a_page_sealed_early(engine, Answers())
    keys = engine.tables.keys_of("a", seq.tokens)
    engine.abort("x")
    assert len(engine.tables.prefix.match(keys)) == len(keys) - 1
    assert engine.stats().pages["quarantined"] == 1


def test_other_weights_find_nothing_cached(make: EngineFactory) -> None:
    """The key names the revision, not the model's name."""
    engine = make()
    prompt = random_prompt(17, 3)
    drive(engine, ask("x", prompt))
    plant(engine, "change-weights")
    assert drive(engine, ask("y", prompt)).cached("y") == 0


def test_every_fault_is_planted_here() -> None:
    """A new kind needs its test."""
    source = Path(__file__).read_text()
    assert [kind for kind in FAULTS if f'"{kind}"' not in source] == []


def test_a_fault_without_a_place_says_so(make: EngineFactory) -> None:
    """Nothing runs, or nobody knows the kind."""
    for kind in ("free-held-page", "swap-tables", "flip-bit", "nonsense"):
        with pytest.raises(FaultImpossible):
            plant(make(), kind)


@pytest.mark.parametrize("kind", ["swap-tables", "swap-tables-and-tags"])
def test_rows_of_two_tenants_are_needed_and_said_to_be(make: EngineFactory, kind: str) -> None:
    """Rows of one tenant would be noticed otherwise than the fault says, or not at all."""
    engine = make()
    engine.add(ask("a", random_prompt(5, 1), 32, domain="one"))
    _step_until_answered(engine, 1)
    with pytest.raises(FaultImpossible, match="2 requests must be answering, and only one is"):
        plant(engine, kind)
    engine.add(ask("b", random_prompt(5, 2), 32, domain="one"))
    _step_until_answered(engine, 2)
    with pytest.raises(FaultImpossible, match="of two tenants must be answering, and all are of"):
        plant(engine, kind)
    engine.add(ask("c", random_prompt(5, 3), 32, domain="two"))
    _step_until_answered(engine, 3)
    plant(engine, kind)
    while engine.has_work():
        engine.step()
    assert engine.stats().mismatches["before/domain"] > 0


@pytest.mark.parametrize("kind", ["free-held-page", "negative-slot"])
def test_that_nothing_answers_is_told_in_good_english(make: EngineFactory, kind: str) -> None:
    with pytest.raises(FaultImpossible, match="a request must be answering, and none is"):
        plant(make(), kind)


def _drive_to_a_page_sealed_early(engine: EmbeddedEngine, answers: Answers) -> Seq:
    engine.add(QUOTING)
    answers.take(engine.step())
    plant(engine, "seal-rejected-draft")
    for _ in range(60):
        answers.take(engine.step())
        (seq,) = engine.scheduler.running
        if (engine.pool.states[seq.block_table[seq.num_sealed_pages :]] == State.SEALED).any():
            return seq
    raise AssertionError("no draft was rejected at a page's end")


def _step_until_answered(engine: EmbeddedEngine, number: int) -> None:
    for _ in range(12):
        if sum(seq.has_answered for seq in engine.scheduler.running) == number:
            return
        engine.step()
    raise AssertionError("they never answered")
