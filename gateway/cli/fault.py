"""`bulkhead fault`: plants faults in a live engine, under `bulkhead dev` alone."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import click

from gateway.cli.accounts import as_json
from gateway.cli.answers import Faults, Planted, PoolModels
from gateway.cli.calling import Server, admin_server
from gateway.cli.columns import table
from gateway.cli.completing import host_model_ids
from gateway.cli.help import Sentences
from gateway.cli.noticing import Series, not_noticed, noticed, series_of
from gateway.cli.options import Declined, Places, places

METRICS = "/admin/v1/metrics"
WATCH_S = 5.0
LOOK_EVERY_S = 0.5
HEADING = ("FAULT", "NUMBER", "NOTICED BY", "WHAT")
of_model = click.option(
    "--model", shell_complete=host_model_ids, help="Which; needed if several have hosts."
)


@click.group(cls=Sentences)
def fault() -> None:
    """Faults to plant in a live engine, to see them noticed. Of `bulkhead dev` alone."""


@fault.command("list")
@of_model
@places
@as_json
def list_faults(model: str | None, as_json: bool, places: Places) -> None:
    """The kinds there are, and the layer that must notice each."""
    server = admin_server(places)
    path = f"/admin/v1/models/{quote(chosen(server, model))}/faults"
    found = server.ask("GET", path, Faults)
    if as_json:
        click.echo(json.dumps(found.document["data"]))
        return
    rows = [(one.kind, one.number, one.layer, one.what) for one in found.told.data]
    click.echo(table(rows, HEADING, "None can be planted in this model's engine."))


@fault.command("inject")
@click.argument("kind")
@of_model
@places
@as_json
def inject(kind: str, model: str | None, as_json: bool, places: Places) -> None:
    """Plant a fault of this KIND in the busiest host of a model, between two of its steps.

    Says who noticed it, if somebody does within five seconds.
    """
    server = admin_server(places)
    path = f"/admin/v1/models/{quote(chosen(server, model))}/faults"
    kinds = server.ask("GET", path, Faults).told.data
    layer = next((one.layer for one in kinds if one.kind == kind), "")
    before = server.read(METRICS)
    done = server.ask("POST", f"{path}/{quote(kind, safe='')}", Planted)
    if not as_json:
        click.echo(f"{done.told.host}: {done.told.done}.")
    outcome = watched(server, series_of(done.told.host, before), done.told.host, layer)
    if as_json:
        click.echo(json.dumps(done.document | {"outcome": outcome}))
    else:
        click.echo(f"{outcome[:1].upper()}{outcome[1:]}.")


def watched(server: Server, before: Series, host: str, layer: str) -> str:
    """Who notices within WATCH_S seconds, and what becomes of it."""
    began, told = time.monotonic(), ""
    while True:
        after = series_of(host, server.read(METRICS))
        found = noticed(before, after)
        if found and found == told:  # twice the same: what follows has been counted, too
            return found
        waited_s = time.monotonic() - began
        if waited_s >= WATCH_S:
            return found or not_noticed(before, after, layer, round(waited_s))
        told = found
        time.sleep(LOOK_EVERY_S)


def chosen(server: Server, model: str | None) -> str:
    """The model that is meant. Raises Declined if it has to be said."""
    if model is not None:
        return model
    every = server.ask("GET", "/admin/v1/models", PoolModels).told.data
    ours = [one for one in every if one.state != "attached"]
    found = [one.id for one in ours if one.hosts] or [one.id for one in ours]
    if len(found) == 1:
        return found[0]
    raise Declined(
        f"name one with --model: {', '.join(found)}" if found else "no model has hosts of ours"
    )
