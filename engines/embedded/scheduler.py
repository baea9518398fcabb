"""Who runs next: continuous batching under a budget of tokens per step.

Decodes come first, then prompts in chunks, oldest first. Told seqs and what each step computed;
never told tensors, text or time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from engines.api import EngineFailed, FinishReason, KvIntegrityAbort
from engines.embedded.seq import Chunk, Phase, Seq
from engines.embedded.tables import Tables


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: what to compute, and which of the seqs have just been admitted."""

    chunks: list[Chunk]
    admitted: list[Seq]


class Scheduler:
    """Owns the queue of waiting seqs and the list of running ones, both in order of arrival."""

    def __init__(
        self, tables: Tables, max_batch_tokens: int, max_running: int, eos_token_ids: frozenset[int]
    ) -> None:
        self.waiting: deque[Seq] = deque()
        self.running: list[Seq] = []
        self._tables = tables
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._eos_token_ids = eos_token_ids

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

    def schedule(self) -> Plan:
        """Choose the chunks of one step and allocate the pages that they write."""
        budget = self._max_batch_tokens
        plan = Plan([], [])
        for seq in self._candidates(plan.admitted):
            num_tokens = min(seq.num_uncomputed, budget)
            self._tables.grow(seq, seq.num_computed + num_tokens)
            plan.chunks.append(Chunk(seq, num_tokens))
            budget -= num_tokens
            if budget == 0:
                break
        return plan

    def commit(self, chunk: Chunk, token_id: int | None) -> None:
        """Record a computed chunk, and the token it yielded if it reached the newest one."""
        seq = chunk.seq
        seq.num_computed += chunk.num_tokens
        self._tables.seal(seq)
        if token_id is not None:
            seq.tokens.append(token_id)
            if token_id in self._eos_token_ids:
                self._end(seq, FinishReason.STOP)
            elif len(seq.tokens) == seq.max_len:
                self._end(seq, FinishReason.LENGTH)

    def condemn(self, seq: Seq, error: KvIntegrityAbort) -> None:
        """End a seq that failed a check, and put the pages that it wrote out of use."""
        self.running.remove(seq)
        self._tables.quarantine(seq)
        seq.phase, seq.finish, seq.error = Phase.ENDED, FinishReason.ERROR, error

    def _candidates(self, admitted: list[Seq]) -> Iterator[Seq]:
        # Two snapshots: admission below appends to `running` while this generator is suspended.
        yield from [seq for seq in self.running if seq.num_uncomputed == 1]
        yield from [seq for seq in self.running if seq.num_uncomputed > 1]
        while self.waiting and len(self.running) < self._max_running:
            if not self._tables.admit(self.waiting[0]):
                self._check_progress()
                return
            seq = self.waiting.popleft()
            seq.phase = Phase.RUNNING
            self.running.append(seq)
            admitted.append(seq)
            yield seq

    def _check_progress(self) -> None:
        if not self.running:
            raise EngineFailed("quarantined pages leave no room for a request that once fitted")

    def _end(self, seq: Seq, finish: FinishReason) -> None:
        self.running.remove(seq)
        self._tables.release(seq)
        seq.phase, seq.finish = Phase.ENDED, finish
