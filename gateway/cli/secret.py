"""`bulkhead secret`: values that the configuration names and never holds. They are never shown."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress

import click

from gateway.cli.accounts import as_json
from gateway.cli.columns import table
from gateway.cli.completing import secret_names
from gateway.cli.help import Sentences
from gateway.cli.options import Places, locate, tell_if_new, whereabouts
from gateway.root import refuse_if_lost
from runtime import settings as config
from runtime.config.place import Place
from runtime.config.secret_values import VAULT
from runtime.config.variables import NAME
from runtime.config.vault import Vault, VaultError
from runtime.deploy import rollout
from runtime.deploy.rollout import NotApplied
from runtime.deploy.running import running
from runtime.deployments import Deployments

APPLY_S = 10.0


@click.group(cls=Sentences)
def secret() -> None:
    """Secrets: keys of attached servers, and whatever else [secrets] asks for."""


@secret.command("put")
@click.argument("name", shell_complete=secret_names)
@whereabouts
def put_secret(name: str, places: Places) -> None:
    """Keep a value under NAME, sealed in the state folder. It is asked for, or read from stdin."""
    if not re.fullmatch(NAME, name):
        raise click.UsageError(f"{name!r} is no name: letters, digits and _ , the first no digit")
    place = locate(places)
    if sys.stdin.isatty():
        value = click.prompt(f"Value of {name}", hide_input=True, err=True)
    else:
        value = _from_stdin()
    with suppress(config.ConfigError):  # it may lack this very secret
        refuse_if_lost(place)
    tell_if_new(place.state_dir)
    Vault(place.state_dir, place.root_secret).put(name, value)
    click.echo(f"Stored {name} in {place.state_dir}.")
    _renew(place)


@secret.command("list")
@whereabouts
@as_json
def list_secrets(places: Places, as_json: bool) -> None:
    """The names there are, where each value comes from, and when it was stored."""
    place = locate(places)
    found = config.secrets_known(place)
    if as_json:
        rows = [
            {
                "name": s.name,
                "source": s.source,
                "set_at": s.set_at.isoformat() if s.set_at else None,
                "named_by": s.named_by,
            }
            for s in found
        ]
        click.echo(json.dumps(rows))
        return
    lines = [
        (
            s.name,
            s.source or "not set",
            f"{s.set_at:%Y-%m-%d %H:%M} UTC" if s.set_at else "",
            ", ".join(s.named_by),
        )
        for s in found
    ]
    none = "No secrets yet; store one: bulkhead secret put NAME"
    click.echo(table(lines, ("NAME", "FROM", "STORED", "NAMED BY"), none))


@secret.command("delete")
@click.argument("name", shell_complete=secret_names)
@click.option("--force", is_flag=True, help="Also one that the configuration needs.")
@whereabouts
def delete_secret(name: str, force: bool, places: Places) -> None:
    """Forget the stored value of NAME."""
    place = locate(places)
    known = {s.name: s for s in config.secrets_known(place)}
    if name in known and known[name].source == VAULT and known[name].named_by and not force:
        needed = ", ".join(known[name].named_by)
        raise VaultError(f"{needed} needs {name}; take it out there first, or say --force")
    if not Vault(place.state_dir, place.root_secret).delete(name):
        raise VaultError(f"no secret {name} is stored in {place.state_dir}")
    click.echo(f"Deleted {name}.")


def _from_stdin() -> str:
    """All of it, without the line end that `echo` adds."""
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise VaultError("a secret is text in UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


def _renew(place: Place) -> None:
    """What runs uses the value from now on; without that it would until its next start."""
    if not running(place.state_dir):
        return
    book = Deployments(place.state_dir)
    try:
        processes = rollout.wait(place.state_dir, book.renew(), APPLY_S)
    except NotApplied as fault:
        click.echo(f"What runs doesn't use it yet: {fault}", err=True)
    else:
        told = " and ".join(sorted({process.role for process in processes}))
        click.echo(f"What runs uses it now: {told}.", err=True)
