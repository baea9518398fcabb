"""The tables, defined once. Migrations bring a database here; a test holds the two together.

Ids are text. Times are microseconds UTC, money is in pico-units of the record's currency, budgets
in nano-units. The triggers that count directory versions and keep closed records as they are live
in the migrations, as does the view of the records' lines.
"""

from __future__ import annotations

from gateway.store.tables import directory, keeping, ledger, money
from gateway.store.tables.base import metadata

__all__ = ["directory", "keeping", "ledger", "metadata", "money"]
