"""Very many requests through one gateway with everything on: nothing grows, nothing is left over.

`make soak` sends 200,000. A tenth is left by its client at any moment, some are refused.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.gateway.programs import Engine, engine
from benchmarks.load import Target
from gateway.budgets.spending import differences
from gateway.store.reader import read
from tests.e2e.asking import eventually
from tests.e2e.crowd import Crowd, Refusal, body
from tests.e2e.gauges import in_progress
from tests.e2e.ledger import exported
from tests.e2e.memory import descriptors, rss_mb
from tests.stack import SOAK, Stack, fake_config, running

pytestmark = pytest.mark.slow

WARM_UP, WINDOWS, IN_A_WINDOW = (20_000, 9, 20_000) if SOAK else (1_000, 3, 1_000)
GROWTH = 1.05 if SOAK else 1.15  # caches of a warm-up so short aren't full
CLIENTS = 32
SPARE_DESCRIPTORS = 3  # a connection to the store, or to an engine, that was made meanwhile
# Most answer at once; others give a client time to leave in the midst of it.
MODELS = (*("plain",) * 6, "paced-2", "slow-20", "echo", "echo")
SERVED_ELSEWHERE = """
[[models]]
id = "{id}"
engine = "openai"
url = "{url}"
cache = "salted"
price = {{ input = "0.10", cached_input = "0.02", output = "0.30" }}
"""
LIMITS = """
[limits.per_tenant]
rpm = 1000000000
tpm = 1000000000000
concurrent = 100000
[limits.per_key]
rpm = 1000000000
tpm = 1000000000000
concurrent = 100000
"""


@pytest.fixture
def elsewhere() -> Iterator[Engine]:
    with engine(None) as running:
        yield running


@pytest.fixture
def stack(tmp_path: Path, elsewhere: Engine) -> Iterator[Stack]:
    others = {model for model in MODELS if model != "echo"}
    more = "".join(SERVED_ELSEWHERE.format(id=one, url=elsewhere.url) for one in sorted(others))
    with running(tmp_path, fake_config(step_s=0.001, more=more + LIMITS)) as stack:
        stack.cli("budgets", "create", "demo", "--limit", "1000000")
        stack.cli("tenants", "create", "poor")
        stack.cli("budgets", "create", "poor", "--limit", "0.000000001")
        yield stack


def test_nothing_grows_and_nothing_is_left_over(stack: Stack) -> None:
    poor = stack.cli("keys", "create", "poor").strip()
    crowd = Crowd(_target(stack), MODELS, _refusals(poor))
    worker = stack.worker_pid()
    asyncio.run(crowd.ask(WARM_UP, CLIENTS))
    eventually(lambda: in_progress(stack) == 0, "some go on")
    most, sizes = descriptors(worker) + SPARE_DESCRIPTORS, [rss_mb(worker)]
    for _ in range(WINDOWS):
        asyncio.run(crowd.ask(IN_A_WINDOW, CLIENTS))
        sizes.append(rss_mb(worker))
    assert crowd.wrong == []
    assert set(crowd.refused) == {400, 401, 404, 429}
    assert len(crowd.left) == 5
    assert stack.worker_pid() == worker, "it is still the same"
    eventually(lambda: in_progress(stack) == 0, "some go on")
    eventually(
        lambda: descriptors(worker) <= most,
        f"{descriptors(worker)} descriptors, more than {most}",
    )
    assert sizes[-1] <= GROWTH * sizes[0], sizes
    _check_books(stack, crowd)


def _check_books(stack: Stack, crowd: Crowd) -> None:
    eventually(lambda: _open_records(stack) == 0, "some stay open")
    database = stack.state / "bulkhead.db"
    assert read(database, differences) == [], "no hold is left, and spent is what the lines say"
    with stack.client() as client:
        (budget,) = client.get("/v1/budgets").json()["data"]
        limits = client.get("/v1/limits").json()["data"]
    assert float(budget["window"]["held"]) == 0
    places = [limit for limit in limits if limit["kind"] == "concurrent"]
    assert {limit["scope"] for limit in places} == {"key", "tenant"}
    assert all(limit["remaining"] == limit["limit"] for limit in places), "no place is held"
    assert "nothing differs" in stack.cli("ledger", "reconcile")
    billed = [row["request_id"] for row in exported(stack) if row["billable"]]
    assert len(billed) == len(set(billed)), "no row is doubled"
    assert set(crowd.ended) <= set(billed), "every answer whose end was received is billed"
    assert "Traceback" not in stack.log.read_text()


def _target(stack: Stack) -> Target:
    headers = {"authorization": f"Bearer {stack.key}"}
    return Target(f"{stack.url}/v1", "/chat/completions", headers)


def _refusals(poor: str) -> list[Refusal]:
    return [
        Refusal(b"{", 400),
        Refusal(body("plain", temperature=99), 400),
        Refusal(body("none"), 404),
        Refusal(body("plain"), 401, key="sk-bh-nobody"),
        Refusal(body("plain"), 429, key=poor),
    ]


def _open_records(stack: Stack) -> int:
    path = stack.state / "bulkhead.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        query = "SELECT count(*) FROM usage_record WHERE state = 'open'"
        return int(db.execute(query).fetchone()[0])
