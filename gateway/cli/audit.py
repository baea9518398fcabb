"""`bulkhead audit`: who changed what."""

from __future__ import annotations

import json
from typing import Any

import click

from gateway.cli.accounts import as_json
from gateway.cli.columns import Row, of_all, table
from gateway.cli.completing import tenant_names
from gateway.cli.options import Places, database, locate, whereabouts
from gateway.identity import tenants as accounts
from gateway.store import audit as log
from gateway.usage.calendar import microseconds

HEADING: Row = ("AT", "BY", "ACTION", "OF", "DETAIL")
MOST = 100_000


@click.command()
@click.argument("tenant", required=False, shell_complete=tenant_names)
@click.option(
    "--limit", type=click.IntRange(1, MOST), default=50, show_default=True, help="So many."
)
@whereabouts
@as_json
def audit(tenant: str | None, limit: int, places: Places, as_json: bool) -> None:
    """The last changes of tenants, keys, limits, budgets and records: of TENANT, or of all."""
    with database(locate(places)) as db:
        found = log.page(db, limit, tenant_id=accounts.id_or_all(db, tenant))
        names = accounts.tenant_names(db)
    entries = [entry | {"at": microseconds(entry["at"])} for entry in found]
    if as_json:
        click.echo(json.dumps(entries))
    else:
        lines, heading = [_line(entry) for entry in entries], HEADING
        if not tenant:
            ids = [entry["tenant_id"] for entry in entries]
            lines, heading = of_all(lines, heading, [names.get(id, id) or "-" for id in ids])
        click.echo(table(lines[::-1], heading, "Nothing was changed yet."))


def _line(entry: dict[str, Any]) -> Row:
    detail = " ".join(
        f"{name}={_told(name, value)}" for name, value in entry["detail"].items() if value
    )
    who = f"{entry['actor_kind']} {entry['actor_id']}"
    return entry["at"], who, entry["action"], entry["target_id"], detail


def _told(name: str, value: Any) -> str:
    """Moments as everywhere else, texts as they are, and the rest as JSON."""
    if isinstance(value, str):
        return value
    return microseconds(value) if name.endswith("_at") else json.dumps(value)
