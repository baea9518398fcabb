"""Run by Alembic: bind the migrations to the connection that `migrate` hands over.

The connection is already inside a transaction, so a migration that fails leaves no trace.
"""

from __future__ import annotations

from alembic import context

from gateway.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
