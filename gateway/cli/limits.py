"""`bulkhead limits`: how much tenants, their projects and their keys may take. A running gateway
holds requests to it within a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from gateway.cli.accounts import as_json
from gateway.cli.budgets import known_model
from gateway.cli.columns import table
from gateway.cli.completing import live_keys, model_ids, tenant_names
from gateway.cli.help import Sentences
from gateway.cli.named import Names
from gateway.cli.options import Places, database, locate, peek, whereabouts
from gateway.clock import SYSTEM_CLOCK
from gateway.limits import setting
from gateway.limits.rules import Rules, rules_of
from gateway.store.connection import transaction
from gateway.store.limit_rules import MOST, Rule, Scope, clear_rule, set_rule

HEADING = ("OF", "MODEL", "REQUESTS/MIN", "TOKENS/MIN", "AT ONCE", "FROM")
NUMBER = click.IntRange(1, MOST)

Row = tuple[str, str, Rule, str]
Command = Callable[..., Any]


@click.group(cls=Sentences)
def limits() -> None:
    """Limits: how much may be taken a minute, and at once."""


def scoped(command: Command) -> Command:
    """The options that say whose limit it is."""
    for option in (
        click.option("--model", shell_complete=model_ids, help="At this model alone."),
        click.option("--key", "key_id", shell_complete=live_keys, help="Of this key; its id."),
        click.option("--project", help="Of this project; its name or id."),
        click.argument("tenant", shell_complete=tenant_names),
    ):
        command = option(command)
    return command


@limits.command("set")
@scoped
@click.option("--rpm", type=NUMBER, help="Requests a minute.")
@click.option("--tpm", type=NUMBER, help="Tokens a minute, input and output.")
@click.option("--concurrent", type=NUMBER, help="Requests at once.")
@whereabouts
@as_json
def set_limits(  # noqa: PLR0913 - one argument an option
    tenant: str,
    project: str | None,
    key_id: str | None,
    model: str | None,
    rpm: int | None,
    tpm: int | None,
    concurrent: int | None,
    places: Places,
    as_json: bool,
) -> None:
    """Set numbers of TENANT's, in place of the configuration's. Those not given stay."""
    rule = Rule(rpm, tpm, concurrent)
    if rule == Rule():
        raise click.UsageError("give at least one of --rpm, --tpm and --concurrent")
    with database(locate(places)) as db, transaction(db):
        scope = _scope(db, places, tenant, project, key_id, model)
        rule = set_rule(db, scope, rule, SYSTEM_CLOCK.now_us())
        whose = Names(db).told(scope.kind, scope.id)
    if as_json:
        click.echo(json.dumps(asdict(scope) | asdict(rule)))
    else:
        click.echo(table([_line((whose, scope.model, rule, "set"))], HEADING))


@limits.command("show")
@click.argument("tenant", required=False, shell_complete=tenant_names)
@whereabouts
@as_json
def show_limits(tenant: str | None, places: Places, as_json: bool) -> None:
    """What holds for TENANT, its projects and keys, or for all: set here, or configured."""
    with database(locate(places)) as db:
        found = setting.listed(db, tenant)
        names = Names(db)
    if as_json:
        click.echo(json.dumps([asdict(scope) | asdict(rule) for scope, rule in found]))
        return
    rows = [(names.told(scope.kind, scope.id), scope.model, rule, "set") for scope, rule in found]
    rows += _configured(rules_of(peek(places).file), tenant)
    none = f"No limits; set one: bulkhead limits set {tenant or 'TENANT'} --rpm 600"
    click.echo(table([_line(row) for row in rows], HEADING, none))


@limits.command("clear")
@scoped
@whereabouts
def clear_limits(
    tenant: str,
    project: str | None,
    key_id: str | None,
    model: str | None,
    places: Places,
) -> None:
    """Forget what was set: the configuration's numbers hold again."""
    with database(locate(places)) as db, transaction(db):
        scope = _scope(db, places, tenant, project, key_id, model)
        if not clear_rule(db, scope):
            raise setting.LimitError("Nothing was set there.")
        whose = Names(db).told(scope.kind, scope.id)
    click.echo(f"Cleared the limits of {whose}.")


def _scope(
    db: Any,
    places: Places,
    tenant: str,
    project: str | None,
    key_id: str | None,
    model: str | None,
) -> Scope:
    if project is not None and key_id is not None:
        raise click.UsageError("--project and --key: a limit is of one of them")
    model_id = known_model(places, model) if model else ""
    return setting.scope_of(db, tenant, project=project, key_id=key_id, model=model_id)


def _configured(rules: Rules, tenant: str | None) -> list[Row]:
    said = {("each tenant", ""): rules.per_tenant, ("each key", ""): rules.per_key}
    for (name, model), own in rules.tenants.items():
        if tenant in (None, name):
            said["this tenant" if tenant else f"tenant {name}", model] = own
    said |= {("all tenants", model): rates for model, rates in rules.models.items()}
    rows: list[Row] = []
    for (of, model), rates in said.items():
        rule = Rule(rates.rpm or None, rates.tpm or None, rates.concurrent or None)
        if rule != Rule():
            rows.append((of, model, rule, "config"))
    return rows


def _line(row: Row) -> tuple[str, ...]:
    of, model, rule, source = row
    numbers = (rule.rpm, rule.tpm, rule.concurrent)
    return (of, model or "all", *("" if n is None else str(n) for n in numbers), source)
