"""PostgreSQL's triggers: they do what SQLite's do."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.store.migrations.v0002.rules import COUNTED, KEPT, Kept

_FUNCTIONS = (
    """
CREATE FUNCTION bulkhead_count_directory() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE directory_version SET version = version + 1;
  RETURN NULL;
END $$
""",
    """
CREATE FUNCTION bulkhead_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = 'integrity_constraint_violation';
END $$
""",
    """
CREATE FUNCTION bulkhead_guard_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.state <> 'open' THEN
      RAISE EXCEPTION 'a usage record starts open'
        USING ERRCODE = 'integrity_constraint_violation';
    END IF;
  ELSIF OLD.state <> 'open' THEN
    RAISE EXCEPTION 'a closed usage record does not change'
      USING ERRCODE = 'integrity_constraint_violation';
  ELSIF NEW.state <> 'open' AND NEW.amount_pico <>
    (SELECT coalesce(sum(amount_pico), 0) FROM usage_line WHERE record_id = NEW.id) THEN
    RAISE EXCEPTION 'the amount of a usage record is the sum of its lines'
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$
""",
    # The record is locked: nobody else closes it while it gets a line.
    """
CREATE FUNCTION bulkhead_guard_line() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  owner usage_record;
BEGIN
  SELECT * INTO owner FROM usage_record WHERE id = NEW.record_id FOR SHARE;
  IF owner.state <> 'open' THEN
    RAISE EXCEPTION 'a closed usage record takes no more lines'
      USING ERRCODE = 'integrity_constraint_violation';
  ELSIF NEW.quantity < 0 AND owner.kind <> 'correction' THEN
    RAISE EXCEPTION 'only a correction gives back what was not used'
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$
""",
    """
CREATE FUNCTION bulkhead_guard_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.status = 'closed' THEN
    RAISE EXCEPTION 'a closed month does not change'
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$
""",
)

_COUNT = """
CREATE TRIGGER {table}_counts AFTER INSERT OR UPDATE OR DELETE ON {table}
FOR EACH ROW EXECUTE FUNCTION bulkhead_count_directory()
"""

_KEEP = """
CREATE TRIGGER {table}_{name} BEFORE {event} ON {table}
FOR EACH {each} EXECUTE FUNCTION bulkhead_refuse('{says}')
"""

_GUARDS = (
    """
CREATE TRIGGER usage_record_guard BEFORE INSERT OR UPDATE ON usage_record
FOR EACH ROW EXECUTE FUNCTION bulkhead_guard_record()
""",
    """
CREATE TRIGGER usage_line_guard BEFORE INSERT ON usage_line
FOR EACH ROW EXECUTE FUNCTION bulkhead_guard_line()
""",
    """
CREATE TRIGGER billing_period_guard BEFORE UPDATE OR DELETE ON billing_period
FOR EACH ROW EXECUTE FUNCTION bulkhead_guard_month()
""",
)


def statements() -> Iterator[str]:
    """What makes them, one statement each."""
    yield from _FUNCTIONS
    for table in COUNTED:
        yield _COUNT.format(table=table)
    for kept in KEPT:
        yield from _keeping(kept)
    yield from _GUARDS


def _keeping(kept: Kept) -> Iterator[str]:
    stays = f"a {kept.called} is not deleted"
    events = [("stays", "DELETE", "ROW", stays), ("is_not_emptied", "TRUNCATE", "STATEMENT", stays)]
    if kept.never_changes:
        events.append(("does_not_change", "UPDATE", "ROW", f"a {kept.called} does not change"))
    for name, event, each, says in events:
        yield _KEEP.format(table=kept.table, name=name, event=event, each=each, says=says)
