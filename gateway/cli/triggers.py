"""`bulkhead triggers`: the jobs that run by the clock, and one of them now."""

from __future__ import annotations

import asyncio
import datetime
import json
from functools import partial
from pathlib import Path

import click
import msgspec

from gateway.cli.accounts import as_json
from gateway.cli.columns import table
from gateway.cli.help import Sentences
from gateway.cli.options import Places, Unreachable, load, need_database, places
from gateway.clock import SYSTEM_CLOCK
from gateway.crons.crons import Book, Run, moment, run_once
from gateway.crons.jobs import warm
from gateway.crons.schedule import last_until, next_after
from gateway.live.words import count
from gateway.relay.hosts import HostDirectory
from gateway.relay.node_link import LocalNode
from gateway.relay.placement import Placement
from gateway.stores import database_of
from runtime import rundir
from runtime.config.sections import CronSettings
from runtime.settings import Settings

POLL_S = 0.05


@click.group(cls=Sentences)
def triggers() -> None:
    """Jobs that run by the clock: [[triggers.crons]] of the config."""


@triggers.command("list")
@places
@as_json
def list_triggers(places: Places, as_json: bool) -> None:
    """The jobs of the config file, when each runs next, and how it went last. Times are UTC."""
    settings = load(places)
    book, now = Book(settings.state_dir), moment(SYSTEM_CLOCK)
    rows = [(job, next_after(job.cron, now), book.last(job)) for job in _crons(settings)]
    if as_json:
        found = [
            msgspec.to_builtins(job)
            | {"number": number, "next": _told(then), "last": msgspec.to_builtins(last)}
            for number, (job, then, last) in enumerate(rows, start=1)
        ]
        click.echo(json.dumps(found))
        return
    lines = [
        (str(number), job.run, job.to or job.model, job.cron, _told(then), _how(last))
        for number, (job, then, last) in enumerate(rows, start=1)
    ]
    none = "No jobs yet; add [[triggers.crons]] to the config file"
    click.echo(table(lines, ("", "RUN", "FOR", "CRON", "NEXT", "LAST"), none))


@triggers.command("run")
@click.argument("number", type=click.IntRange(min=1))
@places
@as_json
@click.pass_context
def run_trigger(ctx: click.Context, number: int, places: Places, as_json: bool) -> None:
    """Run the job with that NUMBER in the list now. A usage export is of the last closed period."""
    settings = load(places)
    crons = _crons(settings)
    if number > len(crons):
        found = count(len(crons), "job")
        raise click.UsageError(f"the config has {found}; see `bulkhead triggers list`")
    need_database(database_of(settings))
    run = asyncio.run(_run(crons[number - 1], settings))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(run)))
    elif run.ok:
        click.echo(f"Done: {run.said}.")
    else:
        click.echo(f"Error: {run.said}", err=True)
    ctx.exit(0 if run.ok else 1)


async def _run(job: CronSettings, settings: Settings) -> Run:
    now = moment(SYSTEM_CLOCK)
    at = last_until(job.cron, now) if job.run == "usage-export" else now

    return await run_once(job, at, settings, partial(_warm, settings), SYSTEM_CLOCK)


async def _warm(settings: Settings, model: str) -> None:
    """As a gateway does it: to the node, this command is one more."""
    connect_s = settings.file.relay.connect_s
    socket, placement = rundir.node_socket(settings.state_dir), Placement()
    hosts = HostDirectory([LocalNode(str(socket), connect_s)], placement)
    following = asyncio.create_task(hosts.follow())
    try:
        await _heard(hosts, socket, connect_s)
        await warm(placement, model)
    finally:
        following.cancel()
        await asyncio.wait([following])
        await hosts.aclose()


async def _heard(hosts: HostDirectory, socket: Path, patience_s: float) -> None:
    try:
        async with asyncio.timeout(patience_s):
            while not hosts.is_heard():
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise Unreachable(f"no node answers on {socket}; is it running?") from None


def _crons(settings: Settings) -> tuple[CronSettings, ...]:
    return settings.file.triggers.crons


def _told(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _how(last: Run | None) -> str:
    if last is None:
        return "-"
    return f"{_told(last.ended_at)} {'ok' if last.ok else 'failed'}: {last.said}"
