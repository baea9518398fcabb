"""Choose the next token of each row from its logits.

A draw depends on (seed, position) alone, so a request repeats exactly however it was batched or
chunked, as far as its logits do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from engines.api import Sampling
from engines.embedded.batch import Batch, Ints

Floats = NDArray[np.floating]
Logits = Floats | Mapping[int, Floats]  # by place; [places, vocab_size]

COLDEST = 1e-6  # below, float32 would overflow; the highest logit wins anyway


def choices(batch: Batch, best: Ints, logits: Logits) -> dict[int, tuple[int, ...]]:
    """Each row's choices after `batch.choice_tokens`. See backend.Runner, and `choose`."""
    rows = batch.choice_rows.tolist()
    positions = (batch.positions[batch.choice_tokens] + 1).tolist()
    samplings = [batch.chunks[row].seq.request.sampling for row in rows]
    told: dict[int, tuple[int, ...]] = {}
    broken: set[int] = set()
    for row, token in zip(rows, choose(best, logits, samplings, positions), strict=True):
        if token is None:
            broken.add(row)  # what follows it in the row was never chosen
        elif row not in broken:
            told[row] = (*told.get(row, ()), token)
    return told


def sample(
    logits: Floats, samplings: Sequence[Sampling], positions: Sequence[int]
) -> list[int | None]:
    """`choose` from all logits."""
    return choose(best_of(logits), logits, samplings, positions)


def choose(
    best: Ints, logits: Logits, samplings: Sequence[Sampling], positions: Sequence[int]
) -> list[int | None]:
    """One token id each, None where the logits aren't finite; `positions` are the new tokens'.

    `best` as `best_of` tells it; of `logits` only those of tokens that are drawn are looked at.
    """
    tokens: list[int | None] = [id if id >= 0 else None for id in best.tolist()]
    for row, sampling in enumerate(samplings):
        if sampling.temperature > 0 and tokens[row] is not None:
            probabilities = _probabilities(logits[row], sampling.temperature)
            number = uniform(sampling.seed, positions[row])
            tokens[row] = _draw(probabilities, sampling.top_p, number)
    return tokens


def best_of(logits: Floats) -> Ints:
    """The token of each row's highest logit, -1 where they aren't finite."""
    # argmax finds NaN and infinity wherever they stand.
    found = logits.argmax(axis=1)
    return np.where(np.isfinite(logits[np.arange(len(found)), found]), found, -1)


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of one position under one seed: 53 bits of a hash of both."""
    digest = sha256(f"{seed}:{position}".encode()).digest()
    return (int.from_bytes(digest[:8], "little") >> 11) / 2**53


def _probabilities(logits: Floats, temperature: float) -> Floats:
    """Of one row, in float32. A logit of -infinity has none."""
    weights = np.exp((logits - logits.max()) / np.float32(max(temperature, COLDEST)))
    probabilities: Floats = weights / weights.sum()
    return probabilities


def _draw(probabilities: Floats, top_p: float, number: float) -> int:
    if top_p >= 1:
        return _inverse(probabilities, number)
    token_ids = _nucleus(probabilities, top_p)
    return int(token_ids[_inverse(probabilities[token_ids], number)])


def _nucleus(probabilities: Floats, top_p: float) -> NDArray[np.intp]:
    """The fewest most likely tokens that together reach `top_p`, likeliest first."""
    # At most 1 / floor tokens lie above a floor: nearly always a thousandth of the sorting.
    for floor in (1e-3, 1e-5, 0.0):
        token_ids = np.flatnonzero(probabilities >= floor)
        if probabilities[token_ids].sum(dtype=np.float64) >= top_p:
            break
    ordered = token_ids[np.argsort(-probabilities[token_ids], kind="stable")]
    cumulated = probabilities[ordered].cumsum(dtype=np.float64)
    return ordered[: int(np.searchsorted(cumulated, top_p)) + 1]


def _inverse(weights: Floats, number: float) -> int:
    """The index whose share of the cumulated weights holds `number` of their sum."""
    cumulated = weights.cumsum(dtype=np.float64)
    index = int(np.searchsorted(cumulated, number * cumulated[-1], side="right"))
    return min(index, len(weights) - 1)
