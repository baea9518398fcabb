"""`bulkhead fault`: plants faults in a live engine, under `bulkhead dev` alone."""

from __future__ import annotations

import json
from urllib.parse import quote

import click

from gateway.cli.accounts import as_json
from gateway.cli.answers import Faults, Planted, PoolModels
from gateway.cli.calling import Server, admin_server
from gateway.cli.completing import host_model_ids
from gateway.cli.options import Declined, Places, places, table

HEADING = ("FAULT", "NUMBER", "NOTICED BY", "WHAT")
of_model = click.option(
    "--model", shell_complete=host_model_ids, help="Which; needed if several have hosts."
)


@click.group()
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
    """Plant a fault of this KIND in the busiest host of a model, between two of its steps."""
    server = admin_server(places)
    path = f"/admin/v1/models/{quote(chosen(server, model))}/faults/{quote(kind, safe='')}"
    done = server.ask("POST", path, Planted)
    if as_json:
        click.echo(json.dumps(done.document))
    else:
        click.echo(f"{done.told.host}: {done.told.done}.")


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
