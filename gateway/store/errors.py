"""What can go wrong with the database as a whole."""

from __future__ import annotations


class StoreError(Exception):
    """Base of the store's errors."""


class StoreUnavailable(StoreError):
    """The database can't be opened, read or committed to.

    After a failed commit it's unknown whether the change took effect; every change of ours may
    be asked for again.
    """


class StoreTooNew(StoreError):
    """The database was made by a newer version of the code."""
