"""`bulkhead ledger`: corrections, months, and whether the books are right and what they were."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import click
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.cli.accounts import as_json, when
from gateway.cli.columns import table
from gateway.cli.help import Sentences
from gateway.cli.options import Places, database, locate, need_database, whereabouts
from gateway.cli.periods import MonthType
from gateway.cli.reconciling import reconcile
from gateway.clock import SYSTEM_CLOCK
from gateway.money import periods as months
from gateway.money.checkpoints import LABEL, key_of, read_document
from gateway.money.corrections import VOID, Usage, correct
from gateway.money.signing import checkpoint
from gateway.money.verifying import Finding, Verified, verify
from gateway.root import keyring_of
from gateway.store.connection import transaction
from gateway.store.reader import read
from gateway.stores import database_of
from gateway.usage.calendar import HOUR_US, month_name
from runtime.config.place import Place

MOST_TOLD = 1000  # findings; more of them say no more
TOKENS = click.IntRange(min=0)


@click.group(cls=Sentences)
def ledger() -> None:
    """The books: corrections, months, and whether all adds up."""


ledger.add_command(reconcile)


@ledger.command("correct")
@click.argument("record")
@click.option("--reason", required=True, help="Why; it stays with the correction.")
@click.option("--void", is_flag=True, help="It is billed for nothing.")
@click.option("--input", "input_tokens", type=TOKENS, help="Input tokens that it should have.")
@click.option("--cached-input", type=TOKENS, help="Of those, the ones that were cached.")
@click.option("--output", "output_tokens", type=TOKENS, help="Output tokens that it should have.")
@whereabouts
@as_json
def correct_record(  # noqa: PLR0913 - an option each
    record: str,
    reason: str,
    void: bool,
    input_tokens: int | None,
    cached_input: int | None,
    output_tokens: int | None,
    places: Places,
    as_json: bool,
) -> None:
    """Make RECORD (ur_…) what it should have been, by a record of its own.

    The record itself stays as it is. Counts that aren't given stay, too.
    """
    given = Usage(input_tokens, cached_input, output_tokens)
    if void == (given != Usage()):
        raise click.UsageError(
            "say what it should be: --void, or --input, --cached-input, --output"
        )
    with database(locate(places)) as db, transaction(db):
        done = correct(db, record, VOID if void else given, reason, SYSTEM_CLOCK.now_us())
    if as_json:
        click.echo(json.dumps(asdict(done) | {"amount": done.amount}))
        return
    late = ", in the month that is open now, since its own is closed" if done.is_late else ""
    click.echo(f"Corrected {record} by {done.amount} {done.currency} ({done.id}){late}.")


@ledger.command("list")
@whereabouts
@as_json
def list_months(places: Places, as_json: bool) -> None:
    """All months since the first charge, and which of them are closed."""
    with database(locate(places)) as db:
        found = months.periods(db, SYSTEM_CLOCK.now_us())
    if as_json:
        click.echo(json.dumps([_told(one) for one in found]))
        return
    lines = [
        (
            month_name(one.starts_at),
            "closed" if one.is_closed else "open",
            when(one.closed_at) or "",
            str(one.seq_bound or ""),
        )
        for one in found
    ]
    click.echo(table(lines, ("MONTH", "STATUS", "CLOSED", "UP TO RECORD")))


@ledger.command("close")
@click.argument("month", type=MonthType())
@click.option(
    "--grace-hours",
    type=click.IntRange(min=0),
    default=months.GRACE_US // HOUR_US,
    show_default=True,
    help="How long after its end it may be closed.",
)
@whereabouts
@as_json
def close_month(month: int, grace_hours: int, places: Places, as_json: bool) -> None:
    """Close MONTH (such as 2026-10) for good: nothing is charged to it any more."""
    with database(locate(places)) as db, transaction(db):
        done = months.close(db, month, SYSTEM_CLOCK.now_us(), grace_hours * HOUR_US)
    if as_json:
        click.echo(json.dumps(_told(done)))
        return
    click.echo(f"{month_name(month)} is closed, with all records up to number {done.seq_bound}.")


@ledger.command("verify")
@click.option(
    "--checkpoint",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="One that was kept elsewhere; may be given several times.",
)
@whereabouts
@as_json
def verify_ledger(files: tuple[Path, ...], places: Places, as_json: bool) -> None:
    """Whether closed records are still what they were when they were sealed."""
    place = locate(places)
    need_database(place.state_dir)
    kept = [read_document(file.read_bytes()) for file in files]
    key, counts = _key(place), Verified()
    found: list[Finding] = read(
        database_of(place),
        lambda db: list(islice(verify(db, key.public_key(), kept, counts), MOST_TOLD)),
    )
    if as_json:
        click.echo(json.dumps(asdict(counts) | {"findings": [asdict(one) for one in found]}))
    else:
        for one in found:
            where = " ".join(part for part in (one.tenant_id, one.record_id) if part)
            click.echo(f"{one.kind}: {where + ': ' if where else ''}{one.says}")
        click.echo(
            f"Sealed records: {counts.records}, of tenants: {counts.chains}; "
            f"checkpoints: {counts.checkpoints}; {'none differs' if not found else 'see above'}."
        )
    if found:
        raise SystemExit(1)


@ledger.command("checkpoint")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Default: stdout."
)
@whereabouts
def make_checkpoint(output: Path | None, places: Places) -> None:
    """Sign where all chains stand now, for keeping elsewhere."""
    place = locate(places)
    key = _key(place)
    with database(place) as db, transaction(db):
        signed = checkpoint(db, key, SYSTEM_CLOCK.now_us())
    if output is None:
        click.echo(signed.document())
    else:
        output.write_bytes(signed.document() + b"\n")


@ledger.command("key")
@whereabouts
def show_key(places: Places) -> None:
    """The public key that checkpoints are signed with (Ed25519, hexadecimal)."""
    click.echo(_key(locate(places)).public_key().public_bytes_raw().hex())


def _key(place: Place) -> Ed25519PrivateKey:
    return key_of(keyring_of(place).derive(LABEL))


def _told(period: months.Period) -> dict[str, object]:
    return {
        "month": month_name(period.starts_at),
        "status": "closed" if period.is_closed else "open",
        "closed_at": when(period.closed_at),
        "seq_bound": period.seq_bound,
    }
