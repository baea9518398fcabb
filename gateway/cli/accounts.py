"""`bulkhead tenants`. A running gateway refuses a disabled tenant within a second."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import click

from gateway.cli.columns import table
from gateway.cli.completing import tenant_names
from gateway.cli.help import Sentences
from gateway.cli.options import Places, database, locate, tell_if_new, whereabouts
from gateway.identity import tenants as accounts
from gateway.store.connection import transaction
from gateway.stores import database_of

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")


@click.group(cls=Sentences)
def tenants() -> None:
    """Tenants: who is billed."""


Command = Callable[..., Any]


def terms(command: Command) -> Command:
    """The options that say what a tenant has beside its name."""
    for option in (
        click.option("--weight", type=int, help="Its share where tenants wait; 1 is usual."),
        click.option("--timezone", metavar="ZONE", help="When its budgets' days and months begin."),
    ):
        command = option(command)
    return command


@tenants.command("create")
@click.argument("name")
@terms
@whereabouts
@as_json
def create_tenant(
    name: str, timezone: str | None, weight: int | None, places: Places, as_json: bool
) -> None:
    """Add a tenant. The first one makes the store, if no start has."""
    place = locate(places)
    tell_if_new(database_of(place))
    with database(place, create=True) as db, transaction(db):
        tenant = accounts.create_tenant(db, name)
        if timezone is not None or weight is not None:
            tenant = accounts.set_tenant(db, name, timezone=timezone, weight=weight)
    if as_json:
        click.echo(json.dumps({"id": tenant.id, "name": tenant.name}))
    else:
        click.echo(f"Created tenant {tenant.name} ({tenant.id}).")
        click.echo(f"Give it a key: bulkhead keys create {tenant.name}")


@tenants.command("list")
@whereabouts
@as_json
def list_tenants(places: Places, as_json: bool) -> None:
    """All tenants."""
    with database(locate(places)) as db:
        found = accounts.list_tenants(db)
    if as_json:
        click.echo(json.dumps([_document(tenant) for tenant in found]))
    else:
        lines = [(t.name, t.id, t.timezone, str(t.weight), _status(t)) for t in found]
        none = "No tenants yet; add one: bulkhead tenants create NAME"
        click.echo(table(lines, ("NAME", "ID", "TIME ZONE", "WEIGHT", "STATUS"), none))


@tenants.command("set")
@click.argument("name", shell_complete=tenant_names)
@terms
@whereabouts
@as_json
def set_tenant(
    name: str, timezone: str | None, weight: int | None, places: Places, as_json: bool
) -> None:
    """Change what is given, and leave the rest."""
    if timezone is None and weight is None:
        raise click.UsageError("say what to change: --timezone, --weight")
    with database(locate(places)) as db, transaction(db):
        tenant = accounts.set_tenant(db, name, timezone=timezone, weight=weight)
    if as_json:
        click.echo(json.dumps(_document(tenant)))
    else:
        click.echo(f"{tenant.name}: time zone {tenant.timezone}, weight {tenant.weight}.")


@tenants.command("disable")
@click.argument("name", shell_complete=tenant_names)
@whereabouts
def disable_tenant(name: str, places: Places) -> None:
    """Refuse all keys and tokens of NAME. Its data stays, and `enable` takes them again."""
    with database(locate(places)) as db, transaction(db):
        tenant = accounts.disable_tenant(db, name)
    click.echo(f"Disabled {tenant.name} ({tenant.id}).")


@tenants.command("enable")
@click.argument("name", shell_complete=tenant_names)
@whereabouts
def enable_tenant(name: str, places: Places) -> None:
    """Take the keys and tokens of NAME again."""
    with database(locate(places)) as db, transaction(db):
        tenant = accounts.enable_tenant(db, name)
    click.echo(f"Enabled {tenant.name} ({tenant.id}).")


def when(us: int | None) -> str | None:
    """A time for people and machines: RFC 3339, UTC, in seconds."""
    if us is None:
        return None
    moment = datetime.datetime.fromtimestamp(us // 1_000_000, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _document(tenant: accounts.Tenant) -> dict[str, Any]:
    return {
        "id": tenant.id,
        "name": tenant.name,
        "demo": tenant.is_demo,
        "timezone": tenant.timezone,
        "weight": tenant.weight,
        "disabled_at": when(tenant.disabled_at),
    }


def _status(tenant: accounts.Tenant) -> str:
    if tenant.disabled_at is not None:
        return f"disabled {when(tenant.disabled_at)}"
    return "demo" if tenant.is_demo else ""
