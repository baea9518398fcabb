"""`bulkhead deploy` and `bulkhead rollback`: what runs is given another configuration."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from gateway.cli.accounts import as_json
from gateway.cli.completing import deployment_numbers
from gateway.cli.options import Places, load, locate, places, tell_if_new
from gateway.clock import SYSTEM_CLOCK
from gateway.money.refused import refuse_past_prices
from runtime.deploy import reload
from runtime.deploy.changes import Change
from runtime.deploy.rollout import Done, by, carry_out, plan
from runtime.deploy.running import running
from runtime.deployments import Deployment, Deployments, NoDeployment
from runtime.settings import Settings

ON_SAVE = "changed on disk"  # the message of what `bulkhead dev` deploys by itself

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
    refuse_past_prices(settings, SYSTEM_CLOCK.now_us())
    if dry_run:
        told = "Dry run: the file is good, and nothing was changed."
        tell(settings, plan(settings), None, told, as_json=as_json)
        return
    tell_if_new(settings.state_dir)
    done = carry_out(settings, by=by("bulkhead deploy"), message=message, timeout_s=timeout_s)
    told = outcome(done, "the next start will use it")
    if not done.is_new:
        told += by_a_save(Deployments(settings.state_dir).read(done.number))
    tell(settings, done.changes, done, told, as_json=as_json)


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

    The config file isn't changed, so what it says differs from what runs then.
    """
    state_dir = locate(places).state_dir
    book = Deployments(state_dir)
    follows = None
    if number is None:
        current = book.current()
        if current is None:
            raise NoDeployment(f"nothing was deployed in {state_dir}")
        follows = current.number
        target = book.before(book.read(follows))
    else:
        target = book.read(number)
    settings = reload.load(state_dir, target.number, dev=is_dev(state_dir))
    done = carry_out(
        settings,
        by=by("bulkhead rollback"),
        message=message or f"rollback to {target.number}",
        restores=target.restores or target.number,
        follows=follows,
        timeout_s=timeout_s,
    )
    told = outcome(done, "to start with it, give `serve` or `node` the option --deployed")
    if differs := not is_in_file(settings):
        told += f"\n{undone_by(settings)}"
    tell(settings, done.changes, done, told, as_json=as_json, file_differs=differs)


def undone_by(settings: Settings) -> str:
    """What undoes a rollback while the file says something else, and how to keep it."""
    told = f"{settings.config_path} says something else by now"
    if settings.dev:
        return (
            f"{told}, and `bulkhead dev` deploys it when it is next saved, which undoes the "
            "rollback: to keep it, make the file say what `bulkhead deployments view` shows."
        )
    return (
        f"{told}: correct it, or the next `bulkhead deploy`, or start without --deployed, "
        "undoes the rollback."
    )


def by_a_save(deployment: Deployment) -> str:
    """What to add of a deployment that `bulkhead dev` made when the file was saved."""
    if deployment.message != ON_SAVE:
        return ""
    return (
        f"\n`bulkhead dev` had deployed it when the file was saved, at {deployment.at:%H:%M:%SZ}, "
        "and told then what differed."
    )


def is_in_file(settings: Settings) -> bool:
    """Whether the file that it came from still says this."""
    if not settings.config_path:  # the built-in configuration
        return True
    try:
        return Path(settings.config_path).read_bytes() == settings.text.encode()
    except OSError:
        return False


def is_dev(state_dir: Path) -> bool:
    """Whether `bulkhead dev` runs there: what is deployed to it may count on `.dev.vars`."""
    return any(process.dev for process in running(state_dir))


def tell(
    settings: Settings,
    changes: list[Change] | None,
    done: Done | None,
    told: str,
    *,
    as_json: bool,
    **more: object,
) -> None:
    """What differs, and what became of it. `more` is for scripts."""
    if as_json:
        document = {"changes": changes, "dry_run": done is None} | more
        if done is not None:
            document |= msgspec.structs.asdict(done)
        click.echo(msgspec.json.encode(document, enc_hook=str))
        return
    click.echo(f"From {source(settings)}")
    for line in differences(changes):
        click.echo(f"  {line}")
    click.echo(told)


def source(settings: Settings) -> str:
    """Where a configuration comes from, for people."""
    env = f", environment {settings.env}" if settings.env else ""
    return settings.source + env


def differences(changes: list[Change] | None) -> list[str]:
    """A line for each thing that differs."""
    if changes is None:
        return ["(there is no earlier deployment to compare with)"]
    return [str(change) for change in changes] or ["nothing differs in what it says"]


def outcome(done: Done, if_nothing_runs: str = "") -> str:
    """What became of a roll-out that went well."""
    name = f"Deployment {done.number}" + ("" if done.is_new else ", unchanged, was loaded again")
    if done.superseded_by:
        return f"{name}. It is superseded by {done.superseded_by}, which was deployed meanwhile."
    if not done.running:
        return f"{name}. Nothing runs on this state folder; {if_nothing_runs}."
    roles = " and ".join(sorted({process.role for process in done.running}))
    return f"{name}; running on {roles} after {done.seconds:.1f} s."
