"""What can go wrong with the database as a whole."""

from __future__ import annotations

import sqlite3

_OF_THE_FILE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
_PRIMARY = 0xFF  # the low byte of an extended code


class StoreError(Exception):
    """Base of the store's errors."""


class StoreUnavailable(StoreError):
    """The database can't be opened, read or committed to.

    After a failed commit it's unknown whether the change took effect; every change of ours may
    be asked for again.
    """


class StoreTooNew(StoreError):
    """The database was made by a newer version of the code."""


class IntegrityError(StoreError):
    """A change would break a rule of the schema; it was undone, and nothing else."""


class UniqueViolated(IntegrityError):
    """There is one already."""


class ReferenceViolated(IntegrityError):
    """It points at something that isn't there."""


def is_of_the_store(error: BaseException) -> bool:
    """Whether the store can't be used, whatever it was asked to do."""
    return isinstance(error, StoreUnavailable) or is_of_the_file(error)


def is_of_the_file(error: BaseException) -> bool:
    """Whether SQLite can't use the file or its disk, whatever it was asked to do with it."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & _PRIMARY in _OF_THE_FILE


def as_ours(error: Exception) -> Exception:
    """SQLite's errors of integrity as the store's; any other as it is."""
    if not isinstance(error, sqlite3.IntegrityError):
        return error
    kind = _INTEGRITY.get(error.sqlite_errorcode, IntegrityError)
    ours = kind(str(error))
    ours.__cause__ = error
    return ours


_INTEGRITY: dict[int, type[IntegrityError]] = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: UniqueViolated,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: UniqueViolated,
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: ReferenceViolated,
}
