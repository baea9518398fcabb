"""What engines claimed beyond what a request could use; tenants and projects keep their names.

A column that is added here is empty in what was closed before, which changes none of its links.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_KEEPS = "a {table} keeps its name: exports of past months tell it"

_SQLITE = """
CREATE TRIGGER {table}_keeps_its_name BEFORE UPDATE OF name ON {table}
WHEN NEW.name <> OLD.name BEGIN
  SELECT RAISE(ABORT, '{says}');
END
"""

_POSTGRES = """
CREATE TRIGGER {table}_keeps_its_name BEFORE UPDATE OF name ON {table}
FOR EACH ROW WHEN (NEW.name <> OLD.name) EXECUTE FUNCTION bulkhead_refuse('{says}')
"""


def upgrade() -> None:
    """Add the columns, and guard the names."""
    bind = op.get_bind()
    is_sqlite = bind.dialect.name == "sqlite"
    kind = sa.Integer() if is_sqlite else sa.BigInteger()
    for name in ("claimed_input_tokens", "claimed_output_tokens"):
        op.add_column("usage_record", sa.Column(name, kind))
    trigger = _SQLITE if is_sqlite else _POSTGRES
    for table in ("tenant", "project"):
        says = _KEEPS.format(table=table)
        bind.exec_driver_sql(trigger.format(table=table, says=says))
