"""`bulkhead budgets`: what tenants, their projects and their keys may spend. A running gateway
holds the next request to a new one.
"""

from __future__ import annotations

import json
from typing import cast

import click

from gateway.budgets import budgets as rows
from gateway.budgets.refusals import moment
from gateway.budgets.rows import Account
from gateway.budgets.views import view
from gateway.budgets.windows import KINDS, Kind
from gateway.cli.accounts import as_json
from gateway.cli.columns import table
from gateway.cli.completing import budget_ids, live_keys, model_ids, tenant_names
from gateway.cli.help import Sentences
from gateway.cli.named import Names
from gateway.cli.options import Places, database, locate, peek, whereabouts
from gateway.clock import SYSTEM_CLOCK
from gateway.identity.tenants import id_or_all, tenant_id_of
from gateway.prices import format_nano, parse_nano
from gateway.store.connection import transaction

HEADING = ("ID", "OF", "MODEL", "PERIOD", "LIMIT", "SPENT", "HELD", "UNTIL", "")


class Money(click.ParamType[int]):
    """An amount, as nano-units."""

    name = "AMOUNT"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """See click."""
        try:
            return value if isinstance(value, int) else parse_nano(value)
        except ValueError as fault:
            self.fail(str(fault), param, ctx)


class Percents(click.ParamType[tuple[int, ...]]):
    """Percentages with commas between them."""

    name = "PERCENT,..."

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """See click."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not all(part.isascii() and part.isdigit() for part in parts):
            self.fail(f"{value!r} is not a list of percentages, such as 50,80,100", param, ctx)
        return tuple(int(part[:4]) for part in parts)


@click.group(cls=Sentences)
def budgets() -> None:
    """Budgets: what may be spent a day, a month or in all."""


@budgets.command("create")
@click.argument("tenant", shell_complete=tenant_names)
@click.option("--limit", type=Money(), required=True, help='Such as "100" or "12.50".')
@click.option("--period", type=click.Choice(KINDS), default="monthly", show_default=True)
@click.option("--currency", default="USD", show_default=True, help="ISO 4217.")
@click.option("--project", help="Of this project of the tenant's alone; its name or id.")
@click.option("--key", "key_id", shell_complete=live_keys, help="Of this key alone; its id.")
@click.option("--model", shell_complete=model_ids, help="For this model alone.")
@click.option(
    "--alerts",
    type=Percents(),
    default=",".join(map(str, rows.DEFAULT_ALERTS)),
    show_default=True,
    help='Of the limit; "" for none.',
)
@whereabouts
@as_json
def create_budget(  # noqa: PLR0913 - one argument an option
    tenant: str,
    limit: int,
    period: str,
    currency: str,
    project: str | None,
    key_id: str | None,
    model: str | None,
    alerts: tuple[int, ...],
    places: Places,
    as_json: bool,
) -> None:
    """Make a budget of TENANT. Days and months are those of the tenant's time zone."""
    if project is not None and key_id is not None:
        raise click.UsageError("--project and --key: a budget is of one of them")
    model_id = known_model(places, model) if model else ""
    with database(locate(places)) as db, transaction(db):
        tenant_id = tenant_id_of(db, tenant)
        kind, scope_id = rows.scope_of(db, tenant_id, project, key_id)
        plan = rows.Plan(
            tenant_id=tenant_id,
            scope_kind=kind,
            scope_id=scope_id,
            period=cast("Kind", period),
            currency=currency,
            limit_nano=limit,
            model_id=model_id,
            alerts=alerts,
        )
        account = rows.create(db, plan, SYSTEM_CLOCK.now_us())
        names = Names(db)
    if as_json:
        click.echo(json.dumps(view(account)))
    else:
        click.echo(f"Created budget {account.budget.id}: {told(account, names)}.")


