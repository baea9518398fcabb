"""`bulkhead projects`: parts of a tenant that keys may belong to."""

from __future__ import annotations

import json

import click

from gateway.cli.accounts import as_json, when
from gateway.cli.columns import Row, of_all, table
from gateway.cli.completing import project_names, tenant_names
from gateway.cli.help import Sentences
from gateway.cli.options import Places, database, locate, whereabouts
from gateway.identity import projects as rows, tenants as accounts
from gateway.store.connection import transaction


@click.group(cls=Sentences)
def projects() -> None:
    """Projects: parts of a tenant that keys may belong to."""


@projects.command("create")
@click.argument("tenant", shell_complete=tenant_names)
@click.argument("name")
@whereabouts
@as_json
def create_project(tenant: str, name: str, places: Places, as_json: bool) -> None:
    """Add a project to TENANT."""
    with database(locate(places)) as db, transaction(db):
        project = rows.create_project(db, tenant, name)
    if as_json:
        click.echo(json.dumps({"id": project.id, "name": name, "tenant_id": project.tenant_id}))
    else:
        click.echo(f"Created project {name} ({project.id}).")
        click.echo(f"Give it a key: bulkhead keys create {tenant} --project {name}")


@projects.command("list")
@click.argument("tenant", required=False, shell_complete=tenant_names)
@whereabouts
@as_json
def list_projects(tenant: str | None, places: Places, as_json: bool) -> None:
    """The projects of TENANT, or of all, archived ones too."""
    with database(locate(places)) as db:
        found = rows.list_projects(db, tenant)
        names = accounts.tenant_names(db)
    if as_json:
        listed = [
            {
                "tenant": names[p.tenant_id],
                "id": p.id,
                "name": p.name,
                "created_at": when(p.created_at),
                "archived_at": when(p.archived_at),
            }
            for p in found
        ]
        click.echo(json.dumps(listed))
        return
    lines: list[Row] = [(p.name, p.id, when(p.created_at) or "", _status(p)) for p in found]
    heading: Row = ("NAME", "ID", "CREATED", "STATUS")
    if not tenant:
        lines, heading = of_all(lines, heading, [names[p.tenant_id] for p in found])
    none = f"No projects yet; add one: bulkhead projects create {tenant or 'TENANT'} NAME"
    click.echo(table(lines, heading, none))


@projects.command("archive")
@click.argument("tenant", shell_complete=tenant_names)
@click.argument("name", shell_complete=project_names)
@whereabouts
def archive_project(tenant: str, name: str, places: Places) -> None:
    """End a project of TENANT: its keys are refused from now on. Its usage stays."""
    with database(locate(places)) as db, transaction(db):
        project = rows.archive_project(db, tenant, name)
    click.echo(f"Archived {project.name} ({project.id}).")


def _status(project: rows.Project) -> str:
    return f"archived {when(project.archived_at)}" if project.archived_at is not None else ""
