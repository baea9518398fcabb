"""`bulkhead keys`. A running gateway takes a new key at once, and refuses a revoked one within a
second.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from gateway.cli.accounts import as_json, when
from gateway.cli.columns import Row, of_all, table
from gateway.cli.completing import live_keys, model_ids, project_names, tenant_names
from gateway.cli.help import Sentences
from gateway.cli.moments import Moment, Span
from gateway.cli.options import Places, database, locate, peek, whereabouts
from gateway.clock import SYSTEM_CLOCK
from gateway.identity import api_keys as rows, scopes, tenants as accounts
from gateway.identity.keys import PEPPER_LABEL
from gateway.root import keyring_of
from gateway.store.connection import transaction
from runtime.config.models import names_of
from runtime.config.place import Place
from runtime.config.report import did_you_mean
from runtime.settings import ConfigError

HEADING: Row = (
    *("ID", "NAME", "KEY", "PROJECT", "SCOPES", "MODELS", "FROM", "CREATED", "LAST USED"),
    *("EXPIRES", "STATUS"),
)


def pepper(place: Place) -> bytes:
    """What key digests are keyed with. It has the store looked at: not inside a transaction."""
    return keyring_of(place).derive(PEPPER_LABEL)


@click.group(cls=Sentences)
def keys() -> None:
    """API keys: how a tenant's programs prove who they are."""


@keys.command("create")
@click.argument("tenant", shell_complete=tenant_names)
@click.option("--name", default="default", show_default=True, help="What the key is for.")
@click.option(
    "--scope",
    "scope",
    multiple=True,
    type=click.Choice(sorted(scopes.ALL)),
    default=sorted(scopes.DEFAULT),
    show_default=True,
    help="What it may do. May be given several times.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    shell_complete=model_ids,
    help="A model it may use, by any of its names. May be given several times. Default: all.",
)
@click.option(
    "--network",
    "networks",
    multiple=True,
    metavar="CIDR",
    help="From where it may be used. May be given several times. Default: from anywhere.",
)
@click.option(
    "--expires",
    type=Moment(),
    metavar="WHEN",
    help="In a span of time (90d), or at a moment (2026-12-31). Default: never.",
)
@click.option("--project", shell_complete=project_names, help="The project it belongs to.")
@whereabouts
@as_json
def create_key(  # noqa: PLR0913 - one argument an option
    tenant: str,
    name: str,
    scope: tuple[str, ...],
    models: tuple[str, ...],
    networks: tuple[str, ...],
    expires: int | None,
    project: str | None,
    places: Places,
    as_json: bool,
) -> None:
    """Add a key to TENANT. The secret is shown now and never again."""
    place = locate(places)
    terms = rows.KeyTerms(scope, models, networks, expires, project)
    _tell_of_unknown(models, places)
    with database(place) as db:
        ours = pepper(place)
        with transaction(db):
            key, secret = rows.create_key(db, tenant, name, ours, terms)
    if as_json:
        click.echo(json.dumps({"id": key.id, "tenant_id": key.tenant_id, "secret": secret}))
    else:
        click.echo(
            f"Created key {key.id} for {tenant}. Keep this secret; it is shown only once:", err=True
        )
        click.echo(secret)


@keys.command("list")
@click.argument("tenant", required=False, shell_complete=tenant_names)
@whereabouts
@as_json
def list_keys(tenant: str | None, places: Places, as_json: bool) -> None:
    """The keys of TENANT, or of all, without their secrets."""
    with database(locate(places)) as db:
        found = rows.list_keys(db, tenant)
        names = accounts.tenant_names(db)
    now_us = SYSTEM_CLOCK.now_us()
    if as_json:
        click.echo(json.dumps([{"tenant": names[key.tenant_id]} | _document(key) for key in found]))
        return
    lines, heading = [_line(key, now_us) for key in found], HEADING
    if not tenant:
        lines, heading = of_all(lines, heading, [names[key.tenant_id] for key in found])
    none = f"No keys yet; add one: bulkhead keys create {tenant or 'TENANT'}"
    click.echo(table(lines, heading, none))


@keys.command("rotate")
@click.argument("key_id", shell_complete=live_keys)
@click.option(
    "--grace",
    type=Span(),
    default="24h",
    show_default=True,
    metavar="SPAN",
    help="How long the secret from before still works: 30m, 24h, 7d; 0: not at all.",
)
@whereabouts
@as_json
def rotate_key(key_id: str, grace: int, places: Places, as_json: bool) -> None:
    """Give a key a new secret, which is shown now and never again. All else of it stays."""
    place = locate(places)
    with database(place) as db:
        ours = pepper(place)
        with transaction(db):
            key, secret = rows.rotate_key(db, key_id, ours, grace)
    if as_json:
        until = when(key.grace_until)
        click.echo(json.dumps({"id": key.id, "secret": secret, "grace_until": until}))
        return
    before = f"works until {when(key.grace_until)}" if key.grace_until else "has ended"
    click.echo(
        f"Rotated key {key.id}; the secret from before {before}. "
        "Keep this one; it is shown only once:",
        err=True,
    )
    click.echo(secret)


@keys.command("revoke")
@click.argument("key_id", shell_complete=live_keys)
@whereabouts
def revoke_key(key_id: str, places: Places) -> None:
    """End a key, at once and for good, with all its secrets and tokens."""
    with database(locate(places)) as db, transaction(db):
        key = rows.revoke_key(db, key_id)
    click.echo(f"Revoked {key.id} ({key.hint}).")


def _tell_of_unknown(models: Sequence[str], places: Places) -> None:
    """Say which models aren't configured now: they may be later."""
    try:
        known = {name for model in peek(places).file.models for _, name in names_of(model)}
    except ConfigError:
        return
    for model in models:
        if model not in known:
            hint = did_you_mean(model, known, '"')
            click.echo(f"Note: the configuration has no model {model!r} now{hint}.", err=True)


def status(key: rows.Key, now_us: int) -> str:
    """Live, or since when not."""
    if key.revoked_at is not None:
        return f"revoked {when(key.revoked_at)}"
    if key.expires_at is not None and key.expires_at <= now_us:
        return "expired"
    if key.grace_until is not None and key.grace_until > now_us:
        return f"live, the secret from before until {when(key.grace_until)}"
    return "live"


def _line(key: rows.Key, now_us: int) -> Row:
    used = when(key.last_used_at) or "-"
    return (
        key.id,
        key.name,
        key.hint,
        key.project or "-",
        " ".join(sorted(key.scopes)),
        "all" if key.models is None else " ".join(key.models),
        "anywhere" if key.networks is None else " ".join(key.networks),
        when(key.created_at) or "",
        f"{used} {key.last_used_from}" if key.last_used_from else used,
        when(key.expires_at) or "-",
        status(key, now_us),
    )


def _document(key: rows.Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "hint": key.hint,
        "project": key.project,
        "scopes": sorted(key.scopes),
        "models": key.models,
        "networks": key.networks,
        "created_at": when(key.created_at),
        "rotated_at": when(key.rotated_at),
        "grace_until": when(key.grace_until),
        "expires_at": when(key.expires_at),
        "revoked_at": when(key.revoked_at),
        "last_used_at": when(key.last_used_at),
        "last_used_from": key.last_used_from,
    }
