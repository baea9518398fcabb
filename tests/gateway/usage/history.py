"""A ledger with all that a bill may hold: projects, contracts, other currencies, price changes,
orphans, what isn't billed, and corrections of months that are open and of one that is closed.

Its ids come from a seed, so that two stores can be given the same.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.prices import TOKEN_CLASSES, Counts, TokenPrices, Usage
from gateway.store.records import next_seq
from gateway.usage.calendar import us
from gateway.usage.names import Names

NAMES = Names(
    "Acme Cloud GmbH", "Acme Cloud", "Acme Models", "Rack & Co", "Text Generation", "eu", "Europe"
)
OCTOBER = us(datetime.datetime(2026, 10, 1, tzinfo=datetime.UTC))
NOVEMBER = us(datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC))
DECEMBER = us(datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC))
FORMULA = '=HYPERLINK("http://evil","a,b")\r\n\''
TENANTS = ("tn_1", "tn_2")
LIST = TokenPrices("USD", input=100_000, cached_input=50_000, output=400_000)
NEW_LIST = TokenPrices("USD", input=90_000, cached_input=22_500, output=350_001)
CONTRACT = TokenPrices("USD", input=70_000, cached_input=35_000, output=280_000)
EURO = TokenPrices("EUR", input=80_000, cached_input=0, output=300_000)

MICROSECONDS = 30 * 24 * 3_600_000_000


@dataclass
class History:
    """Writes records into a store, in a transaction of whoever calls."""

    db: Any
    rng: random.Random = field(default_factory=lambda: random.Random(11))
    number: int = 0
    tenants: tuple[str, ...] = TENANTS
    billed: list[tuple[str, dict[str, object], Counts]] = field(default_factory=list)

    def directory(self) -> None:
        """Tenants, projects, keys."""
        for tenant in self.tenants:
            if tenant in TENANTS:  # another one is there
                self.db.execute(_TENANT, {"id": tenant, "name": f"name of {tenant}"})
            for name in ("a", "b"):
                project = {"id": f"pr_{tenant}_{name}", "tenant_id": tenant, "name": f"{name}, Inc"}
                self.db.execute(_PROJECT, project)
            for name in ("x", "y"):
                key = {"id": f"key_{tenant}_{name}", "tenant_id": tenant, "digest": tenant + name}
                self.db.execute(_KEY, key | {"digest": str(key["digest"]).encode()})

    def requests(self, count: int, start_us: int, span_us: int = MICROSECONDS) -> None:
        """So many requests in the order of time, most of them billed."""
        times = sorted(self.rng.randrange(start_us, start_us + span_us) for _ in range(count))
        for at_us in times:
            self.request(at_us)

    def request(self, at_us: int) -> None:
        """One, closed."""
        rng = self.rng
        self.number += 1
        tenant = rng.choice(self.tenants)
        prices, list_prices = self._prices(tenant, at_us)
        by_key = rng.random() < 0.9
        opened = {
            "id": f"ur_{self.number:07}",
            "request_id": f"{FORMULA if self.number < 10 else ''}req_{self.number:07}",
            "tenant_id": tenant,
            "api_key_id": rng.choice((f"key_{tenant}_x", f"key_{tenant}_y")) if by_key else None,
            "subject": None if by_key else "https://idp.example|user-1",
            "project_id": rng.choice((f"pr_{tenant}_a", f"pr_{tenant}_b", None)),
            "kind": "request",
            "corrects": None,
            "reason": None,
            "model_id": rng.choice(("small", "large")),
            "charge_at": at_us,
            **_prices_of(prices, list_prices),
        }
        usage = Usage(rng.randint(1, 5000), 0, rng.randint(0, 900))
        cached = rng.choice((0, rng.randint(0, usage.input_tokens)))
        counts = (usage.input_tokens - cached, cached, usage.output_tokens)
        state = rng.choices(("settled", "free", "orphaned"), (90, 6, 4))[0]
        self._enter(opened, counts if state == "settled" else (0, 0, 0), state)
        if state == "settled":
            self.billed.append((str(opened["id"]), opened, counts))

    def corrections(self, count: int, now_us: int, late_before: int) -> None:
        """Some of what was billed is taken back, in part or all; late where a month is closed."""
        for record_id, opened, counts in self.rng.sample(self.billed, count):
            self.number += 1
            delta = tuple(-self.rng.randint(0, count) for count in counts)
            if not any(delta):
                continue
            is_late = int(str(opened["charge_at"])) < late_before
            self._enter(
                opened
                | {
                    "id": f"ur_{self.number:07}",
                    "request_id": f"cor_{self.number:07}",
                    "kind": "correction",
                    "corrects": record_id,
                    "reason": 'counted twice, "so to speak"',
                    "charge_at": now_us if is_late else opened["charge_at"],
                },
                (delta[0], delta[1], delta[2]),
                "settled",
            )

    def close_month(self, start_us: int, end_us: int) -> int:
        """Close a month; its bound."""
        (bound,) = self.db.execute("SELECT seq FROM ledger_counter").fetchone()
        values = {"starts_at": start_us, "ends_at": end_us, "bound": bound}
        self.db.execute(_CLOSE_MONTH, values)
        return int(bound)

    def _prices(self, tenant: str, at_us: int) -> tuple[TokenPrices, TokenPrices | None]:
        at_list = LIST if at_us < OCTOBER + MICROSECONDS // 2 else NEW_LIST
        if tenant == "tn_1":
            return at_list, at_list
        return (EURO, None) if self.rng.random() < 0.3 else (CONTRACT, at_list)

    def _enter(self, opened: Mapping[str, object], counts: Counts, state: str) -> None:
        self.db.execute(_OPEN, opened)
        amount, at_list = 0, 0
        for token_class, quantity in zip(TOKEN_CLASSES, counts, strict=True):
            price = int(str(opened[f"{token_class}_price_pico"]))
            listed = opened[f"list_{token_class}_price_pico"]
            amount += price * quantity
            at_list += (price if listed is None else int(str(listed))) * quantity
        has_list = opened["list_input_price_pico"] is not None
        closing = {
            "id": opened["id"],
            "seq": next_seq(self.db),
            "state": "orphaned" if state == "orphaned" else "settled",
            "outcome": "crashed" if state == "orphaned" else "completed",
            "billable": int(state == "settled"),
            "input_tokens": None if state == "orphaned" else counts[0] + counts[1],
            "cached_input_tokens": None if state == "orphaned" else counts[1],
            "output_tokens": None if state == "orphaned" else counts[2],
            "amount_pico": amount,
            "list_amount_pico": at_list if has_list and state != "orphaned" else None,
        }
        self.db.execute(_CLOSE, closing)
        if state == "settled":
            self._roll_up(opened, counts, amount, at_list)

    def _roll_up(
        self, opened: Mapping[str, object], counts: Counts, amount: int, at_list: int
    ) -> None:
        charge_at = int(str(opened["charge_at"]))
        values = {
            "tenant_id": opened["tenant_id"],
            "hour_at": charge_at - charge_at % 3_600_000_000,
            "model_id": opened["model_id"],
            "api_key_id": opened["api_key_id"] or "",
            "project_id": opened["project_id"] or "",
            "currency": opened["currency"],
            "requests": int(opened["kind"] == "request"),
            "input_tokens": counts[0] + counts[1],
            "cached_input_tokens": counts[1],
            "output_tokens": counts[2],
            "amount_pico": amount,
            "list_amount_pico": at_list,
        }
        self.db.execute(_ROLL_UP, values)


def fill(db: Any, requests: int = 300) -> int:
    """The whole history; the bound that October was closed with."""
    history = History(db)
    history.directory()
    history.requests(requests // 2, OCTOBER)
    history.corrections(requests // 40, OCTOBER, 0)
    bound = history.close_month(OCTOBER, NOVEMBER)
    history.requests(requests - requests // 2, NOVEMBER)
    history.corrections(requests // 20, NOVEMBER + MICROSECONDS - 1, NOVEMBER)
    return bound


def _prices_of(prices: TokenPrices, at_list: TokenPrices | None) -> dict[str, object]:
    return {
        "currency": prices.currency,
        "input_price_pico": prices.input,
        "cached_input_price_pico": prices.cached_input,
        "output_price_pico": prices.output,
        "price_version_id": f"pv_{prices.currency}_{prices.input}",
        "list_input_price_pico": at_list.input if at_list else None,
        "list_cached_input_price_pico": at_list.cached_input if at_list else None,
        "list_output_price_pico": at_list.output if at_list else None,
        "list_price_version_id": f"pv_list_{at_list.input}" if at_list else None,
    }


_TENANT = "INSERT INTO tenant (id, name, is_demo, created_at) VALUES (:id, :name, 0, 0)"
_PROJECT = (
    "INSERT INTO project (id, tenant_id, name, created_at) VALUES (:id, :tenant_id, :name, 0)"
)
_KEY = (
    "INSERT INTO api_key (id, tenant_id, digest, hint, name, created_at)"
    " VALUES (:id, :tenant_id, :digest, 'h', 'n', 0)"
)
_OPEN = """
INSERT INTO usage_record
  (id, request_id, tenant_id, api_key_id, subject, project_id, kind, corrects, reason, operation,
   model_id, model_revision, streamed, boot_id, currency, input_price_pico,
   cached_input_price_pico, output_price_pico, price_version_id, list_input_price_pico,
   list_cached_input_price_pico, list_output_price_pico, list_price_version_id, opened_at,
   charge_at, state)
