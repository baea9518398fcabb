"""`bulkhead tenants` and `bulkhead keys`. A running gateway takes a new key at once, and refuses a
revoked one within a second.
"""

from __future__ import annotations

import datetime
import json

import click

from gateway.cli.completing import live_keys, tenant_names
from gateway.cli.options import Places, database, locate, table, tell_if_new, whereabouts
from gateway.identity import tenants as accounts
from gateway.identity.keys import PEPPER_LABEL
from gateway.root import keyring_of
from gateway.store.connection import DATABASE
from runtime.config.place import Place

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")


def pepper(place: Place) -> bytes:
    """What key digests are keyed with."""
    return keyring_of(place.state_dir, place.root_secret).derive(PEPPER_LABEL)


@click.group()
def tenants() -> None:
    """Tenants: who is billed."""


@tenants.command("create")
@click.argument("name")
@whereabouts
@as_json
def create_tenant(name: str, places: Places, as_json: bool) -> None:
    """Add a tenant. The first one makes the store, if no start has."""
    place = locate(places)
    tell_if_new(place.state_dir / DATABASE)
    with database(place, create=True) as db:
        tenant = accounts.create_tenant(db, name)
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
        rows = [{"id": t.id, "name": t.name, "demo": t.is_demo} for t in found]
        click.echo(json.dumps(rows))
    else:
        lines = [(t.name, t.id, "demo" if t.is_demo else "") for t in found]
        none = "No tenants yet; add one: bulkhead tenants create NAME"
        click.echo(table(lines, ("NAME", "ID", ""), none))


@click.group()
def keys() -> None:
    """API keys: how a tenant's programs prove who they are."""


@keys.command("create")
@click.argument("tenant", shell_complete=tenant_names)
@click.option("--name", default="default", show_default=True, help="What the key is for.")
@whereabouts
@as_json
def create_key(tenant: str, name: str, places: Places, as_json: bool) -> None:
    """Add a key to TENANT. The secret is shown now and never again."""
    place = locate(places)
    with database(place) as db:
        key, secret = accounts.create_key(db, tenant, name, pepper(place))
    if as_json:
        click.echo(json.dumps({"id": key.id, "tenant_id": key.tenant_id, "secret": secret}))
    else:
        click.echo(
            f"Created key {key.id} for {tenant}. Keep this secret; it is shown only once:", err=True
        )
        click.echo(secret)


@keys.command("list")
@click.argument("tenant", shell_complete=tenant_names)
@whereabouts
@as_json
def list_keys(tenant: str, places: Places, as_json: bool) -> None:
    """The keys of TENANT, without their secrets."""
    with database(locate(places)) as db:
        found = accounts.list_keys(db, tenant)
    if as_json:
        rows = [
            {
                "id": k.id,
                "name": k.name,
                "hint": k.hint,
                "created_at": when(k.created_at),
                "revoked_at": when(k.revoked_at),
            }
            for k in found
        ]
        click.echo(json.dumps(rows))
    else:
        lines = [(k.id, k.name, k.hint, when(k.created_at) or "", status(k)) for k in found]
        none = f"No keys yet; add one: bulkhead keys create {tenant}"
        click.echo(table(lines, ("ID", "NAME", "KEY", "CREATED", "STATUS"), none))


@keys.command("revoke")
@click.argument("key_id", shell_complete=live_keys)
@whereabouts
def revoke_key(key_id: str, places: Places) -> None:
    """End a key, at once and for good."""
    with database(locate(places)) as db:
        key = accounts.revoke_key(db, key_id)
    click.echo(f"Revoked {key.id} ({key.hint}).")


def status(key: accounts.Key) -> str:
    """Live, or since when not."""
    return f"revoked {when(key.revoked_at)}" if key.revoked_at else "live"


def when(us: int | None) -> str | None:
    """A time for people and machines: RFC 3339, UTC, in seconds."""
    if us is None:
        return None
    moment = datetime.datetime.fromtimestamp(us // 1_000_000, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
