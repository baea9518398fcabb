"""`bulkhead prices`: what models have cost, cost, and are going to."""

from __future__ import annotations

import json

import click

from gateway.cli.accounts import as_json, when
from gateway.cli.columns import table
from gateway.cli.completing import model_ids, tenant_names
from gateway.cli.help import Sentences
from gateway.cli.options import Declined, Places, database, locate, whereabouts
from gateway.clock import SYSTEM_CLOCK
from gateway.identity import tenants as accounts
from gateway.money.price_store import Timelines, history, timelines_of
from gateway.money.versions import PriceVersion, told
from gateway.prices import format_price


@click.group(cls=Sentences)
def prices() -> None:
    """What tokens cost: versions with dates."""


@prices.command("list")
@whereabouts
@as_json
def list_prices(places: Places, as_json: bool) -> None:
    """The price in force of each model, and of each tenant that has had one of its own."""
    now_us = SYSTEM_CLOCK.now_us()
    with database(locate(places)) as db:
        timelines = timelines_of(db)
        names = accounts.tenant_names(db)
    found = in_force(timelines, now_us)
    tell(found, names, as_json=as_json)


@prices.command("show")
@click.argument("model", shell_complete=model_ids)
@click.option("--tenant", shell_complete=tenant_names, help="Its own prices, too.")
@whereabouts
@as_json
def show_prices(model: str, tenant: str | None, places: Places, as_json: bool) -> None:
    """All versions of MODEL's price, the one that begins last first."""
    with database(locate(places)) as db:
        tenant_id = accounts.id_or_all(db, tenant) or None
        found = history(db, model, tenant_id)
    if not found:
        raise Declined(f"no price of {model!r} was ever in force; see `bulkhead prices list`")
    tell(found, {tenant_id or "": tenant or ""}, as_json=as_json)


def in_force(timelines: Timelines, now_us: int) -> list[PriceVersion]:
    """By model, that for everybody first."""
    found = (timeline.at(now_us) for timeline in timelines.values())
    versions = [version for version in found if version is not None]
    return sorted(versions, key=lambda one: (one.model_id, one.tenant_id or ""))


def tell(versions: list[PriceVersion], names: dict[str, str], *, as_json: bool) -> None:
    """A row a version; `names` are tenants' by id."""
    if as_json:
        rows = [told(one) | {"tenant": names.get(one.tenant_id or "")} for one in versions]
        click.echo(json.dumps(rows))
        return
    lines = [
        (
            one.model_id,
            names.get(one.tenant_id, one.tenant_id) if one.tenant_id else "everybody",
            format_price(one.prices.input),
            format_price(one.prices.cached_input),
            format_price(one.prices.output),
            one.prices.currency,
            when(one.effective_from) or "",
            one.reason,
            one.id,
        )
        for one in versions
    ]
    heading = ("MODEL", "FOR", "INPUT", "CACHED", "OUTPUT", "", "FROM", "WHY", "VERSION")
    click.echo(table(lines, heading, "No prices yet: a gateway's start makes them."))
