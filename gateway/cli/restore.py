"""`bulkhead restore`: a backup becomes what the state folder holds, also while it runs."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from gateway.backups.restore import LOSES, Done, Plan, RestoreRefused, prepared
from gateway.cli.accounts import as_json
from gateway.cli.backup import STDIO, record, summary
from gateway.cli.options import Places, locate, peek, tell_if_new, whereabouts
from gateway.live.words import count
from gateway.prices import format_pico
from gateway.store.backup import Lost
from runtime.settings import ConfigError

DRAIN_S = 30.0  # where the configuration can't be read


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Verify the backup, and say what would be done.")
@click.option("--yes", "-y", is_flag=True, help="What was written since the backup may be lost.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Root secret, vault, deployments and admin key too. Nothing may run then.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    help="Seconds to wait for running answers to end. Default: server.drain_s.",
)
@whereabouts
@as_json
def restore(  # noqa: PLR0913 - one argument an option
    file: Path,
    dry_run: bool,
    yes: bool,
    everything: bool,
    wait_s: float | None,
    places: Places,
    as_json: bool,
) -> None:
    """Put the backup FILE in place of what the store holds; - is stdin.

    A gateway that runs goes on: requests wait until running ones have ended and the change is done,
    and the backup's keys work at once. What was there before is kept as a backup of its own.
    """
    patience_s = _drain_s(places) if wait_s is None else wait_s
    place = locate(places)
    if not dry_run:
        tell_if_new(place.state_dir)
    with _archive(file) as path, prepared(place, path, everything=everything) as ready:
        if not as_json:
            _tell_plan(ready.plan)
        if ready.plan.lost and not (yes or dry_run):
            raise RestoreRefused(LOSES)
        done = None if dry_run else ready.carry_out(may_lose=yes, patience_s=patience_s)
    if as_json:
        click.echo(json.dumps(_record(ready.plan, done)))
    else:
        _tell_done(done)


def losses(lost: Lost) -> list[str]:
    """What would be lost, a line each."""
    amounts = ", ".join(f"{format_pico(a)} {currency}" for currency, a in lost.amounts.items())
    lines = (
        (lost.records, "usage record", f", billed {amounts or 'nothing'}"),
        (lost.tenants, "tenant", ", created since"),
        (lost.keys, "key", ", created since: no longer valid"),
        (lost.revocations, "revocation", ": what was ended works again"),
        (lost.rotations, "rotation", ": the secret from before works again, and not the new one"),
    )
    return [f"{count(number, thing)}{more}" for number, thing, more in lines if number]


def _tell_plan(plan: Plan) -> None:
    manifest = plan.manifest
    click.echo(
        f"The backup is of {manifest.created_at:%Y-%m-%d %H:%M:%SZ}, by Bulkhead "
        f"{manifest.version}: {summary(manifest)}."
    )
    if plan.lost:
        click.echo("Lost, once it is restored:")
        for line in losses(plan.lost):
            click.echo(f"  - {line}")
    if plan.puts_back:
        click.echo(f"Put back beside the store: {', '.join(plan.puts_back)}")
    if plan.leaves:
        click.echo(f"Left as they are, though the backup's differ: {', '.join(plan.leaves)}")


def _tell_done(done: Done | None) -> None:
    if done is None:
        click.echo("Dry run: the backup is good, and nothing was changed.")
        return
    click.echo(f"Restored. The store was held for {done.held_s:.2f} s.")
    if done.safety is not None:
        click.echo(f"What was there before is in {done.safety}.")


def _record(plan: Plan, done: Done | None) -> dict[str, object]:
    lost = done.lost if done else plan.lost
    amounts = {currency: format_pico(amount) for currency, amount in lost.amounts.items()}
    return {
        "restored": done is not None,
        "backup": record(plan.manifest),
        "lost": msgspec.to_builtins(lost) | {"amounts": amounts},
        "puts_back": plan.puts_back,
        "leaves": plan.leaves,
        "safety": str(done.safety) if done and done.safety else None,
        "held_s": round(done.held_s, 3) if done else None,
    }


def _drain_s(places: Places) -> float:
    try:
        return peek(places).file.server.drain_s
    except ConfigError:
        return DRAIN_S


@contextmanager
def _archive(file: Path) -> Iterator[Path]:
    if file != STDIO:
        yield file
        return
    with tempfile.TemporaryFile() as copy:  # without a name: it holds secrets, and dies with us
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(f"/proc/self/fd/{copy.fileno()}")
