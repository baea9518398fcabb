"""`bulkhead backup`: what a state folder can't lose, in one file, also while it runs."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from gateway.backups import backup as backups
from gateway.backups.archive import Manifest
from gateway.cli.accounts import as_json
from gateway.cli.options import Places, locate, need_database, whereabouts
from gateway.live.words import count
from gateway.store.backup import stamp
from gateway.store.connection import DATABASE
from runtime import state
from runtime.config.place import Place

STDIO = Path("-")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@whereabouts
@as_json
def backup(file: Path | None, places: Places, as_json: bool) -> None:
    """Write a verified backup to FILE; - is stdout. Default: a name with the time, here.

    It holds the store, the root secret, the vault, the deployments and the admin key: keep it as
    you would keep those. Weights are left out.
    """
    if file == STDIO and (as_json or sys.stdout.isatty()):
        raise click.UsageError("a backup on stdout goes to a file or a pipe, and nothing else does")
    place = locate(places)
    backups.refuse_a_server(place)
    need_database(place.state_dir / DATABASE)
    state.prepare(place.state_dir)
    with backups.alone(place.state_dir):
        if file == STDIO:
            _to_stdout(place)
            return
        file = file or Path(f"bulkhead-{stamp()}.tar.gz")
        manifest = backups.create(place, file)
    size_bytes = file.stat().st_size
    if as_json:
        told = {"file": str(file.absolute()), "bytes": size_bytes} | record(manifest)
        click.echo(json.dumps(told))
    else:
        click.echo(f"Wrote {file} ({size_bytes:,} bytes): {summary(manifest)}.")
        click.echo("Whoever has it has your secrets: keep it private.", err=True)


def summary(manifest: Manifest) -> str:
    """What is in a backup, in a line."""
    store, others = manifest.store, len(manifest.parts) - 1
    return (
        f"{count(store.tenants, 'tenant')}, {count(store.keys, 'key')}, "
        f"{count(store.records, 'usage record')}, and {count(others, 'file')} beside the store"
    )


def record(manifest: Manifest) -> dict[str, object]:
    """What is in a backup, for scripts."""
    found = msgspec.to_builtins(manifest)
    return {name: found[name] for name in ("version", "created_at", "store", "parts")}


def _to_stdout(place: Place) -> None:
    """Written and verified first: what is sent can't be taken back."""
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=place.state_dir) as folder:
        path = Path(folder) / "backup.tar.gz"
        backups.create(place, path)
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
