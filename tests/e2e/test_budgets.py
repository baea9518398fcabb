"""Budgets on a real server: what comes at once, what is cut, what is told, what a kill leaves."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from gateway.budgets.spending import differences
from gateway.processes.workers import MAX_FAILURES
from gateway.store.address import Database, Postgres
from gateway.store.connection import DATABASE
from gateway.store.reader import read
from tests import postgres
from tests.e2e.asking import complete, eventually
from tests.e2e.clients import Load
from tests.e2e.ledger import exported
from tests.gateway.budgets.receiver import receiving, status
from tests.stack import SOAK, Stack, fake_config, running

BODY = {"model": "echo", "prompt": "canary-4711", "max_tokens": 100}
LONG = {"model": "echo", "prompt": "word " * 300, "max_tokens": 1500, "stream": True}
MOST = (11 + 256) * 100 + 100 * 300  # nano: its bytes and the template's, and its answer


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[postgres.Server]:
    with postgres.server() as server:
        yield server


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """Where the stack keeps its records."""
    if request.param == "sqlite":
        yield tmp_path_factory.mktemp("budgets") / "state" / DATABASE
        return
    server: postgres.Server = request.getfixturevalue("postgres_server")
    address = Postgres(server.new_database())
    yield address
    address.close()


@pytest.fixture(scope="module")
def stack(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One server of each kind; each test has a tenant of its own."""
    with pytest.MonkeyPatch.context() as patch:
        folder, more = tmp_path_factory.mktemp("budgets"), ""
        if isinstance(database, Postgres):
            patch.setenv("STORE_PASSWORD", unquote(postgres.PASSWORD))
            more = f'[store]\nurl = "{database.url}"\npassword_secret = "STORE_PASSWORD"\n'
        else:
            folder = database.parent.parent
        with running(folder, fake_config(step_s=0.005, more=more)) as stack:
            yield stack


@pytest.fixture
def tenant(stack: Stack, request: pytest.FixtureRequest) -> str:
    """A new one, made while the server runs, whose key the stack's clients use."""
    name = f"t{abs(hash(request.node.name))}"
    stack.cli("tenants", "create", name)
    stack.key = json.loads(stack.cli("keys", "create", name, "--json"))["secret"]
    return name


def make(stack: Stack, tenant: str, nano: int, *options: str) -> dict[str, Any]:
    limit = f"0.{nano:09d}"
    told = stack.cli("budgets", "create", tenant, "--limit", limit, *options, "--json")
    found: dict[str, Any] = json.loads(told)
    return found


def window(stack: Stack) -> dict[str, Any]:
    with stack.client() as client:
        (budget,) = client.get("/v1/budgets").json()["data"]
    found: dict[str, Any] = budget["window"]
    return found


def count(database: Database, state: str) -> int:
    """How many records are in this state."""
    query = "SELECT count(*) FROM usage_record WHERE state = :state"
    found: int = read(database, lambda db: db.execute(query, {"state": state}).fetchone()[0])
    return found


def assert_at_rest(stack: Stack, database: Database) -> None:
    eventually(lambda: count(database, "open") == 0, "some stay open")
    assert read(database, differences) == []
    assert float(window(stack)["held"]) == 0


async def at_once(stack: Stack, requests: int) -> list[httpx.Response]:
    headers = {"authorization": f"Bearer {stack.key}"}
    limits = httpx.Limits(max_connections=requests)
    async with httpx.AsyncClient(
        base_url=stack.url, headers=headers, timeout=120, limits=limits
    ) as client:
        asked = [client.post("/v1/completions", json=BODY) for _ in range(requests)]
        return await asyncio.gather(*asked)


def test_200_at_once_at_a_budget_for_one_admit_one(
    stack: Stack, database: Database, tenant: str
) -> None:
    """The very first requests of a tenant that the server has never heard of."""
    made = make(stack, tenant, MOST + 1)
    answers = asyncio.run(at_once(stack, 200))
    assert Counter(answer.status_code for answer in answers) == {200: 1, 429: 199}
    refused = next(answer for answer in answers if answer.status_code == 429)
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert made["id"] in error["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert len(exported(stack)) == 1, "a refused request is no record"
    assert_at_rest(stack, database)
    assert window(stack)["spent"] != "0"


def test_an_answer_without_a_limit_is_cut_and_told_so(
    stack: Stack, database: Database, tenant: str
) -> None:
    make(stack, tenant, (11 + 256) * 100 + 20 * 300, "--period", "total")
    for stream in (False, True):
        body = {**BODY, "prompt": "a" * 11, "max_tokens": None, "stream": stream}
        answer = complete(stack, **body)
        if stream:  # what is left now is less than the least
            assert answer.status_code == 429
            assert "retry-after" not in answer.headers
        else:
            assert answer.headers["x-bulkhead-max-tokens"] == "20"
            assert answer.json()["usage"]["completion_tokens"] <= 20
    assert_at_rest(stack, database)


def test_a_client_that_leaves_gives_its_hold_back(
    stack: Stack, database: Database, tenant: str
) -> None:
    make(stack, tenant, 100 * MOST)
    with (
        stack.client() as client,
        client.stream("POST", "/v1/completions", json=LONG) as answer,
    ):
        assert answer.status_code == 200
        chunks = answer.iter_raw()  # held on to: one that is dropped closes its answer
        next(chunks)
        assert float(window(stack)["held"]) > 0
    assert_at_rest(stack, database)


def test_a_kill_leaves_no_hold(stack: Stack, database: Database, tenant: str) -> None:
    make(stack, tenant, 999_999_999)
    with Load(stack, 8, streams=[True]) as load:
        for _ in range(MAX_FAILURES - 1 if SOAK else 2):  # one more, and the parent gives up
            load.wait_for_more(20)
            stack.kill(stack.worker_pid())
            stack.wait_ready()
        load.wait_for_more(20)
    eventually(lambda: count(database, "orphaned"), "nobody reaps")
    assert_at_rest(stack, database)


def test_an_alert_reaches_the_webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALERTS_KEY", "a secret")
    with receiving() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/hook"
        config = fake_config(more=f'[alerts]\nurl = "{url}"\nsecret = "ALERTS_KEY"\n')
        receiver.script = [status(500)]
        with running(tmp_path, config) as stack:
            make(stack, "demo", MOST, "--alerts", "1")
            assert complete(stack).status_code == 200
            eventually(lambda: len(receiver.got) == 2, "it is tried again")
            assert b"t0ken" not in receiver.got[0].body
            assert "a secret" not in stack.log.read_text()
    first, second = (got.headers["webhook-id"] for got in receiver.got)
    assert first == second


def test_an_archived_budget_holds_nobody(stack: Stack, tenant: str) -> None:
    made = make(stack, tenant, 1)
    assert complete(stack).status_code == 429
    stack.cli("budgets", "archive", made["id"])
    assert complete(stack).status_code == 200
    began = time.monotonic()
    make(stack, tenant, 1)
    while complete(stack).status_code == 200:
        assert time.monotonic() - began < 10
