"""The gate: each mutant of pool, fences and check is killed, and by the layer that must kill it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from engines.api import EngineFailed, EngineRetiring, Request
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.verify import Mismatch
from tests.engines import draft_mutants as d, mutants as m, scenarios as s
from tests.engines.books import check_books, tables_of
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import drive

BOOKS = "invariant"  # an assertion of ours, in the pool or in the tests
PRE, POST, DOMAIN = "check before", "check after", "row's domain"
GUARD, COVER, SCRUB = "write guard", "coverage", "scrubbing"
ORACLE = "a wrong answer"  # no layer: only whoever knows what is right can tell
Layers = tuple[str, ...]


class Row(NamedTuple):
    mutant: m.Mutant
    scenario: s.Scenario
    alone: Layers  # what a sound engine notices there: nothing, or the fault that is planted
    mutated: Layers  # what is noticed with the mutant, the first one first


# fmt: off
GATE = [
    # Fences. In the scenarios another process writes, which waits for no step.
    Row(m.no_step_fence, s.one_leaves_in_mid_step, (), (SCRUB,)),
    Row(m.no_transfer_fence, s.a_writer_is_late, (), (ORACLE, SCRUB)),
    Row(m.notice_counts_as_drained, s.a_writer_is_late, (), (ORACLE, SCRUB)),
    # The pool, and who holds its pages.
    Row(m.evicts_held_pages, s.shared_pages_and_a_full_pool, (), (BOOKS,)),
    Row(m.evicts_held_pages_unasserted, s.shared_pages_and_a_full_pool, (), (PRE,)),
    Row(m.releases_twice, s.shared_pages_and_a_full_pool, (), (PRE,)),
    Row(m.counts_no_generations, s.two_answer, (), (BOOKS,)),
    Row(m.keeps_the_tag_of_a_freed_page, s.a_held_page_is_freed, (PRE,), (BOOKS,)),
    Row(m.does_not_wipe, s.one_leaves_in_mid_step, (), (SCRUB,)),
    Row(m.seals_at_launch, s.two_answer, (), (GUARD, ORACLE)),
    Row(m.does_not_copy_on_write, s.a_whole_prompt_is_cached, (), (GUARD,)),
    Row(m.does_not_ask_who_is_live, s.one_leaves_in_mid_step, (), (POST, BOOKS)),
    Row(m.does_not_ask_who_is_live, s.one_gives_way_in_mid_step, (), (POST, BOOKS)),
    # The cache. A stale entry is a miss, for its tag is the recorded one.
    Row(m.leaves_the_domain_out_of_the_key, s.two_domains_have_one_prompt, (), (DOMAIN,)),
    Row(m.keeps_entries_of_evicted_pages, s.a_page_comes_back_to_the_cache, (), ()),
    Row(m.reads_the_tag_at_share, s.a_page_comes_back_to_the_cache, (), (SCRUB,)),
    # Drafts. What is rejected is neither counted, sealed, keyed, nor gone on from.
    Row(d.counts_rejected_drafts, d.drafts_are_rejected, (), (BOOKS,)),
    Row(d.seals_rejected_drafts, d.drafts_are_rejected, (), (GUARD,)),
    Row(d.keys_pages_by_their_drafts, d.drafts_are_rejected, (), (ORACLE,)),
    Row(d.goes_on_behind_drafts, d.drafts_are_rejected, (), (BOOKS,)),
    Row(d.takes_drafts_unseen, d.drafts_are_rejected, (), (ORACLE,)),
    # The check. A mutant of a layer shows where that layer is the one that is needed.
    Row(m.skips_prefix_pages, s.a_shared_page_is_evicted, (PRE,), (ORACLE,)),
    Row(m.compares_no_domains, s.a_row_has_a_foreign_table, (DOMAIN,), (ORACLE,)),
    Row(m.compares_no_domain_anywhere, s.two_domains_have_one_prompt, (), (ORACLE,)),
    Row(m.guards_no_writes, s.a_row_writes_to_a_foreign_page, (GUARD,), (ORACLE, SCRUB)),
    Row(m.blames_the_next_row, s.a_row_names_a_foreign_page, (PRE,), (PRE, ORACLE)),
    Row(m.checks_nothing, s.a_row_names_a_foreign_page, (PRE,), (COVER,)),
    Row(m.checks_nothing_and_does_not_count, s.a_row_names_a_foreign_page, (PRE,), (ORACLE,)),
    Row(m.checks_nothing_after, s.two_answer, (), (COVER,)),
    # Fences and the check before suffice, as long as nothing gets past the fences. If something
    # does, the check before comes a step too late.
    Row(m.tells_nothing_after, s.one_leaves_in_mid_step, (), ()),
    Row(m.tells_nothing_after, s.a_writer_is_late, (), ()),
    Row(m.tells_nothing_after, s.a_page_changes_hands_in_mid_step, (POST,), (PRE, ORACLE)),
]
# fmt: on
DRAFTING = [d.drafts_are_rejected]  # where each token is at a page's end
NUM_PAGES: dict[s.Scenario, int] = {  # where it matters, mostly since the pool is nearly full
    d.drafts_are_rejected: 900,
    s.one_leaves_in_mid_step: 11,
    s.a_writer_is_late: 13,
    s.shared_pages_and_a_full_pool: 17,
}


@pytest.fixture
def source(make_faulty: EngineFactory) -> Sound:
    return Sound(make_faulty)


@pytest.fixture
def make(make_faulty: EngineFactory) -> Callable[[s.Scenario], EmbeddedEngine]:
    def make(scenario: s.Scenario) -> EmbeddedEngine:
        options = {"speculation": 8, "page_size": 1} if scenario in DRAFTING else {}
        engine = make_faulty(num_pages=NUM_PAGES.get(scenario, 65), **options)
        assert engine.tables.scrubber is not None
        engine.tables.scrubber._pages_per_s = 0.0  # no clock decides what is noticed
        return engine

    return make


@pytest.mark.parametrize("row", GATE, ids=lambda row: f"{_name(row.mutant)}-{_name(row.scenario)}")
def test_the_layer_that_must_kill_a_mutant_does(
    row: Row,
    make: Callable[[s.Scenario], EmbeddedEngine],
    source: Sound,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And without the mutant nothing is noticed but the fault that is planted."""
    assert noticed(make(row.scenario), row.scenario, source) == row.alone
    engine = make(row.scenario)
    row.mutant(engine, monkeypatch)
    assert noticed(engine, row.scenario, source) == row.mutated


