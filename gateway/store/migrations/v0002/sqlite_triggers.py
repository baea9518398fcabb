"""SQLite's triggers: they count directory versions, and keep what is closed as it is."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.store.migrations.v0002.rules import COUNTED, KEPT, Kept

_COUNT = """
CREATE TRIGGER {table}_counts_{event} AFTER {event} ON {table}
BEGIN
  UPDATE directory_version SET version = version + 1;
END
"""

_KEEP = """
CREATE TRIGGER {table}_{name} BEFORE {event} ON {table} BEGIN
  SELECT RAISE(ABORT, '{says}');
END
"""

_LEDGER = (
    """
CREATE TRIGGER usage_record_starts_open BEFORE INSERT ON usage_record
WHEN NEW.state <> 'open' BEGIN
  SELECT RAISE(ABORT, 'a usage record starts open');
END
""",
    """
CREATE TRIGGER usage_record_stays_closed BEFORE UPDATE ON usage_record
WHEN OLD.state <> 'open' BEGIN
  SELECT RAISE(ABORT, 'a closed usage record does not change');
END
""",
    """
CREATE TRIGGER usage_record_adds_up BEFORE UPDATE ON usage_record
WHEN OLD.state = 'open' AND NEW.state <> 'open' AND NEW.amount_pico <>
  (SELECT coalesce(sum(amount_pico), 0) FROM usage_line WHERE record_id = NEW.id)
BEGIN
  SELECT RAISE(ABORT, 'the amount of a usage record is the sum of its lines');
END
""",
    """
CREATE TRIGGER usage_line_needs_open BEFORE INSERT ON usage_line
WHEN (SELECT state FROM usage_record WHERE id = NEW.record_id) <> 'open' BEGIN
  SELECT RAISE(ABORT, 'a closed usage record takes no more lines');
END
""",
    """
CREATE TRIGGER usage_line_gives_nothing_back BEFORE INSERT ON usage_line
WHEN NEW.quantity < 0
  AND (SELECT kind FROM usage_record WHERE id = NEW.record_id) <> 'correction' BEGIN
  SELECT RAISE(ABORT, 'only a correction gives back what was not used');
END
""",
    """
CREATE TRIGGER billing_period_stays_closed BEFORE UPDATE ON billing_period
WHEN OLD.status = 'closed' BEGIN
  SELECT RAISE(ABORT, 'a closed month does not change');
END
""",
    """
CREATE TRIGGER billing_period_stays BEFORE DELETE ON billing_period
WHEN OLD.status = 'closed' BEGIN
  SELECT RAISE(ABORT, 'a closed month is not deleted');
END
""",
)


def statements() -> Iterator[str]:
    """What makes them, one statement each."""
    for table in COUNTED:
        for event in ("INSERT", "UPDATE", "DELETE"):
            yield _COUNT.format(table=table, event=event)
    for kept in KEPT:
        yield from _keeping(kept)
    yield from _LEDGER


def _keeping(kept: Kept) -> Iterator[str]:
    if kept.never_changes:
        yield _KEEP.format(
            table=kept.table,
            name="does_not_change",
            event="UPDATE",
            says=f"a {kept.called} does not change",
        )
    yield _KEEP.format(
        table=kept.table, name="stays", event="DELETE", says=f"a {kept.called} is not deleted"
    )