VALUES
  (:id, :request_id, :tenant_id, :api_key_id, :subject, :project_id, :kind, :corrects, :reason,
   'chat', :model_id, 'rev', 0, 'boot', :currency, :input_price_pico, :cached_input_price_pico,
   :output_price_pico, :price_version_id, :list_input_price_pico, :list_cached_input_price_pico,
   :list_output_price_pico, :list_price_version_id, :charge_at, :charge_at, 'open')
"""
_CLOSE = """
UPDATE usage_record SET
  state = :state, seq = :seq, outcome = :outcome, billable = :billable, bill_reason = 'x',
  ended_at = charge_at, settled_at = charge_at, usage_source = 'upstream_final',
  input_tokens = :input_tokens, cached_input_tokens = :cached_input_tokens,
  output_tokens = :output_tokens, amount_pico = :amount_pico, list_amount_pico = :list_amount_pico
WHERE id = :id
"""
_CLOSE_MONTH = """
INSERT INTO billing_period
  (starts_at, ends_at, status, closed_at, seq_bound, created_at, updated_at)
VALUES (:starts_at, :ends_at, 'closed', :ends_at, :bound, :ends_at, :ends_at)
"""
_ROLL_UP = """
INSERT INTO usage_rollup
  (tenant_id, hour_at, model_id, api_key_id, project_id, currency, requests, input_tokens,
   cached_input_tokens, output_tokens, amount_pico, list_amount_pico)
VALUES
  (:tenant_id, :hour_at, :model_id, :api_key_id, :project_id, :currency, :requests, :input_tokens,
   :cached_input_tokens, :output_tokens, :amount_pico, :list_amount_pico)
ON CONFLICT (tenant_id, hour_at, model_id, api_key_id, project_id, currency) DO UPDATE SET
  requests = usage_rollup.requests + excluded.requests,
  input_tokens = usage_rollup.input_tokens + excluded.input_tokens,
  cached_input_tokens = usage_rollup.cached_input_tokens + excluded.cached_input_tokens,
  output_tokens = usage_rollup.output_tokens + excluded.output_tokens,
  amount_pico = usage_rollup.amount_pico + excluded.amount_pico,
  list_amount_pico = usage_rollup.list_amount_pico + excluded.list_amount_pico
"""
