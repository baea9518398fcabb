"""Random lives of seqs of several domains over one small pool, with an oracle beside it."""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from engines.api import Request, Sampling
from engines.embedded import tags
from engines.embedded.pages import PagePool
from engines.embedded.prefix import KeyScope
from engines.embedded.seq import Phase, Seq
from engines.embedded.tables import Tables
from tests.engines.books import check_books

PAGE_SIZE = 2
DOMAINS = st.sampled_from(["a", "b", "c"])
# Few different tokens: most prompts share a prefix with an earlier one.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


def scope_of(domain: str) -> KeyScope:
    return KeyScope(domain, "rev", "", "bfloat16", "bfloat16", "unit", "layout", PAGE_SIZE)


class TablesMachine(RuleBasedStateMachine):
    """Admits, computes, ends and condemns seqs; knows what each page was last written with."""

    running = Bundle("running")

    @initialize()
    def start(self) -> None:
        self.pool = PagePool(12)
        self.tables = Tables(self.pool, PAGE_SIZE, scope_of)
        self.live: list[Seq] = []
        self.written: dict[int, tuple[str, list[int]]] = {}  # page -> domain, tokens up to its end

    @rule(target=running, domain=DOMAINS, prompt=PROMPTS, max_tokens=st.integers(1, 4))
    def admit(self, domain: str, prompt: list[int], max_tokens: int) -> object:
        seq = Seq.of(Request("r", domain, tuple(prompt), Sampling(max_tokens)))
        if not self.tables.admit(seq):
            return multiple()
        assert seq.num_computed < len(prompt), "at least one prompt token is computed"
        self.live.append(seq)
        return seq

    @rule(seq=running, num_tokens=st.integers(1, 4))
    def compute(self, seq: Seq, num_tokens: int) -> None:
        chunk_len = min(num_tokens, seq.num_unscheduled)
        reached = seq.num_computed + chunk_len
        if chunk_len == 0 or not self.tables.grow(seq, reached):
            return
        if seq.copied is not None and seq.num_computed == seq.num_reused:
            target = seq.block_table[seq.num_computed // PAGE_SIZE]
            self.written[target] = self.written[seq.copied.id]
        for position in range(seq.num_computed, reached):
            page = seq.block_table[position // PAGE_SIZE]
            self.written[page] = (seq.request.domain, seq.tokens[: position + 1])
        self.tables.computed(seq.next_chunk(chunk_len))
        seq.num_choosing = 0
        if reached == len(seq.tokens) < seq.max_len - 1:
            seq.tokens.append(1)

    @rule(seq=consumes(running))
    def end(self, seq: Seq) -> None:
        self.live.remove(seq)
        self.tables.release(seq, Phase.ENDED)

    @rule(seq=consumes(running))
    def condemn(self, seq: Seq) -> None:
        if self.pool.count()["quarantined"] + len(seq.block_table) > 3:
            self.end(seq)  # leave enough of the pool for the others
            return
        self.live.remove(seq)
        self.tables.quarantine(seq, Phase.ENDED)

    @rule()
    def evict(self) -> None:
        if self.tables.prefix.num_evictable:
            self.tables.prefix.evict_oldest()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "pool"):
            copied = [[seq.copied.id] for seq in self.live if seq.copied is not None]
            check_books(self.pool, [*(seq.block_table for seq in self.live), *copied])

    @invariant()
    def every_table_holds_its_own(self) -> None:
        """No page of another domain, no stale tag, and the very tokens that belong there."""
        for seq in getattr(self, "live", []):
            for index, page in enumerate(seq.pages()):
                assert self.pool.holds(page)
                assert tags.domain_slot(page.tag) == seq.domain_slot
                end = min((index + 1) * PAGE_SIZE, seq.num_computed)
                if end > index * PAGE_SIZE:
                    assert self.written[page.id] == (seq.request.domain, seq.tokens[:end])


def test_no_table_ever_holds_a_page_of_another_domain() -> None:
    """Nor a stale one; references and states always balance; a running seq never runs out."""
    run_state_machine_as_test(
        TablesMachine,
        settings=settings(max_examples=150, stateful_step_count=60, deadline=None),
    )
