"""`bulkhead deployments`: what was deployed, when, by whom and why."""

from __future__ import annotations

import click
import msgspec

from gateway.cli.accounts import as_json
from gateway.cli.columns import table
from gateway.cli.completing import deployment_numbers
from gateway.cli.help import Sentences
from gateway.cli.options import Places, locate, places
from runtime.deployments import BadPointer, Deployment, Deployments


@click.group(cls=Sentences)
def deployments() -> None:
    """The configurations that were deployed; the last 100 are kept."""


@deployments.command("list")
@places
@as_json
def list_deployments(places: Places, as_json: bool) -> None:
    """All that are kept, the newest first; a star is at the current one."""
    book = Deployments(locate(places).state_dir)
    try:
        current = book.current()
    except BadPointer as fault:
        click.echo(str(fault), err=True)
        current = None
    number = current.number if current else 0
    found = book.history()
    if lost := set(book.numbers()) - {deployment.number for deployment in found}:
        listed = ", ".join(map(str, sorted(lost)))
        click.echo(f"left out, since they can't be read: {listed}", err=True)
    if as_json:
        rows = [
            record(deployment) | {"current": deployment.number == number} for deployment in found
        ]
        click.echo(msgspec.json.encode(rows))
        return
    lines = [
        (
            f"{deployment.number}{'*' if deployment.number == number else ''}",
            f"{deployment.at:%Y-%m-%d %H:%M:%SZ}",
            deployment.by,
            deployment.message,
        )
        for deployment in found
    ]
    none = "No deployments yet; a start makes the first, and so does: bulkhead deploy"
    click.echo(table(lines, ("NUMBER", "AT", "BY", "MESSAGE"), none))


@deployments.command("view")
@click.argument("number", type=click.IntRange(min=1), shell_complete=deployment_numbers)
@places
@as_json
def view_deployment(number: int, places: Places, as_json: bool) -> None:
    """The text of deployment NUMBER on stdout; what is known of it on stderr."""
    book = Deployments(locate(places).state_dir)
    deployment, text = book.read(number), book.text(number)
    if as_json:
        click.echo(msgspec.json.encode(record(deployment) | {"text": text}))
        return
    for name, value in record(deployment).items():
        if value:
            click.echo(f"{name}: {value}", err=True)
    click.echo(text, nl=False)


def record(deployment: Deployment) -> dict[str, object]:
    """What is written down beside a text, flat, for people and scripts."""
    fields: dict[str, object] = msgspec.to_builtins(deployment)
    origin: dict[str, object] = msgspec.to_builtins(deployment.origin)
    del fields["origin"]
    return fields | origin
