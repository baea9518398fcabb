"""Our own code with one thing wrong about drafts, and the lives of requests that show it."""

from __future__ import annotations

from collections.abc import Sequence

from engines.embedded import flight
from engines.embedded.batch import Batch
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.scheduler import Scheduler
from engines.embedded.seq import Chunk, Seq
from engines.embedded.tables import Tables
from tests.engines.helpers import Answers, ask, random_prompt
from tests.engines.mutants import Patch
from tests.engines.scenarios import Source, compare, finish


def counts_rejected_drafts(engine: EmbeddedEngine, patch: Patch) -> None:
    """KV counts as computed as far as the step went, whatever the model chose."""
    take = Seq.take

    def take_all(seq: Seq, chunk: Chunk, token_ids: Sequence[int]) -> int:
        take(seq, chunk, token_ids)
        return chunk.context_len

    patch.setattr(Seq, "take", take_all)


def seals_rejected_drafts(engine: EmbeddedEngine, patch: Patch) -> None:
    """A page counts as full as soon as it has been written to its end."""
    computed = Tables.computed

    def too_far(tables: Tables, chunk: Chunk, length: int) -> None:
        computed(tables, chunk, length)
        seq = chunk.seq
        for index in range(length // tables.page_size, len(seq.tokens) // tables.page_size):
            if (index + 1) * tables.page_size <= chunk.context_len:
                tables.seal(seq, index, seq.pages()[index])

    patch.setattr(Tables, "computed", too_far)


def keys_pages_by_their_drafts(engine: EmbeddedEngine, patch: Patch) -> None:
    """The key of a page is made when its step is laid out, from tokens and drafts."""
    next_chunk = Seq.next_chunk

    def keyed(seq: Seq, num_tokens: int, drafts: tuple[int, ...] = ()) -> Chunk:
        chunk = next_chunk(seq, num_tokens, drafts)
        known = seq.tokens
        seq.tokens = [*known, *drafts]
        engine.tables._keys(seq, len(seq.tokens) // engine.tables.page_size)
        seq.tokens = known
        return chunk

    patch.setattr(Seq, "next_chunk", keyed)


def goes_on_behind_drafts(engine: EmbeddedEngine, patch: Patch) -> None:
    """The next step is laid out while drafts are on their way, as if all of them were right."""
    unscheduled = Seq.num_unscheduled.fget  # type: ignore[attr-defined]

    def behind(seq: Seq) -> int:
        return 1 if seq.num_drafted else unscheduled(seq)

    patch.setattr(Seq, "num_unscheduled", property(behind))
    patch.setattr(Scheduler, "should_wait", lambda scheduler: False)


def takes_drafts_unseen(engine: EmbeddedEngine, patch: Patch) -> None:
    """Drafts become tokens whatever the model chose."""

    def all_of_them(drafts: Sequence[int], choices: Sequence[int]) -> tuple[int, ...]:
        return (*drafts, choices[-1])

    patch.setattr(flight, "accepted", all_of_them)


def drafts_are_rejected(engine: EmbeddedEngine, source: Source) -> None:
    """Somebody asks for what was guessed, and somebody for what was chosen instead."""
    guessed: list[list[int]] = []

    def at(point: str, batch: Batch) -> None:
        if point == "computed":
            for chunk in batch.chunks:
                if chunk.drafts:
                    own = chunk.seq.tokens[: chunk.context_len - len(chunk.drafts)]
                    guessed.append([*own, *chunk.drafts])

    engine.runway.at = at
    answers = Answers()
    quoting = [ask(f"q{n}", random_prompt(7, n) * 4, 24, domain="q") for n in range(4)]
    finish(engine, answers, *quoting)
    engine.runway.at = lambda point, batch: None
    chosen = [[*request.prompt, *source.answer(request)] for request in quoting]
    readers = [
        ask(f"r{n}", [*tokens, 1], 4, domain="q") for n, tokens in enumerate([*guessed, *chosen])
    ]
    finish(engine, answers, *readers)
    compare(answers, source, *quoting, *readers)
