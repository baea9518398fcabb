"""`bulkhead deploy` and `bulkhead rollback`: what runs is given another configuration."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from gateway.cli.accounts import as_json
from gateway.cli.completing import deployment_numbers
from gateway.cli.options import Places, load, locate, places
from runtime.deploy import reload
from runtime.deploy.rollout import Done, Plan, by, carry_out, plan
from runtime.deploy.running import running
from runtime.deployments import Deployments, NoDeployment
from runtime.settings import Settings

message_option = click.option(
    "--message", "-m", default="", help="Why; `bulkhead deployments list` shows it."
)
timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="Seconds to wait until node and gateway run it.",
)


@click.command()
@click.option("--dry-run", is_flag=True, help="Check and compare; change nothing.")
@message_option
@timeout_option
@places
@as_json
def deploy(dry_run: bool, message: str, timeout_s: float, places: Places, as_json: bool) -> None:
    """Have what runs use the config file as it is now, without dropping a request.

    A file with faults changes nothing. If nothing runs, the next start uses it.
    """
    settings = load(places, dev=is_dev(locate(places).state_dir))
    planned = plan(settings)
    if dry_run:
        done = None
        told = "Dry run: the file is good, and nothing was changed."
    else:
        done = carry_out(planned, by=by("bulkhead deploy"), message=message, timeout_s=timeout_s)
        told = outcome(done, "the next start will use it")
    tell(planned, done, told, as_json=as_json)


@click.command()
@click.argument(
    "number", type=click.IntRange(min=1), required=False, shell_complete=deployment_numbers
)
@message_option
@timeout_option
@places
@as_json
def rollback(
    number: int | None, message: str, timeout_s: float, places: Places, as_json: bool
) -> None:
    """Bring back deployment NUMBER, or else the one before; again, and it is the one before that.

    The config file is neither read nor changed.
    """
    state_dir = locate(places).state_dir
    book = Deployments(state_dir)
    current = book.current()
    if current is None:
        raise NoDeployment(f"nothing was deployed in {state_dir}")
    target = book.read(number) if number else book.before(book.read(current.number))
    planned = plan(reload.load(state_dir, target.number, dev=is_dev(state_dir)))
    done = carry_out(
        planned,
        by=by("bulkhead rollback"),
        message=message or f"rollback to {target.number}",
        restores=target.restores or target.number,
        timeout_s=timeout_s,
    )
    told = outcome(done, "to start with it, give `serve` or `node` the option --deployed")
    tell(planned, done, told, as_json=as_json)


def is_dev(state_dir: Path) -> bool:
    """Whether `bulkhead dev` runs there: what is deployed to it may count on `.dev.vars`."""
    return any(process.dev for process in running(state_dir))


def tell(planned: Plan, done: Done | None, told: str, *, as_json: bool) -> None:
    """What differs, and what became of it."""
    if as_json:
        document = {"changes": planned.changes, "dry_run": done is None}
        if done is not None:
            document |= msgspec.to_builtins(done)
        click.echo(msgspec.json.encode(document, enc_hook=str))
        return
    click.echo(f"From {source(planned.settings)}")
    for line in differences(planned):
        click.echo(f"  {line}")
    click.echo(told)


def source(settings: Settings) -> str:
    """Where a configuration comes from, for people."""
    env = f", environment {settings.env}" if settings.env else ""
    return settings.source + env


def differences(planned: Plan) -> list[str]:
    """A line for each thing that differs."""
    if planned.changes is None:
        return ["(there is no earlier deployment to compare with)"]
    return [str(change) for change in planned.changes] or ["nothing differs in what it says"]


def outcome(done: Done, if_nothing_runs: str = "") -> str:
    """What became of a roll-out that went well."""
    name = f"Deployment {done.number}" + ("" if done.is_new else ", unchanged, was loaded again")
    if not done.running:
        return f"{name}. Nothing runs on this state folder; {if_nothing_runs}."
    roles = " and ".join(sorted({process.role for process in done.running}))
    return f"{name}; running on {roles} after {done.seconds:.1f} s."
