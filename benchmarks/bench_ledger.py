"""The ledger: settlements a second and the wait before `[DONE]`, and how long a big export takes.

Requests are opened and settled, so many in flight, as the gateway does it: group commit. The twin
commits each by itself. Both on SQLite, on this disk and in memory, and on PostgreSQL where its
programs are; a probe of fdatasync says what the disk can do. The export is of records with three
lines each, in a process of its own, whose peak memory is told.

    python -m benchmarks.bench_ledger [--records 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import ledger_export
from benchmarks.ledger_twin import RowByRow
from benchmarks.process import Foreign
from benchmarks.report import at_least, at_most, emit, foreign_note, median, percentile, table
from gateway.billing import Outcome, UsageSource
from gateway.clock import SYSTEM_CLOCK
from gateway.ids import new_id
from gateway.ledger import Ledger
from gateway.prices import Terms, TokenPrices, Usage
from gateway.record import Opening, Settlement
from gateway.store.address import Database, Postgres
from gateway.store.connection import open_for_writing, transaction
from gateway.store.migrate import migrate
from gateway.store.sql import Connection
from gateway.store.writer import Writer

IN_FLIGHT = (1, 64, 256)
ARMS = ("group commit", "row by row")
MEMORY = Path("/dev/shm")
GAIN, WAIT_MS, EXPORT_MIB = 5.0, 50.0, 150.0
END = Settlement(
    outcome=Outcome.COMPLETED,
    usage=Usage(700, 500, 300),
    usage_source=UsageSource.UPSTREAM_FINAL,
    status_code=200,
    finish_reason="stop",
    host_id="host-1",
    first_token_at=1,
)
TERMS = Terms.of(TokenPrices("USD", 100_000, 20_000, 300_000))


@dataclass
class Taken:
    """One arm at one load."""

    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)  # of each settlement, in seconds

    @property
    def rate(self) -> float:
        return len(self.waits) / self.seconds

    def wait_ms(self, percent: float) -> float:
        return percentile(self.waits, percent) * 1000


async def load(ledger: Ledger, in_flight: int, seconds: float) -> Taken:
    """Open and settle, so many at a time."""
    taken, deadline = Taken(), time.perf_counter() + seconds

    async def work() -> None:
        while time.perf_counter() < deadline:
            record = await ledger.open(opening())
            began = time.perf_counter()
            await ledger.settle(record, END)
            taken.waits.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    taken.seconds = time.perf_counter() - began
    return taken


def opening() -> Opening:
    return Opening(
        request_id=new_id("req"),
        tenant_id="tn_1",
        api_key_id="key_1",
        operation="chat",
        model_id="m",
        model_revision="r",
        terms=TERMS,
        streamed=True,
    )


def measure(store: Database, arm: str, in_flight: int, seconds: float) -> Taken:
    writer = Writer(store) if arm == ARMS[0] else RowByRow(store)
    writer.start()
    try:
        ledger = Ledger(writer, SYSTEM_CLOCK, "boot_1")
        return asyncio.run(load(ledger, in_flight, seconds))
    finally:
        writer.close()


def make(store: Path) -> Path:
    migrate(store)
    with closing(open_for_writing(store)) as db, transaction(db):
        fill(db)
    return store


def fill(db: Connection) -> None:
    """A tenant and its key."""
    db.execute("INSERT INTO tenant (id, name, is_demo, created_at) VALUES ('tn_1', 'acme', 0, 0)")
    db.execute(
        "INSERT INTO api_key (id, tenant_id, digest, hint, name, created_at)"
        " VALUES ('key_1', 'tn_1', :digest, 'h', 'n', 0)",
        {"digest": b"1"},
    )


@contextmanager
def stores(folder: Path) -> Iterator[dict[str, Database]]:
    """Those that there are on this machine."""
    from tests import postgres  # which knows how a server is made and started

    found: dict[str, Database] = {"SQLite": make(folder / "disk.db")}
    with ExitStack() as stack:
        if MEMORY.is_dir():
            memory = stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY))
            found["SQLite in memory"] = make(Path(memory) / "memory.db")
        if postgres.binaries():
            server = stack.enter_context(postgres.server("-c", "fsync=on"))
            address = Postgres(server.new_database(migrated=True))
            stack.callback(address.close)
            with closing(open_for_writing(address)) as db, transaction(db):
                fill(db)
            found["PostgreSQL"] = address
        yield found


def fdatasync_ms(folder: Path, times: int = 200) -> list[float]:
    """What a write of one page takes until it is on the disk."""
    taken = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(times):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1000)
    return taken


Results = dict[tuple[str, str, int], Taken]


def settle_all(found: dict[str, Database], seconds: float) -> Results:
    return {
        (name, arm, in_flight): measure(store, arm, in_flight, seconds)
        for name, store in found.items()
        for in_flight in IN_FLIGHT
        for arm in ARMS
    }


def show(results: Results) -> None:
    head = ("store", "in flight", "", "settled a second", "wait p50, ms", "p99, ms")
    rows = [
        (name, in_flight, arm, taken.rate, taken.wait_ms(50), taken.wait_ms(99))
        for (name, arm, in_flight), taken in results.items()
    ]
    print(table(head, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--records", type=int, default=1_000_000, help="that are exported")
    args = parser.parse_args()
    foreign = Foreign()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        disk = fdatasync_ms(folder)
        with stores(folder) as found:
            results = settle_all(found, args.seconds)
        show(results)
        print(f"\nfdatasync of a page: {median(disk):.2f} ms, p99 {percentile(disk, 99):.2f} ms")
        exports = ledger_export.measure(make(folder / "export.db"), args.records)
    print(f"\nExport of {args.records:,} records\n")
    print(table(("form", "seconds", "MiB written", "peak memory, MiB"), [e.row() for e in exports]))
    print(foreign_note(foreign.share()))
    emit("ledger", targets(results, exports), raw(results, disk, exports))


def targets(results: Results, exports: list[ledger_export.Exported]) -> dict[str, dict[str, Any]]:
    many = IN_FLIGHT[1]
    ours, plain = (results["SQLite", arm, many] for arm in ARMS)
    return {
        f"settled_against_row_by_row_{many}": at_least(ours.rate / plain.rate, GAIN),
        f"wait_p99_ms_{many}": at_most(ours.wait_ms(99), WAIT_MS),
        "export_peak_mib": at_most(max(one.peak_mib for one in exports), EXPORT_MIB),
    }


def raw(
    results: Results, disk: list[float], exports: list[ledger_export.Exported]
) -> dict[str, Any]:
    settled = {
        f"{name}/{arm}/{in_flight}": {
            "rate": taken.rate,
            "p50_ms": taken.wait_ms(50),
            "p99_ms": taken.wait_ms(99),
        }
        for (name, arm, in_flight), taken in results.items()
    }
    told = {one.form: [one.seconds, one.peak_mib] for one in exports}
    return {
        "settled": settled,
        "fdatasync_ms": [median(disk), percentile(disk, 99)],
        "exports": told,
    }


if __name__ == "__main__":
    main()
