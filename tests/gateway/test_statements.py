"""Every statement of ours is understood by both databases: each is planned, and none is run."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import gateway
from gateway.store.address import Database, Postgres
from gateway.store.connection import open_for_writing
from gateway.store.sql import TOKEN, Connection

ROOT = Path(gateway.__file__).parent
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
# These speak to one database alone.
OF_ONE = tuple(f"gateway.store.{name}" for name in ("postgres", "backup", "migrat", "connection"))


class Statement(NamedTuple):
    where: str
    sql: str
    names: frozenset[str]


def statements() -> Iterator[Statement]:
    """What is given to `execute` and `executemany`, as text or by a name of its module."""
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(("gateway", *path.relative_to(ROOT).with_suffix("").parts))
        if name.startswith(OF_ONE):
            continue
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if _executes(node)]
        if not calls:
            continue
        module = importlib.import_module(name)
        for call in calls:
            assert isinstance(call, ast.Call)
            sql = _text(call.args[0], module)
            if sql and sql.split(maxsplit=1)[0] in VERBS:
                yield Statement(f"{name}:{call.lineno}", sql, _names(sql))


def _executes(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("execute", "executemany")
        and bool(node.args)
    )


def _text(argument: ast.expr, module: ModuleType) -> str | None:
    """None if it is put together as it runs."""
    try:
        found = eval(compile(ast.Expression(argument), "", "eval"), vars(module))
    except (NameError, KeyError, AttributeError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _names(sql: str) -> frozenset[str]:
    return frozenset(token[1] for token in TOKEN.finditer(sql) if token[1])


EVERY = list(statements())


def test_there_are_statements() -> None:
    assert len(EVERY) > 40


@pytest.fixture
def db(database: Database) -> Iterator[Connection]:
    with closing(open_for_writing(database)) as db:
        yield db


def test_each_is_planned(db: Connection, database: Database) -> None:
    faults = []
    for statement in EVERY:
        explain = "EXPLAIN " if isinstance(database, Postgres) else "EXPLAIN QUERY PLAN "
        try:
            db.execute(explain + statement.sql, dict.fromkeys(statement.names))
        except Exception as fault:  # noqa: BLE001 - all of them are told at once
            faults.append(f"{statement.where}: {fault}")
    assert not faults, "\n".join(faults)
