"""Whatever happens, in whatever order: only open records hold, and what was billed was spent.

Requests open, settle, fail and are left open by processes that die; others reap them and start
anew; days go by, zones change, budgets come and go.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar, cast

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.billing import Outcome
from gateway.budgets.bounds import Bound
from gateway.budgets.budgets import Plan, archive, create, listed
from gateway.budgets.holds import OverBudget
from gateway.budgets.spending import differences
from gateway.ledger import Ledger
from gateway.prices import Terms, TokenPrices, Usage
from gateway.record import OpenRecord
from gateway.store.connection import open_for_writing, transaction
from gateway.store.writer import Writer
from tests.gateway.accounts import add_key
from tests.gateway.budgets.spending import opening
from tests.gateway.records import COMPLETED, FakeClock, new_store
from tests.stack import SOAK

HOUR = 3_600_000_000
PRICES = TokenPrices("USD", input=1700, cached_input=300, output=2100)  # pico
KEYS = ("key_1", "key_2")
MODELS = ("m", "n")
SCOPES = (("tenant", "tn_1"), ("key", "key_1"), ("key", "key_2"))

T = TypeVar("T")


@dataclass
class AtOnce:
    """Runs each job in a transaction of its own, as the writer's thread would."""

    db: Any

    async def run(self, job: Any) -> Any:
        with transaction(self.db):
            return job(self.db)

    def post(self, job: Any) -> None:
        with transaction(self.db):
            job(self.db)


