"""Memory in which every slot says what was written there, and a model that checks all it reads.

The model "computes" labels: whose the slot is, its position, and a digest of all tokens up to it,
which is what real KV depends on. What it reads must be exactly what its row's tokens demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from engines.embedded.batch import Batch
from engines.embedded.public import PUBLIC_DOMAIN
from engines.embedded.seq import Chunk, Seq

EOS = 3
FIELDS = 4  # of a label: domain, position, digest, request
NEVER = -1  # request of what another process wrote


class ForeignRead(AssertionError):
    """A row read a slot that isn't its own, or is not up to date."""


class Digests:
    """A number for each position of a list of tokens: it depends on all tokens up to there."""

    def __init__(self, revision: int) -> None:
        self.values: list[int] = []
        self._last = revision + 1

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._last = (self._last * 1_000_003 + token + 1) % (2**61 - 1)
            self.values.append(self._last)

    def beyond(self, tokens: Iterable[int]) -> list[int]:
        """What would follow after these, too; nothing is kept of it."""
        ahead = copy(self)
        ahead.values = []
        ahead.extend(tokens)
        return ahead.values


def next_token(digest: int) -> int:
    """What this model answers after these tokens: mostly 0 or 1, now and then the end."""
    return EOS if digest % 23 == 0 else digest % 2


def answer_of(prompt: Sequence[int], max_tokens: int, revision: int) -> list[int]:
    """The whole answer, as it must come out whatever happens on the way."""
    digests, answer = Digests(revision), list[int]()
    digests.extend(prompt)
    while len(answer) < max_tokens and (not answer or answer[-1] != EOS):
        answer.append(next_token(digests.values[-1]))
        digests.extend(answer[-1:])
    return answer


class LabelledMemory:
    """Pages of `page_size` labels, and a canary: what the door, the scrubber and the pool see."""

    num_canaries = 1

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.labels = np.zeros((num_pages + self.num_canaries, page_size, FIELDS), np.int64)
        self.page_bytes = self.labels[0].nbytes
        self._domains = {PUBLIC_DOMAIN: 1}

    def bytes_of(self, page: int) -> NDArray[np.uint8]:
        content: NDArray[np.uint8] = self.labels[page].reshape(-1).view(np.uint8)
        return content

    def is_zero(self, page: int) -> bool:
        return not self.labels[page].any()

    def zero(self, pages: list[int]) -> None:
        self.labels[pages] = 0

    def number_of(self, domain: str) -> int:
        return self._domains.setdefault(domain, len(self._domains) + 1)

    def page_of(self, domain: str, digests: Digests, index: int) -> NDArray[np.int64]:
        """What a page of this prompt must hold."""
        first, end = index * self.page_size, (index + 1) * self.page_size
        page = np.empty((self.page_size, FIELDS), np.int64)
        page[:, 0], page[:, 1] = self.number_of(domain), np.arange(first, end)
        page[:, 2], page[:, 3] = digests.values[first:end], NEVER
        return page


class LabellingModel:
    """Writes labels, makes copies, reads every slot of every row, and answers from the digest."""

    def __init__(self, memory: LabelledMemory) -> None:
        self.memory = memory
        self.revision = 0
        self.num_reads = 0  # slots
        self._digests: dict[Seq, Digests] = {}
        self._numbers: dict[Seq, int] = {}

    def run(self, batch: Batch) -> dict[int, tuple[int, ...]]:
        labels = self.memory.labels
        labels[batch.copy_targets(labels.shape[1])] = labels[batch.copy_sources]
        slots = labels.reshape(-1, FIELDS)
        expected = [self._labels(batch, row) for row in range(len(batch.chunks))]
        for row, own in enumerate(expected):
            chunk = batch.chunks[row]
            slots[batch.slot_mapping[batch.token_rows == row]] = own[chunk.start :]
        for row, own in enumerate(expected):
            pages = batch.block_tables[row, : batch.num_pages[row]]
            self._check(batch.chunks[row], labels[pages].reshape(-1, FIELDS)[: len(own)], own)
        return {
            row: tuple(next_token(digest) for digest in own[-chunk.num_choices :, 2].tolist())
            for row, (chunk, own) in enumerate(zip(batch.chunks, expected, strict=True))
            if chunk.samples
        }

    def digests_of(
        self, seq: Seq, tokens: Sequence[int], drafts: Sequence[int] = ()
    ) -> NDArray[np.int64]:
        digests = self._digests.setdefault(seq, Digests(self.revision))
        digests.extend(tokens[len(digests.values) :])
        ahead = digests.beyond(drafts) if drafts else []
        return np.array(digests.values[: len(tokens)] + ahead, np.int64)

    def domains_of(self, seq: Seq, length: int) -> NDArray[np.int64]:
        """Whose each slot must be, told by the request alone and not by tags or slots."""
        domains = np.full(length, self.memory.number_of(seq.request.domain))
        domains[: seq.num_public_pages * self.memory.page_size] = 1
        return domains

    def forget(self, seq: Seq) -> None:
        self._digests.pop(seq, None)

    def close(self) -> None:
        """Nothing to give back."""

    def _labels(self, batch: Batch, row: int) -> NDArray[np.int64]:
        chunk = batch.chunks[row]
        fed = batch.input_ids[batch.token_rows == row].tolist()
        end = len(fed) - len(chunk.drafts)
        assert fed[end:] == list(chunk.drafts)
        tokens = chunk.seq.tokens[: chunk.start] + fed
        own = tokens[: chunk.start + end]
        labels = np.empty((len(tokens), FIELDS), np.int64)
        labels[:, 0] = self.domains_of(chunk.seq, len(tokens))
        labels[:, 1] = np.arange(len(tokens))
        labels[:, 2] = self.digests_of(chunk.seq, own, chunk.drafts)
        labels[:, 3] = self._numbers.setdefault(chunk.seq, len(self._numbers) + 1)
        return labels

    def _check(self, chunk: Chunk, found: NDArray[np.int64], own: NDArray[np.int64]) -> None:
        """Another request of the domain may have written a slot; all else must be equal."""
        self.num_reads += len(own)
        if (found[:, :3] != own[:, :3]).any():
            at = int((found[:, :3] != own[:, :3]).any(axis=1).argmax())
            raise ForeignRead(
                f"{chunk.seq.request.id} read {found[at].tolist()} at position {at}, "
                f"where {own[at].tolist()} belongs"
            )