@budgets.command("list")
@click.argument("tenant", required=False, shell_complete=tenant_names)
@click.option("--all", "archived", is_flag=True, help="Archived ones, too.")
@whereabouts
@as_json
def list_budgets(tenant: str | None, archived: bool, places: Places, as_json: bool) -> None:
    """The budgets of TENANT, or of all, each in the window that runs now."""
    with database(locate(places)) as db:
        tenant_id = id_or_all(db, tenant) or None
        now_us = SYSTEM_CLOCK.now_us()
        found = rows.listed(db, now_us, tenant_id=tenant_id, archived=archived)
        names = Names(db)
    if as_json:
        click.echo(json.dumps([view(account) for account in found]))
    else:
        none = f"No budgets yet; add one: bulkhead budgets create {tenant or 'TENANT'} --limit 100"
        click.echo(table([row(account, names) for account in found], HEADING, none))


@budgets.command("show")
@click.argument("budget_id", shell_complete=budget_ids)
@whereabouts
@as_json
def show_budget(budget_id: str, places: Places, as_json: bool) -> None:
    """One budget: what was spent, what is held, and which alerts were raised."""
    with database(locate(places)) as db:
        account = rows.show(db, budget_id, SYSTEM_CLOCK.now_us())
        raised = rows.raised(db, account)
        names = Names(db)
    if as_json:
        alerts = [
            {"percent": percent, "raised_at": moment(at), "sent_at": sent and moment(sent)}
            for percent, at, sent in raised
        ]
        click.echo(json.dumps(view(account) | {"raised": alerts}))
        return
    click.echo(f"{account.budget.id}: {told(account, names)}.")
    for percent, at, sent in raised:
        outcome = f"sent {moment(sent)}" if sent else "not sent"
        click.echo(f"{percent} % were reached {moment(at)}; {outcome}.")


@budgets.command("set")
@click.argument("budget_id", shell_complete=budget_ids)
@click.option("--limit", type=Money(), required=True, help='Such as "100" or "12.50".')
@whereabouts
def set_budget(budget_id: str, limit: int, places: Places) -> None:
    """Change a budget's limit, in force at once. What was spent stays spent."""
    with database(locate(places)) as db, transaction(db):
        account = rows.set_limit(db, budget_id, limit, SYSTEM_CLOCK.now_us())
        names = Names(db)
    click.echo(f"{account.budget.id}: {told(account, names)}.")


@budgets.command("archive")
@click.argument("budget_id", shell_complete=budget_ids)
@whereabouts
def archive_budget(budget_id: str, places: Places) -> None:
    """End a budget, at once and for good. What was spent stays on record."""
    with database(locate(places)) as db, transaction(db):
        account = rows.archive(db, budget_id, SYSTEM_CLOCK.now_us())
    click.echo(f"Archived {account.budget.id}.")


def known_model(places: Places, name: str) -> str:
    """The id of a model of the configuration: a budget of any other would hold nobody."""
    models = {alias: model.id for model in peek(places).file.models for alias in model.aliases}
    models |= {model.id: model.id for model in peek(places).file.models}
    if name not in models:
        raise click.BadParameter(
            f"there is no model {name!r}; there are {', '.join(models)}", param_hint="--model"
        )
    return models[name]


def told(account: Account, names: Names) -> str:
    """A budget in a line."""
    budget = account.budget
    model = f", {budget.model_id}" if budget.model_id else ""
    of = f"{names.told(budget.scope_kind, budget.scope_id)}{model}"
    spent, held = format_nano(account.spent_nano), format_nano(account.held_nano)
    return (
        f"{format_nano(budget.limit_nano)} {budget.currency} {budget.period}, of {of}; "
        f"spent {spent}, held {held}, until {until(account)}"
    )


def row(account: Account, names: Names) -> tuple[str, ...]:
    """A budget in the list."""
    budget = account.budget
    return (
        budget.id,
        names.told(budget.scope_kind, budget.scope_id),
        budget.model_id or "all",
        budget.period,
        f"{format_nano(budget.limit_nano)} {budget.currency}",
        format_nano(account.spent_nano),
        format_nano(account.held_nano),
        until(account),
        "" if budget.archived_at is None else f"archived {moment(budget.archived_at)}",
    )


def until(account: Account) -> str:
    """When its window ends."""
    return "ever" if account.window.ends_at is None else moment(account.window.ends_at)