class Spending(RuleBasedStateMachine):
    """Budgets of one tenant, two keys and two models."""

    template: ClassVar[Path]

    @initialize()
    def begin(self) -> None:
        self.folder = TemporaryDirectory()
        path = Path(self.folder.name) / "store.db"
        shutil.copyfile(self.template, path)
        self.db = open_for_writing(path)
        self.db.execute("PRAGMA synchronous = OFF")
        self.clock = FakeClock()
        self.clock.us = 20_000 * 24 * HOUR
        self.boots = 0
        self.dead: set[str] = set()
        self.open: list[tuple[str, OpenRecord]] = []
        self.ledgers: dict[str, Ledger] = {}
        self.bounded: set[str] = set()  # budgets that were made while nothing ran
        self.start()

    def start(self) -> None:
        boot = f"boot_{self.boots}"
        self.boots += 1
        self.ledgers[boot] = Ledger(cast("Writer", AtOnce(self.db)), self.clock, boot)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    @rule(
        scope=st.sampled_from(SCOPES),
        model=st.sampled_from(("", *MODELS)),
        period=st.sampled_from(("daily", "monthly", "total")),
        limit=st.integers(1, 20_000),
    )
    def make_budget(self, scope: Any, model: str, period: Any, limit: int) -> None:
        kind, scope_id = scope
        plan = Plan("tn_1", kind, scope_id, period, "USD", limit, model, alerts=(50, 100))
        with transaction(self.db):
            account = create(self.db, plan, self.clock.us)
        if not self.open and account.left_nano >= 0:
            self.bounded.add(account.budget.id)

    @rule(data=st.data())
    def end_budget(self, data: st.DataObject) -> None:
        with suppress(IndexError), transaction(self.db):
            budgets = listed(self.db, self.clock.us)
            chosen = budgets[data.draw(st.integers(0, max(len(budgets) - 1, 0)))]
            archive(self.db, chosen.budget.id, self.clock.us)

    @rule(
        data=st.data(),
        key=st.sampled_from(KEYS),
        model=st.sampled_from(MODELS),
        tokens=st.tuples(st.integers(0, 2000), st.integers(1, 200)),
        is_default=st.booleans(),
    )
    def ask(
        self, data: st.DataObject, key: str, model: str, tokens: tuple[int, int], is_default: bool
    ) -> None:
        boot = data.draw(st.sampled_from(sorted(self.ledgers)))
        asked = opening(
            api_key_id=key,
            model_id=model,
            terms=Terms.of(PRICES),
            bound=Bound(*tokens, is_default=is_default),
        )
        before = self.snapshot()
        try:
            record = self.run(self.ledgers[boot].open(asked))
        except OverBudget:
            assert self.snapshot() == before, "a request that is refused changes nothing"
        else:
            self.open.append((boot, record))

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        outcome=st.sampled_from((Outcome.COMPLETED, Outcome.CLIENT_CANCELLED, Outcome.TIMEOUT)),
        share=st.floats(0, 1),
        cached=st.floats(0, 1),
    )
    def settle(self, data: st.DataObject, outcome: Outcome, share: float, cached: float) -> None:
        boot, record = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        bound = record.opening.bound
        most = bound.output_tokens if record.output_cut is None else record.output_cut
        given = int(bound.input_tokens * share)
        usage = Usage(given, int(given * cached), int(most * share))
        ending = replace(COMPLETED, outcome=outcome, usage=usage)
        ledger = self.ledgers.get(boot) or self.any_ledger()
        first = self.run(ledger.settle(record, ending))
        assert first == (boot not in self.dead), "what was reaped is closed"
        before = self.snapshot()
        assert not self.run(ledger.settle(record, ending)), "once"
        assert self.snapshot() == before

    @precondition(lambda self: self.open)
    @rule(data=st.data(), model=st.sampled_from(MODELS))
    def fall_back(self, data: st.DataObject, model: str) -> None:
        """Another model answers: its record moves, and what it holds."""
        at = data.draw(st.integers(0, len(self.open) - 1))
        boot, record = self.open[at]
        if boot in self.dead:
            return
        other = replace(record.opening, model_id=model)
        with suppress(OverBudget):
            moved = self.run(self.ledgers[boot].move(record, other))
            assert moved is not None
            self.open[at] = boot, moved

    @precondition(lambda self: len(self.ledgers) > 1)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """It settles nothing any more; another one notices."""
        boot = data.draw(st.sampled_from(sorted(self.ledgers)))
        del self.ledgers[boot]
        self.dead.add(boot)
        self.run(self.any_ledger().reap_orphans(lambda other: other in self.ledgers))

    @rule()
    def another_process(self) -> None:
        if len(self.ledgers) < 3:
            self.start()

    @rule(hours=st.sampled_from((1, 7, 24, 24 * 40)))
    def time_goes_by(self, hours: int) -> None:
        self.clock.us += hours * HOUR

    @rule(zone=st.sampled_from(("UTC", "Asia/Tokyo", "America/St_Johns")))
    def zone_changes(self, zone: str) -> None:
        with transaction(self.db):
            self.db.execute("UPDATE tenant SET timezone = :zone", {"zone": zone})

    @invariant()
    def windows_agree_with_records(self) -> None:
        assert differences(self.db) == []

    @invariant()
    def no_limit_is_passed(self) -> None:
        for account in listed(self.db, self.clock.us):
            assert account.budget.id not in self.bounded or account.left_nano >= 0

    def any_ledger(self) -> Ledger:
        return next(iter(self.ledgers.values()))

    def snapshot(self) -> list[Any]:
        tables = ("budget_window", "budget_hold", "usage_record", "usage_line", "usage_rollup")
        return [self.db.execute(f"SELECT * FROM {table}").fetchall() for table in tables]

    def teardown(self) -> None:
        """At rest, nothing is held."""
        if not hasattr(self, "db"):
            return
        self.start()
        last = f"boot_{self.boots - 1}"
        self.run(self.ledgers[last].reap_orphans(lambda _: False))
        assert self.db.execute("SELECT count(*) FROM budget_hold").fetchone() == (0,)
        held = self.db.execute("SELECT coalesce(sum(held_nano), 0) FROM budget_window").fetchone()
        assert held == (0,)
        assert differences(self.db) == []
        self.db.close()
        self.folder.cleanup()


def test_nothing_is_held_at_rest_and_spent_is_what_was_billed(tmp_path: Path) -> None:
    path = new_store(tmp_path)
    with closing(open_for_writing(path)) as db, transaction(db):
        add_key(db, "key_2", digest=b"\2")
    with closing(open_for_writing(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    Spending.template = path
    run_state_machine_as_test(
        Spending,
        settings=settings(
            max_examples=1000 if SOAK else 60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
