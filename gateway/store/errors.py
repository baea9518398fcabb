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


def is_of_the_file(error: BaseException) -> bool:
    """Whether SQLite can't use the file or its disk, whatever it was asked to do with it."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & _PRIMARY in _OF_THE_FILE
