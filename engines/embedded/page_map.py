"""A picture of the pool for operators: states, owners and ages of all pages, and no content.

A domain, which is a keyed hash already, is told by its first letters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engines.api import DomainPages, PageMap
from engines.embedded import tags
from engines.embedded.pages import PagePool, State

NONE = -1  # the owner of a page that is nobody's
PSEUDONYM_LETTERS = 8
NAMES = [state.name.lower() for state in State]
LETTERS = np.frombuffer("".join(name[0] for name in NAMES).encode(), np.uint8)


def page_map(pool: PagePool, page_size: int) -> PageMap:
    """The pool as of now. Some milliseconds for a hundred thousand pages."""
    with pool.lock:
        owners, names = _owners(pool)
        states = pool.states[1:].copy()
        return PageMap(
            page_size=page_size,
            pages=pool.count(),
            states=LETTERS[states].tobytes().decode(),
            owners=owners.tolist(),
            domains=_domains(names, owners, states, pool.clock() - pool.moved_at[1:]),
            pinned=int((pool.pins > 0).sum()),
            limbo_age_s=round(pool.limbo_age_s, 3),
            launched_step=pool.launched_step,
            completed_step=pool.completed_step,
            generation=pool.generation,
        )


def _owners(pool: PagePool) -> tuple[NDArray[np.int64], list[str]]:
    """For each page the place of its domain among the names; NONE for pages of nobody."""
    places = np.full(tags.QUARANTINE_SLOT + 1, NONE)
    names = list(pool.domains.slots)
    places[list(pool.domains.slots.values())] = np.arange(len(names))
    owners = places[(pool.tags[1:] >> np.uint64(tags.GENERATION_BITS)).astype(np.int64)]
    given_up = np.isin(pool.states[1:], (State.RETIRING, State.ZEROING))
    for index in np.flatnonzero(given_up).tolist():  # their tag is the system's already
        if (domain := pool.domain_of(index + 1)) in pool.domains.slots:
            owners[index] = names.index(domain)
    kept, found = np.unique(owners[owners != NONE], return_inverse=True)
    owners[owners != NONE] = found  # domains without a page aren't told of
    return owners, [names[place] for place in kept.tolist()]


def _domains(
    names: list[str],
    owners: NDArray[np.int64],
    states: NDArray[np.uint8],
    ages: NDArray[np.float64],
) -> list[DomainPages]:
    is_owned = owners != NONE
    owners, states, ages = owners[is_owned], states[is_owned], ages[is_owned]
    shape = (len(names), len(State))
    counts = np.bincount(owners * len(State) + states, minlength=shape[0] * shape[1]).reshape(shape)
    youngest, oldest = np.full(len(names), np.inf), np.zeros(len(names))
    np.minimum.at(youngest, owners, ages)
    np.maximum.at(oldest, owners, ages)
    return [
        DomainPages(
            domain=name[:PSEUDONYM_LETTERS],
            pages={NAMES[state]: number for state, number in enumerate(row.tolist()) if number},
            youngest_s=round(float(young), 3),
            oldest_s=round(float(old), 3),
        )
        for name, row, young, old in zip(names, counts, youngest, oldest, strict=True)
    ]