def test_every_mutant_is_killed_somewhere() -> None:
    """But for the one that a single further mistake makes dangerous."""
    ours = {
        name: function
        for module in (m, d)
        for name, function in vars(module).items()
        if getattr(function, "__module__", "") == module.__name__ and function not in DRAFTING
    }
    written = {f for name, f in ours.items() if not name.startswith("_")}
    killed = {row.mutant for row in GATE if row.mutated != row.alone}
    assert written - killed == {m.keeps_entries_of_evicted_pages}


def _name(function: Callable[..., None]) -> str:
    return function.__name__


class Sound:
    """A sound engine, asked one request at a time, and only before anything is mutated."""

    def __init__(self, make: EngineFactory) -> None:
        self._engine = make(integrity="off")
        self._answers: dict[Request, list[int]] = {}
        self._pages: list[bytes] = []

    def answer(self, request: Request) -> list[int]:
        if request not in self._answers:
            self._answers[request] = drive(self._engine, request).tokens(request.id)
        return self._answers[request]

    def pages(self, domain: str, prompt: list[int]) -> list[bytes]:
        if not self._pages:
            drive(self._engine, Request("x", domain, tuple(prompt), s.A.sampling))
            tables = self._engine.tables
            found = tables.prefix.match(tables.keys_of(domain, prompt))
            self._pages = [self._engine.kv.bytes_of(page.id).tobytes() for page in found]
        return self._pages


def noticed(engine: EmbeddedEngine, scenario: s.Scenario, source: s.Source) -> Layers:
    """Which layers notice something, the first one first."""
    layers: list[str] = []
    record = engine.incidents.record

    def recorded(step: int, mismatch: Mismatch) -> None:
        layers.append(layer_of(mismatch))
        record(step, mismatch)

    engine.incidents.record = recorded  # type: ignore[method-assign]
    try:
        scenario(engine, source)
        if not layers:  # else what was noticed has unbalanced them
            check_books(engine.pool, tables_of(engine))
    except s.Wrong:
        layers.append(ORACLE)
    except EngineRetiring:
        assert layers, "an engine retires for a reason that a layer has told"
    except EngineFailed as failure:
        layers.append(COVER if "covered" in str(failure) else BOOKS)
    except AssertionError:
        layers.append(BOOKS)
    scrubber = engine.tables.scrubber
    assert scrubber is not None
    scrubber.look(engine.pool.num_pages)
    if scrubber.counted.mismatches or scrubber.counted.residues:
        layers.append(SCRUB)
    return tuple(dict.fromkeys(layers))


def layer_of(mismatch: Mismatch) -> str:
    if mismatch.phase == "after":
        return POST
    if mismatch.kind == "slot":
        return GUARD
    return DOMAIN if mismatch.expected == mismatch.found else PRE
