"""`bulkhead ledger reconcile`: every figure that isn't the sum of the records."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from typing import Any

import click

from gateway.cli.accounts import as_json
from gateway.cli.calling import admin_server
from gateway.cli.columns import table
from gateway.cli.options import (
    EXIT_CODES,
    Places,
    database,
    locate,
    need_database,
    whereabouts,
)
from gateway.money import engines, rollup
from gateway.money.reconcile import Difference, Looked, differences, looked
from gateway.store.connection import transaction
from gateway.store.reader import read
from gateway.store.sql import Connection
from gateway.stores import database_of

METRICS = "/admin/v1/metrics"
MOST_TOLD = 1000

Recorded = dict[str, tuple[engines.Tokens, engines.Tokens]]


@click.command("reconcile")
@click.option("--repair", is_flag=True, help="Make hourly sums that differ anew. Never a record.")
@whereabouts
@as_json
def reconcile(repair: bool, places: Places, as_json: bool) -> None:
    """Compare records, lines, hourly sums, budgets and the engines' own counters.

    Exit code 1 if any two of them differ.
    """
    place = locate(places)
    need_database(place.state_dir)
    repaired = 0
    if repair:
        with database(place) as db, transaction(db):
            wrong = [key for key, _, _ in rollup.differences(db)]
            repaired = rollup.repair(db, wrong)
    counts, found, recorded = read(database_of(place), _look)
    models, why_not = _engines(places, recorded)
    faults = [(one.model, fault) for one in models for fault in one.faults]
    if as_json:
        document = {
            "looked_at": asdict(counts),
            "differences": [asdict(one) for one in found],
            "engines": [_model(one) for one in models],
            "engines_not_asked": why_not,
            "repaired": repaired,
        }
        click.echo(json.dumps(document))
    else:
        _tell(counts, found, models, why_not)
        if repair:
            click.echo(f"{repaired} hourly sums were made anew.")
    if found or faults:
        raise SystemExit(1)


def _look(db: Connection) -> tuple[Looked, list[Difference], Recorded]:
    found = list(islice(differences(db), MOST_TOLD))
    return looked(db), found, engines.recorded_by_host(db)


def _engines(places: Places, recorded: Recorded) -> tuple[list[engines.ModelCheck], str]:
    """What hosts say that run, or ended lately; or why they weren't asked."""
    try:
        metrics = admin_server(places).read(METRICS)
    except tuple(EXIT_CODES) as fault:
        return [], str(fault)
    return list(engines.check(engines.hosts_of(metrics), recorded)), ""


def _model(one: engines.ModelCheck) -> dict[str, Any]:
    return asdict(one) | {"capture_rate": one.capture}


def _tell(
    counts: Looked, found: list[Difference], models: list[engines.ModelCheck], why_not: str
) -> None:
    for one in found:
        click.echo(f"{one.what}: {one.where}: {one.told}, but {one.found}")
    for model in models:
        for fault in model.faults:
            click.echo(f"engines: {model.model}: {fault}")
    if models:
        click.echo(table([_row(one) for one in models], HEADING) + "\n")
    else:
        click.echo(f"The engines weren't asked: {why_not or 'no host tells of itself'}.")
    click.echo(
        f"{_number(counts.records, 'closed record')}, {counts.open_records} open, "
        f"{_number(counts.rollups, 'hourly sum')}, {_number(counts.windows, 'budget window')}: "
        f"{'nothing differs' if not found else 'see above'}."
    )


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


HEADING = ("MODEL", "HOSTS", "INPUT COUNTED", "RECORDED", "CACHED", "RECORDED", "OUTPUT",
           "RECORDED", "BILLED")  # fmt: skip


def _row(one: engines.ModelCheck) -> tuple[str, ...]:
    return (
        one.model,
        str(one.hosts),
        str(one.counted.input),
        str(one.recorded.input),
        str(one.counted.cached_input),
        str(one.recorded.cached_input),
        str(one.counted.output),
        str(one.recorded.output),
        "" if one.capture is None else f"{one.capture:.1%}",
    )
