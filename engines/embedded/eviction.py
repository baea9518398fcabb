"""Whose cached pages go when room is needed: those of the domain that has the most pages.

So nobody's load pushes out the prefixes of a domain that has less than it has itself, and what a
tenant finds gone tells it of others only that they need more than it does. Within a domain the page
that has been unheld the longest goes first. What the operator declared public goes last: it is
small, and everybody's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from engines.embedded.public import PUBLIC_DOMAIN


class Unheld:
    """Cached pages that nobody holds. `num_pages` tells how much a domain has, held or not."""

    def __init__(self, num_pages: Callable[[str], int]) -> None:
        self._num_pages = num_pages
        self._domains: dict[int, str] = {}  # by page
        self._pages: dict[str, OrderedDict[int, None]] = {}  # by domain, oldest first

    def __len__(self) -> int:
        return len(self._domains)

    def __contains__(self, page: int) -> bool:
        return page in self._domains

    def add(self, page: int, domain: str) -> None:
        """Its last holder is gone: it is the youngest of its domain."""
        self._domains[page] = domain
        self._pages.setdefault(domain, OrderedDict())[page] = None

    def discard(self, page: int) -> None:
        """It is held again, or no longer cached; fine if it wasn't here."""
        if (domain := self._domains.pop(page, None)) is None:
            return
        pages = self._pages[domain]
        del pages[page]
        if not pages:
            del self._pages[domain]

    def candidates(self) -> Iterator[int]:
        """The oldest page of each domain, the domain that has the most first."""
        left = list(self._pages)
        while left:
            largest = max(left, key=self._greed)
            yield next(iter(self._pages[largest]))
            left.remove(largest)

    def _greed(self, domain: str) -> int:
        return -1 if domain == PUBLIC_DOMAIN else self._num_pages(domain)
