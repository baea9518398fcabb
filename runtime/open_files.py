"""How many files a process may have open: each connection is one, and each stream is two."""

from __future__ import annotations

import resource

MOST = 65_536  # more is of no use, and makes programs slow that close all there might be


def possible() -> int:
    """What a process of ours may have open once it has seen to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_or_most(soft), min(_or_most(hard), MOST))


def raise_limit() -> None:
    """As far as we are allowed to; processes that we start inherit it.

    Many a system has 1024 as the limit, for old programs' sake, and far more for who asks.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _or_most(soft) < possible():
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible(), hard))


def _or_most(limit: int) -> int:
    return MOST if limit == resource.RLIM_INFINITY else limit
