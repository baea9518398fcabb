"""A charge: tokens of one class at one price, as a row of a bill tells of them."""

from __future__ import annotations

from typing import NamedTuple

from gateway.usage.calendar import month_of


class Charge(NamedTuple):
    """Tokens of one class that one caller used of one model, at one price.

    Either those of an hour together, or those of one record. Times are microseconds UTC, prices
    pico-units of `currency` a token. "" is what isn't there, and -1 for a list price.
    """

    tenant_id: str
    project_id: str
    api_key_id: str
    model_id: str
    token_class: str
    sku_id: str
    currency: str
    price_version_id: str
    list_price_version_id: str
    price_pico: int
    list_price_pico: int  # -1: the list has no price in this currency
    corrects: str  # the record that is corrected
    record_id: str  # if this is of one record
    request_id: str
    subject: str
    reason: str  # of a correction
    used_us: int  # the hour's start; a correction's is the one that it corrects
    billed_us: int  # within the period that it's billed in
    tenant_name: str
    project_name: str
    quantity: int  # tokens; a correction may take some back
    records: int
    first_seq: int
    last_seq: int

    @property
    def amount_pico(self) -> int:
        """What is charged."""
        return self.quantity * self.price_pico

    @property
    def has_list_price(self) -> bool:
        """Whether the list has a price in this currency."""
        return self.list_price_pico >= 0

    @property
    def list_unit_pico(self) -> int:
        """The list price, or where there is none the one that is charged."""
        return self.list_price_pico if self.has_list_price else self.price_pico

    @property
    def list_amount_pico(self) -> int:
        """What it would cost at the list price."""
        return self.quantity * self.list_unit_pico

    def price(self) -> tuple[str | int, ...]:
        """What a token costs, and by which version of which price."""
        return (
            self.sku_id,
            self.currency,
            self.price_version_id,
            self.price_pico,
            self.list_price_version_id,
            self.list_unit_pico,
        )

    @property
    def is_late(self) -> bool:
        """Whether it corrects what was billed in an earlier period."""
        return bool(self.corrects) and month_of(self.used_us) != month_of(self.billed_us)
