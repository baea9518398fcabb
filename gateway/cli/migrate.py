"""`bulkhead migrate`: the store is brought to this version's schema, or it is tried first."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import click
import msgspec

from gateway.cli.accounts import as_json
from gateway.cli.options import Places, locate, need_database, tell_if_new, whereabouts
from gateway.store import migrate as migrations
from gateway.store.address import Database, Postgres
from gateway.store.backup import BACKUPS
from gateway.store.hold import using
from gateway.store.migrate import Rehearsal
from gateway.store.moving import move
from gateway.stores import database_of, is_there
from runtime import state


@click.command()
@click.option("--dry-run", is_flag=True, help="Try it, and say what it would run.")
@click.option(
    "--from-sqlite",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Move this file's content into the PostgreSQL database that is configured, an empty one.",
)
@whereabouts
@as_json
def migrate(dry_run: bool, source: Path | None, places: Places, as_json: bool) -> None:
    """Bring the store to the schema of this version. `serve` does so by itself.

    SQLite's file is copied to `backups/` before; the last 3 copies are kept. There is no way back
    but by such a copy, or a backup. A PostgreSQL database isn't copied: run pg_dump before.
    """
    place = locate(places)
    database = database_of(place)
    if source is not None:
        if dry_run or not isinstance(database, Postgres):
            raise click.UsageError("--from-sqlite needs `store.url`, and knows no --dry-run")
        _move(source, database, as_json=as_json)
        return
    if dry_run:
        need_database(database)
        found = migrations.rehearse(database)
        click.echo(json.dumps(msgspec.to_builtins(found))) if as_json else _tell(found)
        return
    is_new = not is_there(database)
    tell_if_new(database)
    state.prepare(place.state_dir)
    with using(database) if isinstance(database, Path) else nullcontext():
        steps = migrations.migrate(database)
    if as_json:
        click.echo(json.dumps({"steps": msgspec.to_builtins(steps)}))
        return
    for step in steps:
        click.echo(f"{step.revision}  {step.says}")
    click.echo("Migrated." if steps else "The store has the schema of this version already.")
    if steps and not is_new and (copies := _copies(database)):
        click.echo(f"It is kept as it was in {copies}.", err=True)


def _move(source: Path, target: Postgres, *, as_json: bool) -> None:
    moved = move(source, target)
    if as_json:
        click.echo(json.dumps({"moved": moved}))
        return
    for table, rows in moved.items():
        click.echo(f"  {table}: {rows}")
    click.echo(f"Moved {source} to {target}. The file stays as it is; keep the root secret.")


def _copies(database: Database) -> Path | None:
    return database.parent / BACKUPS if isinstance(database, Path) else None


def _tell(found: Rehearsal) -> None:
    click.echo(f"The store has schema {found.current or 'none'}; this version's is {found.head}.")
    for step in found.steps:
        click.echo(f"\n-- {step.revision}: {step.says} ({step.seconds:.2f} s, tried)")
        for statement in step.sql:
            click.echo(f"{statement};")
    if not found.steps:
        click.echo("Nothing is to be done.")
        return
    click.echo("\nRows by table, before and after:")
    for table, after in found.rows_after.items():
        click.echo(f"  {table}: {found.rows_before.get(table, 0)} -> {after}")
    click.echo("Dry run: nothing was changed.")
