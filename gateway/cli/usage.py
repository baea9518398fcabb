"""`bulkhead usage export`: the ledger's rows, as a file or on stdout."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Literal

import click

from gateway.cli.completing import tenant_names
from gateway.cli.options import Places, database, locate, whereabouts
from gateway.identity import tenants as accounts
from gateway.store.connection import DATABASE
from gateway.usage.records import export

US = 1_000_000
TAKES = "a UTC day such as 2026-11-01, or a time such as 2026-11-01T12:00:00Z"


class Moment(click.ParamType[int]):
    """A UTC day or an RFC 3339 time, as microseconds."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """See click."""
        if isinstance(value, int):
            return value
        try:
            moment = datetime.datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not {TAKES}", param, ctx)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return int(moment.timestamp()) * US


@click.group()
def usage() -> None:
    """What tenants used."""


@usage.command("export")
@click.option(
    "--tenant", shell_complete=tenant_names, help="One tenant's rows. Default: everyone's."
)
@click.option(
    "--format", "fmt", type=click.Choice(["csv", "jsonl"]), default="csv", show_default=True
)
@click.option("--from", "start", type=Moment(), default="1970-01-01", help=f"From then: {TAKES}.")
@click.option("--to", "end", type=Moment(), default="9999-12-31", help=f"Before then: {TAKES}.")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Default: stdout."
)
@whereabouts
def export_usage(
    tenant: str | None,
    fmt: Literal["csv", "jsonl"],
    start: int,
    end: int,
    output: Path | None,
    places: Places,
) -> None:
    """One row for each closed record, billed or not, in a fixed order."""
    place = locate(places)
    if start >= end:
        raise click.UsageError("--from must be before --to")
    with database(place) as db:
        tenant_id = accounts.tenant_id_of(db, tenant) if tenant else None
    rows = export(place.state_dir / DATABASE, tenant_id, start, end, fmt)
    if output is None:
        for chunk in rows:
            sys.stdout.buffer.write(chunk)
        return
    with output.open("wb") as file:
        file.writelines(rows)
    click.echo(f"Wrote {output}.", err=True)
