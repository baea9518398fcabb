"""Rows, bound in the order of a statement's names."""

from __future__ import annotations

import sqlite3

from gateway.store.in_order import InOrder


def test_values_are_bound_by_what_they_are_named() -> None:
    db = sqlite3.connect(":memory:", factory=InOrder)
    db.execute("CREATE TABLE t (a, b, c, d)")
    sql = """
    INSERT INTO t (a, b, c, d) -- not :this
    VALUES (:b, :a, ':a', :c || '"' || :d)
    """
    done = db.executemany(sql, ((-n, n, n, -n) for n in (1, 2)))
    assert done.rowcount == 2
    assert db.execute("SELECT * FROM t").fetchall() == [
        (-1, 1, ":a", '1"-1'),
        (-2, 2, ":a", '2"-2'),
    ]
    db.executemany("DELETE FROM t WHERE a = :a", [(-1,)])
    db.executemany("DELETE FROM t WHERE a = :a", [])
    assert db.execute("SELECT a FROM t").fetchall() == [(-2,)]
