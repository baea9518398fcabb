"""psycopg's errors as the store's own, without the password."""

from __future__ import annotations

import psycopg
from psycopg import errors

from gateway.store.address import Postgres
from gateway.store.errors import (
    IntegrityError,
    ReferenceViolated,
    StoreUnavailable,
    UniqueViolated,
)

# The server, the connection or the transaction is at fault, whatever was asked of it. A table that
# isn't there is that, too: the database isn't ours, or not yet.
_OF_THE_STORE = (
    psycopg.OperationalError,
    psycopg.InternalError,
    errors.InsufficientPrivilege,
    errors.UndefinedTable,
)


def as_ours(error: psycopg.Error, address: Postgres) -> Exception:
    """What to raise for it; itself, if the statement is wrong."""
    text = address.without_password(" ".join(str(error).split()))
    if isinstance(error, errors.UniqueViolation):
        return UniqueViolated(text)
    if isinstance(error, errors.ForeignKeyViolation):
        return ReferenceViolated(text)
    if isinstance(error, psycopg.IntegrityError):
        return IntegrityError(text)
    if isinstance(error, _OF_THE_STORE):
        return StoreUnavailable(f"The database {address} can't be used: {text}")
    return error
