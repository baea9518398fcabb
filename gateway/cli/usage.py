"""`bulkhead usage`: the ledger as files that bills are made of, and whether they are right."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.cli.completing import tenant_names
from gateway.cli.help import Sentences
from gateway.cli.options import Places, database, peek, whereabouts
from gateway.cli.periods import TAKES, MomentType, PeriodType
from gateway.cli.usage_progress import shown
from gateway.identity import tenants as accounts
from gateway.root import keyring_of
from gateway.store.reader import read
from gateway.stores import database_of
from gateway.usage import manifest as manifests
from gateway.usage.billing_periods import billing_periods
from gateway.usage.calendar import Span
from gateway.usage.export import FORMATS, GRANULARITIES, VERSIONS, Export, Form
from gateway.usage.files import write_whole
from gateway.usage.names import names_of
from gateway.usage.selection import Selection, bound_of, checked_bound
from runtime import durable
from runtime.settings import Settings

EVER = (0, 253_370_764_800_000_000)  # until 9999

FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=Sentences)
def usage() -> None:
    """What tenants used."""


@usage.command("export")
@click.option("--tenant", shell_complete=tenant_names, help="One tenant's. Default: everyone's.")
@click.option(
    "--format",
    "fmt",
    type=click.Choice(FORMATS),
    default="csv",
    show_default=True,
    help="csv, jsonl: a row a record. focus (as CSV), parquet: charges, by FOCUS.",
)
@click.option("--from", "start", type=MomentType(), help=f"From then: {TAKES}.")
@click.option("--to", "end", type=MomentType(), help=f"Before then: {TAKES}.")
@click.option(
    "--period", type=PeriodType(), help="Instead: last-hour, yesterday, last-month, or 2026-11."
)
@click.option("--focus-version", type=click.Choice(VERSIONS), default="1.2", show_default=True)
@click.option("--granularity", type=click.Choice(GRANULARITIES), default="hour", show_default=True)
@click.option(
    "--dataset",
    type=click.Choice(["cost-and-usage", "billing-period"]),
    default="cost-and-usage",
    show_default=True,
    help="billing-period: instead, which months are final, by FOCUS 1.4; as CSV.",
)
@click.option("--bound", type=click.IntRange(min=0), help="Up to this record: a manifest's bound.")
@click.option("--output", "-o", type=FILE, help="Default: stdout.")
@click.option("--manifest", "manifest", type=FILE, help="A signed manifest of the output, too.")
@whereabouts
def export_usage(places: Places, output: Path | None, manifest: Path | None, **given: Any) -> None:
    """Closed records, billed or not, or FOCUS's charges, in a fixed order.

    The same period, bound and options give the same bytes.
    """
    settings, span = peek(places), _span(given)
    if given["dataset"] == "billing-period":
        _put(output, [_periods(settings, span)])
        return
    _check_place(manifest, output)
    key = _signing_key(settings) if manifest else None
    export = _export(settings, span, given)
    size, sha256 = _put(output, shown(export) if output else export)
    if output is None:
        return
    if manifest and key:
        entry = manifests.entry_of(output.name, size, sha256, export)
        contents = manifests.contents_of(export.selection, export.form, [entry])
        durable.replace(manifest, manifests.sign(contents, key))
    click.echo(f"Wrote {output}: {export.totals.rows} rows.", err=True)


@usage.command("verify")
@click.argument("path", metavar="MANIFEST", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--public-key", help="Trust this one, in base64. Default: this installation's.")
@whereabouts
def verify_manifest(places: Places, path: Path, public_key: str | None) -> None:
    """Whether a manifest was signed here, and its files are the ones that were."""
    contents = manifests.verify(path, public_key or _public_key(peek(places)))
    for entry in contents.files:
        sums = ", ".join(
            f"{column} {value} {currency}"
            for currency, costs in entry.sums.items()
            for column, value in costs.items()
        )
        click.echo(f"{entry.name}: {entry.rows} rows{', ' if sums else ''}{sums}")


@usage.command("public-key")
@whereabouts
def show_public_key(places: Places) -> None:
    """The key that manifests of this installation are verified by, in base64."""
    click.echo(_public_key(peek(places)))


def _export(settings: Settings, span: Span, given: dict[str, Any]) -> Export:
    with database(settings) as db:
        tenant_id = accounts.tenant_id_of(db, given["tenant"]) if given["tenant"] else None
    path, (start_us, end_us), bound = database_of(settings), span, given["bound"]
    if bound is None:
        bound = read(path, partial(bound_of, start_us=start_us, end_us=end_us))
    else:
        read(path, partial(checked_bound, bound=bound))
    form = Form(given["fmt"], given["focus_version"], given["granularity"])
    selection = Selection(start_us, end_us, bound, tenant_id)
    return Export(path, selection, form, names_of(settings.file))


def _periods(settings: Settings, span: Span) -> bytes:
    with database(settings):
        issuer = names_of(settings.file).issuer
        return billing_periods(database_of(settings), *span, issuer)


def _check_place(manifest: Path | None, output: Path | None) -> None:
    """A manifest names a file beside it."""
    if manifest is None:
        return
    if output is None or (output.exists() and not output.is_file()):
        raise click.UsageError("--manifest needs --output, and that a file")
    if output.parent.resolve() != manifest.parent.resolve():
        raise click.UsageError("--manifest and --output: name the same folder")


def _span(given: dict[str, Any]) -> Span:
    start, end, period = given["start"], given["end"], given["period"]
    if period and (start is not None or end is not None):
        raise click.UsageError("--period stands in place of --from and --to")
    first, last = period or (EVER[0] if start is None else start, EVER[1] if end is None else end)
    if first >= last:
        raise click.UsageError("--from must be before --to")
    return first, last


def _put(output: Path | None, chunks: Iterable[bytes]) -> tuple[int, str]:
    """Write to a file, which is there whole or not at all, or to stdout or a pipe."""
    if output is not None and (output.is_file() or not output.exists()):
        return write_whole(output, chunks)
    with nullcontext(sys.stdout.buffer) if output is None else output.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
    return 0, ""


def _signing_key(settings: Settings) -> Ed25519PrivateKey:
    return manifests.signing_key(keyring_of(settings))


def _public_key(settings: Settings) -> str:
    return manifests.public_key(_signing_key(settings))
