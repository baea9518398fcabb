"""Who runs in a step: the budget, the order, and who gives way when room runs out."""

from __future__ import annotations

import numpy as np
import pytest

from engines.api import FinishReason, Request, Sampling
from engines.embedded.pages import PagePool
from engines.embedded.scheduler import Scheduler
from engines.embedded.seq import Chunk, Phase, Seq
from engines.embedded.tables import Tables
from tests.engines.books import check_books

EOS = 99


class Desk:
    """A scheduler over `num_pages` usable pages of 4 tokens; every step yields token 5."""

    def __init__(self, num_pages: int = 32, budget: int = 16, max_running: int = 8) -> None:
        self.pool = PagePool(num_pages + 1)
        self.scheduler = Scheduler(
            Tables(self.pool, 4, None), budget, max_running, frozenset([EOS])
        )

    def add(self, prompt_len: int, max_tokens: int = 4) -> Seq:
        prompt = tuple(range(prompt_len))
        seq = Seq.of(Request("r", "a", prompt, Sampling(max_tokens)))
        self.scheduler.add(seq)
        return seq

    def step(self, token: int = 5) -> list[Chunk]:
        plan = self.scheduler.schedule()
        for chunk in plan:
            self.scheduler.commit(chunk, (token,) if chunk.samples else ())
        check_books(self.pool, [seq.block_table for seq in self.scheduler.running])
        self.pool.recycle()
        return plan


def sizes(plan: list[Chunk]) -> list[int]:
    return [chunk.num_tokens for chunk in plan]


def test_a_long_prompt_is_computed_in_chunks() -> None:
    """40 tokens under a budget of 16 take three steps; only the last yields a token."""
    desk = Desk()
    seq = desk.add(40)
    assert [sizes(desk.step()) for _ in range(3)] == [[16], [16], [8]]
    assert len(seq.tokens) == 41


def test_decodes_come_before_prompts() -> None:
    """A running answer gets its token each step; a new prompt gets what is left."""
    desk = Desk()
    first = desk.add(4, max_tokens=8)
    desk.step()
    second = desk.add(40)
    plan = desk.step()
    assert [(chunk.seq, chunk.num_tokens) for chunk in plan] == [(first, 1), (second, 15)]


def test_several_prompts_share_a_step() -> None:
    """The budget is filled, oldest first."""
    desk = Desk()
    desk.add(6)
    desk.add(6)
    desk.add(6)
    assert sizes(desk.step()) == [6, 6, 4]


def test_a_step_never_exceeds_its_budget() -> None:
    """Whatever waits and runs."""
    desk = Desk(num_pages=200)
    for length in (3, 20, 1, 9, 33, 2, 5):
        desk.add(length)
    while desk.scheduler.running or desk.scheduler.waiting:
        assert sum(sizes(desk.step())) <= 16


def test_no_more_than_max_running_are_admitted() -> None:
    """The third waits until one of two has ended."""
    desk = Desk(max_running=2)
    seqs = [desk.add(2, max_tokens=2) for _ in range(3)]
    desk.step()
    assert [seq.phase for seq in seqs] == [Phase.RUNNING, Phase.RUNNING, Phase.WAITING]
    desk.step()
    assert [chunk.seq for chunk in desk.step()] == [seqs[2]]


def test_the_newest_gives_way_when_pages_run_out() -> None:
    """Two seqs of 5 pages each start in 8 pages; the newest starts again, and both end."""
    desk = Desk(num_pages=8)
    first, second = desk.add(4, max_tokens=16), desk.add(4, max_tokens=16)
    assert [chunk.seq for chunk in desk.step()] == [first, second]
    while first.finish is None:
        desk.step()
    assert desk.scheduler.num_preempted == 1
    while second.finish is None:
        desk.step()
    assert second.finish is FinishReason.LENGTH
    assert len(second.tokens) == len(first.tokens) == 20


def test_a_preempted_seq_comes_back_before_those_that_wait() -> None:
    """And it computes what it had answered as if it were its prompt."""
    desk = Desk(num_pages=8, budget=32)
    first, second = desk.add(4, max_tokens=16), desk.add(4, max_tokens=16)
    desk.step()
    while second.phase is Phase.RUNNING:
        desk.step()
    answered = len(second.tokens)
    third = desk.add(1, max_tokens=1)
    assert list(desk.scheduler.waiting) == [second, third]
    while second.phase is Phase.WAITING:
        plan = desk.step()
    (chunk,) = [chunk for chunk in plan if chunk.seq is second]
    assert (chunk.start, chunk.num_tokens, chunk.samples) == (0, answered, True)
    assert first.finish is FinishReason.LENGTH


