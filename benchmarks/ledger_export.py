"""A ledger of many records, and how its exports go: each in a process of its own.

python -m benchmarks.ledger_export STORE FORM     (one export; a line of JSON)
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import ROOT, python
from gateway.store.connection import open_for_writing, transaction
from gateway.store.reader import read
from gateway.usage.export import Export, Form
from gateway.usage.names import Names
from gateway.usage.selection import Selection, bound_of

FORMS = {
    "CSV, a row a record": Form("csv"),
    "JSONL, a row a record": Form("jsonl"),
    "FOCUS by hour": Form("focus"),
    "FOCUS by request": Form("focus", granularity="request"),
}
NAMES = Names("Acme", "Acme", "Acme", "Acme", "Text Generation", "eu", "Europe")
MONTH_US = 30 * 24 * 3_600_000_000
FIRST_US = 1_790_812_800_000_000  # 2026-10-01
MIB = 1024 * 1024


@dataclass(frozen=True)
class Exported:
    """One export, as it went."""

    form: str
    seconds: float
    written_mib: float
    peak_mib: float

    def row(self) -> tuple[str, float, float, float]:
        return self.form, self.seconds, self.written_mib, self.peak_mib


def measure(store: Path, records: int) -> list[Exported]:
    """Fill the store, then export all of it in each form."""
    fill(store, records)
    found = []
    for form in FORMS:
        command = python("benchmarks.ledger_export", str(store), form)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found.append(Exported(form, **json.loads(done.stdout)))
    return found


def fill(store: Path, records: int) -> None:
    """Closed records over a month, of a tenant that is there: at once, past the triggers."""
    values = {"records": records, "first": FIRST_US, "step": MONTH_US // max(records, 1)}
    with closing(open_for_writing(store)) as db, transaction(db):
        triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
        kept = triggers.fetchall()
        for name, _ in kept:
            db.execute(f"DROP TRIGGER {name}")
        db.execute(_RECORDS, values)
        db.execute("UPDATE ledger_counter SET seq = :records", values)
        for _, sql in kept:
            db.execute(sql)


def one(store: Path, name: str) -> None:
    end = FIRST_US + MONTH_US
    bound = read(store, lambda db: bound_of(db, FIRST_US, end))
    began, written = time.perf_counter(), 0
    for some in Export(store, Selection(FIRST_US, end, bound), FORMS[name], NAMES):
        written += len(some)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    told = {"seconds": seconds, "written_mib": written / MIB, "peak_mib": peak / MIB}
    print(json.dumps(told))


_AMOUNT = 200 * 100_000 + 500 * 20_000 + 300 * 300_000

_RECORDS = f"""
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :records)
INSERT INTO usage_record
  (id, request_id, tenant_id, api_key_id, operation, model_id, model_revision, streamed, boot_id,
   currency, input_price_pico, cached_input_price_pico, output_price_pico, price_version_id,
   list_input_price_pico, list_cached_input_price_pico, list_output_price_pico,
   list_price_version_id, opened_at, charge_at, state, seq, host_id, outcome, billable,
   bill_reason, first_token_at, ended_at, settled_at, input_tokens, cached_input_tokens,
   output_tokens, usage_source, status_code, finish_reason, amount_pico, list_amount_pico)
SELECT printf('ur_%026d', i), printf('req_%026d', i), 'tn_1', 'key_1', 'chat', 'm', 'r', 1, 'b',
  'USD', 100000, 20000, 300000, 'pv_1', 100000, 20000, 300000, 'pv_1',
  :first + i * :step, :first + i * :step, 'settled', i, 'host-1', 'completed', 1, 'full_answer',
  :first + i * :step, :first + i * :step, :first + i * :step, 700, 500, 300, 'upstream_final',
  200, 'stop', {_AMOUNT}, {_AMOUNT}
FROM n
"""


if __name__ == "__main__":
    one(Path(sys.argv[1]), sys.argv[2])
