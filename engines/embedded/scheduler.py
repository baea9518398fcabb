"""Who runs next: continuous batching under a budget of tokens per step.

Decodes come first, then prompts in chunks, oldest first. If pages run out, the newest gives way and
starts again later (preemption by recompute). A step may be scheduled while the one before it still
runs: then its token is not known yet, only that there will be one. A seq may have drafts computed
behind its newest token; they take nobody's place, and nobody gives way for them. Told seqs and what
each step computed; never told tensors, text or time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain

from engines.api import EngineFailed, FinishReason, KvIntegrityAbort
from engines.embedded.seq import Chunk, Phase, Seq
from engines.embedded.tables import Tables

WAIT_COST = 0.1  # of a row's step: what it costs that the next one isn't laid out meanwhile


class Scheduler:
    """Owns the queue of waiting seqs and the list of running ones, both in order of arrival."""

    def __init__(
        self, tables: Tables, max_batch_tokens: int, max_running: int, eos_token_ids: frozenset[int]
    ) -> None:
        self.waiting: deque[Seq] = deque()
        self.running: list[Seq] = []
        self.given_up: list[Seq] = []  # ended before they began, and not told yet
        self.num_preempted = 0  # since the start
        self.num_drafted = self.num_accepted = 0  # drafts
        self._tables = tables
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self.eos_token_ids = eos_token_ids

    def add(self, seq: Seq) -> None:
        """Queue a seq behind all others."""
        self.waiting.append(seq)

    def abort(self, seq: Seq) -> None:
        """End a seq wherever it stands, and give its pages back."""
        if seq.phase is Phase.WAITING:
            self.waiting.remove(seq)
            seq.phase = Phase.ENDED
        elif seq.phase is Phase.RUNNING:
            self._end(seq, FinishReason.ABORT)

    def schedule(self) -> list[Chunk]:
        """Choose the chunks of one step and allocate the pages that they write."""
        budget = self._max_batch_tokens
        chunks: list[Chunk] = []
        scheduled: set[Seq] = set()
        preempted_before = self.num_preempted
        decodes, prompts = self._due()
        spare = budget - len(decodes)
        for seq in chain(decodes, prompts, self._admitted(preempted_before)):
            num_tokens = min(seq.num_unscheduled, budget)
            if seq.phase is not Phase.RUNNING or not self._make_room(seq, num_tokens, scheduled):
                continue
            drafts = self._drafts(seq, num_tokens, min(spare, budget - num_tokens))
            chunks.append(seq.next_chunk(num_tokens, drafts))
            scheduled.add(seq)
            budget -= num_tokens + len(drafts)
            spare -= len(drafts)
            if budget == 0:
                break
        return chunks

    def commit(self, chunk: Chunk, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Record a computed chunk, and the tokens it yielded if it reached the newest one.

        Those that the seq has got of them: what follows its end was never asked for.
        """
        if not chunk.is_live:
            return ()
        seq = chunk.seq
        told = self._until_end(seq, token_ids)
        self._tables.computed(chunk, seq.take(chunk, told))
        if chunk.drafts and seq.drafter is not None:
            num_drafts, num_right = len(chunk.drafts), len(told) - 1
            self.num_drafted += num_drafts
            self.num_accepted += num_right
            seq.drafter.judge(len(seq.tokens), len(self.running), num_drafts, num_right)
        if seq.num_computed >= len(seq.tokens):  # its newest token is computed by the next step
            raise EngineFailed(f"KV of {seq.request.id} is counted beyond its own tokens")
        if told and told[-1] in self.eos_token_ids:
            self._end(seq, FinishReason.STOP)
        elif told and len(seq.tokens) == seq.max_len:
            self._end(seq, FinishReason.LENGTH)
        return told

    def should_wait(self) -> bool:
        """Whether the next step should not be laid out before the last one has landed.

        Then drafts can follow what it chose. All that run pay for that, so there must be enough to
        hope for.
        """
        num_rows = len(self.running)
        hope = sum(seq.hope(num_rows) for seq in self.running if seq.drafter is not None)
        return hope > WAIT_COST * num_rows

    def condemn(self, seq: Seq, error: KvIntegrityAbort) -> None:
        """Put the pages that a seq wrote out of use, since it failed a check, and end it.

        One of which no token has left starts once more instead, cold, and behind nobody.
        """
        self.running.remove(seq)
        if seq.has_answered or seq.is_retry:
            self._tables.quarantine(seq, Phase.ENDED)
            seq.finish, seq.error = FinishReason.ERROR, error
        else:
            self._tables.quarantine(seq, Phase.WAITING)
            seq.is_retry = True
            self.waiting.appendleft(seq)

    def _until_end(self, seq: Seq, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The first of these tokens, up to one that ends the answer."""
        for number, token_id in enumerate(token_ids, 1):
            if token_id in self.eos_token_ids or len(seq.tokens) + number == seq.max_len:
                return token_ids[:number]
        return token_ids

    def _drafts(self, seq: Seq, num_tokens: int, most: int) -> tuple[int, ...]:
        """What is to be computed behind the seq's newest token, as far as pages are free."""
        if seq.drafter is None or num_tokens != seq.num_unscheduled:
            return ()
        drafts = seq.drafts(most, len(self.running))
        if not self._tables.grow(seq, seq.num_scheduled + num_tokens + len(drafts)):
            return ()
        return drafts

    def _due(self) -> tuple[list[Seq], list[Seq]]:
        """Who runs and wants one token computed, and who more."""
        decodes, prompts = [], []
        for seq in self.running:
            num_tokens = seq.num_unscheduled
            if num_tokens == 1:
                decodes.append(seq)
            elif num_tokens > 1:
                prompts.append(seq)
        return decodes, prompts

    def _admitted(self, preempted_before: int) -> Iterator[Seq]:
        """Who waits, one after the other, as long as there is room."""
        while self.waiting and len(self.running) < self._max_running:
            if self.num_preempted > preempted_before:
                return  # what has just given way may not come back in the same step
            if not self._tables.admit(self.waiting[0]):
                self._give_up_oldest()
                return
            seq = self.waiting.popleft()
            self.running.append(seq)
            yield seq

    def _make_room(self, seq: Seq, num_tokens: int, scheduled: set[Seq]) -> bool:
        """Allocate what the seq is about to write. False if it must wait, or has itself given way.

        Pages on their way out of a step's reach are waited for: no reason to preempt anybody.
        """
        while not self._tables.grow(seq, seq.num_scheduled + num_tokens):
            if self._tables.num_coming:
                return False
            newest = next(other for other in reversed(self.running) if other not in scheduled)
            self._preempt(newest)
            if newest is seq:
                return False
        return True

    def _preempt(self, seq: Seq) -> None:
        self.running.remove(seq)
        self._tables.release(seq, Phase.WAITING)
        seq.is_resumed = True
        self.waiting.appendleft(seq)
        self.num_preempted += 1

    def _give_up_oldest(self) -> None:
        """Refuse the seq that waits first if nothing that is still to come can make room for it."""
        # All that steps and the cache can give back was counted as room already.
        pool = self._tables.pool
        if not (self.running or pool.num_retiring or pool.num_in_transfer):
            seq = self.waiting.popleft()
            seq.phase, seq.finish = Phase.ENDED, FinishReason.ERROR
            seq.error = KvIntegrityAbort(
                "so many pages are out of use here that this request has no room"
            )
            self.given_up.append(seq)

    def _end(self, seq: Seq, finish: FinishReason) -> None:
        self.running.remove(seq)
        self._tables.release(seq, Phase.ENDED)
        seq.finish = finish
