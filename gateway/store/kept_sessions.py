"""Reads of PostgreSQL: over a few sessions that are kept, since opening one takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty
from typing import TypeVar

from gateway.store.address import Postgres
from gateway.store.connection import session as new_session
from gateway.store.errors import StoreUnavailable
from gateway.store.sql import Connection, Session

KEPT = 4

T = TypeVar("T")


def read(address: Postgres, query: Callable[[Connection], T]) -> T:
    """Run `query` over one snapshot, from any thread. Raises StoreUnavailable."""
    session = _begun(address)
    try:
        found = query(session)
        session.commit()
    except BaseException:
        session.close()
        raise
    if address.idle.qsize() < KEPT:
        address.idle.put(session)
    else:
        session.close()
    return found


def _begun(address: Postgres) -> Session:
    """One that was kept, unless the server has ended it meanwhile; else a new one."""
    while True:
        try:
            session = address.idle.get_nowait()
        except Empty:
            break
        try:
            session.begin_reading()
        except StoreUnavailable:
            session.close()
        else:
            return session
    session = new_session(address)
    try:
        session.begin_reading()
    except StoreUnavailable:
        session.close()
        raise
    return session
