"""What an export adds up to, counted while it's written: whoever reads it can count again."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field

from gateway.usage.decimals import plain

PICO_PLACES = 12

Sums = dict[str, dict[str, str]]


@dataclass(slots=True)
class Totals:
    """Grows with each row. Its size is that of the prices that were met, not of the rows."""

    rows: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    reached_us: int = 0  # the time of the newest row
    _costs: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    _prices: set[tuple[str | int | None, ...]] = field(default_factory=set)

    def add_row(self, first_seq: int, last_seq: int, at_us: int) -> None:
        """Count a row made of the records from `first_seq` to `last_seq`."""
        self.rows += 1
        self.reached_us = at_us
        self.first_seq = first_seq if self.first_seq is None else min(self.first_seq, first_seq)
        self.last_seq = last_seq if self.last_seq is None else max(self.last_seq, last_seq)

    def add_cost(self, currency: str, column: str, pico: int) -> None:
        """Add to a column's sum, in pico-units of a currency."""
        self._costs[currency, column] += pico

    def add_price(self, price: tuple[str | int | None, ...]) -> None:
        """Note a price that a row has."""
        self._prices.add(price)

    def sums(self) -> Sums:
        """The sum of each cost column, by currency, as exact decimals."""
        found: Sums = {}
        for (currency, column), pico in sorted(self._costs.items()):
            found.setdefault(currency, {})[column] = plain(pico, PICO_PLACES)
        return found

    def price_table_sha256(self) -> str:
        """The digest of all prices that rows have, sorted, a line each."""
        lines = sorted("\t".join(map(str, price)) for price in self._prices)
        return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