def test_nobody_gives_way_for_pages_that_a_step_still_touches() -> None:
    """They will be free when it ends: the seq waits for that."""
    desk = Desk(num_pages=4)
    first = desk.add(4, max_tokens=12)
    gone = desk.add(4, max_tokens=4)
    plan = desk.scheduler.schedule()
    desk.pool.launch(1, np.array([chunk.seq.block_table[0] for chunk in plan]))
    desk.scheduler.abort(gone)
    for chunk in plan:
        desk.scheduler.commit(chunk, (5,) if chunk.samples else ())
    for _ in range(8):  # as far as the free pages reach
        desk.step()
    assert desk.scheduler.schedule() == []
    assert desk.scheduler.num_preempted == 0
    desk.pool.complete(1)
    while first.finish is None:
        desk.step()


def test_a_step_can_be_scheduled_before_the_last_one_has_ended() -> None:
    """One token is on its way, the next is scheduled behind it, and none beyond the last."""
    desk = Desk()
    seq = desk.add(3, max_tokens=2)
    plans = [desk.scheduler.schedule() for _ in range(3)]
    assert [sizes(plan) for plan in plans] == [[3], [1], []]
    for plan in plans:
        for chunk in plan:
            desk.scheduler.commit(chunk, (5,))
    assert seq.finish is FinishReason.LENGTH
    assert seq.tokens[-2:] == [5, 5]


def test_what_was_on_its_way_for_an_ended_seq_is_void() -> None:
    """The end token came while the next step ran already."""
    desk = Desk()
    seq = desk.add(3, max_tokens=9)
    first, second = desk.scheduler.schedule(), desk.scheduler.schedule()
    desk.scheduler.commit(first[0], (EOS,))
    desk.scheduler.commit(second[0], (7,))
    assert seq.tokens[3:] == [EOS]
    check_books(desk.pool, [])


def test_a_small_request_does_not_overtake_a_big_one() -> None:
    """First come, first served: else a big request would wait for ever."""
    desk = Desk(num_pages=8, budget=64)
    desk.add(20, max_tokens=4)
    big, small = desk.add(20, max_tokens=4), desk.add(1, max_tokens=1)
    desk.step()
    assert big.phase is small.phase is Phase.WAITING


def test_pages_are_allocated_when_they_are_needed() -> None:
    """And not when a seq is admitted."""
    desk = Desk()
    seq = desk.add(4, max_tokens=16)
    desk.step()
    assert len(seq.block_table) == 1
    desk.step()
    assert len(seq.block_table) == 2


def test_the_end_token_stops_and_is_kept() -> None:
    """finish is STOP and the token is part of the answer."""
    desk = Desk()
    seq = desk.add(2)
    desk.step(EOS)
    assert seq.finish is FinishReason.STOP
    assert seq.tokens[-1] == EOS


def test_max_tokens_ends_with_length() -> None:
    """Exactly that many tokens are answered."""
    desk = Desk()
    seq = desk.add(2, max_tokens=3)
    for _ in range(3):
        desk.step()
    assert seq.finish is FinishReason.LENGTH
    assert len(seq.tokens) == 5


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_abort_gives_everything_back(steps: int) -> None:
    """Waiting, in prefill or decoding."""
    desk = Desk()
    seq = desk.add(40, max_tokens=8)
    for _ in range(steps):
        desk.step()
    desk.scheduler.abort(seq)
    desk.pool.recycle()
    assert desk.pool.num_free == 32
    assert not desk.scheduler.waiting
    assert not desk.scheduler.running
    desk.scheduler.abort(seq)  # once more is fine


def test_who_has_no_room_beside_quarantined_pages_doesnt_wait_for_ever() -> None:
    """If nothing runs and nothing is to come, it is given up, and the next one has its turn."""
    desk = Desk(num_pages=2)
    desk.pool.quarantine(desk.pool.allocate("x", 1).id)
    big, small = desk.add(8, max_tokens=1), desk.add(2, max_tokens=1)
    desk.step()
    assert desk.scheduler.given_up == [big]
    assert (big.finish, big.phase) == (FinishReason.ERROR, Phase.ENDED)
    desk.step()
    assert small.finish is FinishReason.LENGTH
