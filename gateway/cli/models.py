"""`bulkhead models`: the catalog, of a running gateway or as the config alone says it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, get_args
from urllib.parse import quote

import click
import msgspec

from gateway.catalog.catalog import US, catalog_of
from gateway.catalog.facts import facts_of
from gateway.catalog.filters import filters_of
from gateway.catalog.schema import endpoint_schemas
from gateway.catalog.views import Shown, whole
from gateway.cli.accounts import as_json
from gateway.cli.answers import Body, Catalog, Endpoint, Endpoints, Kind, Model
from gateway.cli.calling import Server
from gateway.cli.columns import table
from gateway.cli.completing import model_ids
from gateway.cli.help import Sentences
from gateway.cli.options import Declined, Places, peek, places
from gateway.cli.whoami import public_server
from gateway.clock import SYSTEM_CLOCK
from gateway.errors import ModelNotFound
from gateway.money.wanted import named_for, wanted_of
from runtime import settings as config
from runtime.config.cards import Task
from runtime.settings import Settings

Record = dict[str, Any]

HEADING = ("MODEL", "TASK", "CONTEXT", "INPUT/1M", "CACHED/1M", "OUTPUT/1M", "CURRENCY", "STATUS")


@click.group(cls=Sentences)
def models() -> None:
    """The models there are, their prices, and what they take.

    Asks the gateway at BULKHEAD_URL with BULKHEAD_API_KEY, if one of them is set. Without them,
    tells what the configuration says, at list prices.
    """


@models.command("list")
@click.option("--search", default="", metavar="TEXT", help="In names and descriptions.")
@click.option("--task", type=click.Choice(get_args(Task)), help="Only models of this task.")
@places
@as_json
def list_models(search: str, task: str | None, as_json: bool, places: Places) -> None:
    """All models, an alias after its model."""
    query = {"q": search} | ({"task": task} if task else {})
    server = gateway_of(places)
    if server:
        answer = server.ask("GET", "/v1/models", Catalog, **query)
        found, documents = answer.told.data, answer.document["data"]
    else:
        documents = offline(places, query)
        found = msgspec.convert(documents, list[Model])
    if as_json:
        click.echo(json.dumps(documents))
    else:
        none = "No model fits." if search or task else "No models."
        click.echo(table([row(model) for model in found], HEADING, none))


@models.command("schema")
@click.argument("model", shell_complete=model_ids)
@places
@as_json
def schema(model: str, as_json: bool, places: Places) -> None:
    """What MODEL's endpoints take and give."""
    server = gateway_of(places)
    if server:
        path = f"/v1/models/{quote(model, safe='/@')}/schema"
        found = server.ask("GET", path, Endpoints).document["endpoints"]
    else:
        settings = peek(places)
        try:
            catalog_of(settings.file.models, {}).deployment(model, SYSTEM_CLOCK.now_us())
        except ModelNotFound:
            known = ", ".join(one.id for one in settings.file.models)
            raise Declined(f"there is no model {model!r}; there are {known}") from None
        found = endpoint_schemas()
    if as_json:
        click.echo(json.dumps(found))
        return
    for path, endpoint in msgspec.convert(found, dict[str, Endpoint]).items():
        click.echo(f"POST {path}\n")
        click.echo(table(fields(endpoint.input.body), ("FIELD", "TAKES", "")) + "\n")
    click.echo("The whole of it, as JSON Schema, with answers and events: --json")


def gateway_of(places: Places) -> Server | None:
    """The gateway that the environment names, in part at least."""
    given = config.caller()
    return public_server(places) if given.url or given.api_key else None


def offline(places: Places, query: dict[str, str]) -> list[Record]:
    """The records that a gateway with this configuration would tell of, at list prices."""
    settings, filters = peek(places), filters_of(query, {})
    return [whole(shown) for shown in shown_by(settings) if filters.fit(shown)]


def shown_by(settings: Settings) -> list[Shown]:
    """All models by all their names."""
    now_us = SYSTEM_CLOCK.now_us()
    catalog = catalog_of(settings.file.models, {}, facts_of(settings))
    wanted = wanted_of(settings.file)
    return [
        Shown(model, name, price, price, settings.file.limits, now_us)
        for model in catalog.served_at(now_us)
        for price in [named_for(wanted[model.id, None], now_us)]
        for name in (model.id, *model.aliases)
    ]


def row(model: Model) -> tuple[str, ...]:
    """A model for people."""
    status = model.lifecycle.status
    if model.shutdown_date:
        status += f", until {model.shutdown_date}"
    return (
        f"{model.id} (= {model.alias_of})" if model.alias_of else model.id,
        model.task,
        str(model.context_length or "-"),
        per_million(model.pricing.prompt),
        per_million(model.pricing.input_cache_read),
        per_million(model.pricing.completion),
        model.pricing_currency,
        status,
    )


def per_million(per_token: Decimal) -> str:
    """A price as the config writes it."""
    return f"{(per_token * US).normalize():f}"


def fields(body: Body) -> list[tuple[str, str, str]]:
    """A body's fields for people, those that no engine honours last."""
    named = sorted(
        body.properties.items(),
        key=lambda field: (field[0] not in body.required, field[1].enum is not None),
    )
    return [(name, told(kind), "required" if name in body.required else "") for name, kind in named]


def told(kind: Kind) -> str:
    """A type in a few words."""
    if kind.enum is not None:
        values = [json.dumps(value) for value in kind.enum if value is not None]
        return f"nothing, or {' or '.join(values)}" if values else "nothing"
    if kind.any_of:
        return " or ".join(told(one) for one in kind.any_of if one.type != "null")
    if kind.ref:
        return kind.ref.rpartition("/")[2]
    if kind.type == "array":
        return f"list of {told(kind.items or Kind())}"
    return kind.type + bounds(kind)


def bounds(kind: Kind) -> str:
    """Of a number that has both."""
    if kind.maximum is None:
        return ""
    if kind.exclusive_minimum is not None:
        return f" over {kind.exclusive_minimum}, to {kind.maximum}"
    return "" if kind.minimum is None else f" {kind.minimum} to {kind.maximum}"
