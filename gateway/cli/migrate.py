"""`bulkhead migrate`: the store is brought to this version's schema, or it is tried on a copy."""

from __future__ import annotations

import json

import click
import msgspec

from gateway.cli.accounts import as_json
from gateway.cli.options import Places, locate, need_database, tell_if_new, whereabouts
from gateway.store import migrate as migrations
from gateway.store.backup import BACKUPS
from gateway.store.connection import DATABASE
from gateway.store.hold import using
from gateway.store.migrate import Rehearsal
from runtime import state


@click.command()
@click.option("--dry-run", is_flag=True, help="Try it on a copy, and say what it would run.")
@whereabouts
@as_json
def migrate(dry_run: bool, places: Places, as_json: bool) -> None:
    """Bring the store to the schema of this version. `serve` does so by itself.

    The store is copied to `backups/` before; the last 3 copies are kept. There is no way back but
    by such a copy, or a backup.
    """
    folder = locate(places).state_dir
    path = folder / DATABASE
    if dry_run:
        need_database(folder)
        found = migrations.rehearse(path)
        click.echo(json.dumps(msgspec.to_builtins(found))) if as_json else _tell(found)
        return
    is_new = not path.exists()
    tell_if_new(path)
    state.prepare(folder)
    with using(path):
        steps = migrations.migrate(path)
    if as_json:
        click.echo(json.dumps({"steps": msgspec.to_builtins(steps)}))
        return
    for step in steps:
        click.echo(f"{step.revision}  {step.says}")
    click.echo("Migrated." if steps else "The store has the schema of this version already.")
    if steps and not is_new:
        click.echo(f"It is kept as it was in {folder / BACKUPS}.", err=True)


def _tell(found: Rehearsal) -> None:
    click.echo(f"The store has schema {found.current or 'none'}; this version's is {found.head}.")
    for step in found.steps:
        click.echo(f"\n-- {step.revision}: {step.says} ({step.seconds:.2f} s on a copy)")
        for statement in step.sql:
            click.echo(f"{statement};")
    if not found.steps:
        click.echo("Nothing is to be done.")
        return
    click.echo("\nRows by table, before and after:")
    for table, after in found.rows_after.items():
        click.echo(f"  {table}: {found.rows_before.get(table, 0)} -> {after}")
    click.echo("Dry run: nothing was changed.")
