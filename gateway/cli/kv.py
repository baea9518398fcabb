"""`bulkhead kv`: the page pools of the hosts that run, drawn in the terminal."""

from __future__ import annotations

import json
import sys
import time
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live

from gateway.cli.accounts import as_json
from gateway.cli.answers import Host, Hosts
from gateway.cli.calling import Server, admin_server
from gateway.cli.completing import host_model_ids
from gateway.cli.help import Sentences
from gateway.cli.options import Declined, Places, places
from gateway.live import page_map
from gateway.live.page_map import Colours, HostPages

REFRESH_S = 0.5
NONE = "No host runs; a request starts one."


@click.group(cls=Sentences)
def kv() -> None:
    """The KV cache of the hosts that run."""


@kv.command("map")
@click.argument("target", metavar="[MODEL|HOST]", required=False, shell_complete=host_model_ids)
@click.option("--once", is_flag=True, help="One picture, and no more; so it is in a pipe.")
@places
@as_json
def show_map(target: str | None, once: bool, as_json: bool, places: Places) -> None:
    """Every page's state, and whose it is; of all hosts, or of a model's, or of one."""
    server = admin_server(places)
    if as_json:
        click.echo(json.dumps(documents(server, target)))
        return
    console = Console()
    colours = Colours(plain=console.color_system is None or console.no_color)
    if once or not console.is_terminal or not sys.stdout.isatty():
        with console.capture() as taken:
            console.print(picture(server, target, colours, console))
        click.echo(taken.get(), nl=False)
        return
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(picture(server, target, colours, console), refresh=True)
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return


def documents(server: Server, target: str | None) -> list[Any]:
    """What is told of each host, whole; those that can't tell are left out."""
    told = []
    for host in hosts_of(server, target):
        try:
            told.append(_ask(server, host).document)
        except Declined:
            if target == host.id:
                raise
    return told


def picture(
    server: Server, target: str | None, colours: Colours, console: Console
) -> RenderableType:
    """All that is to be seen, as of now."""
    found = hosts_of(server, target)
    height = (console.height - 1) // max(1, len(found))
    drawn: list[RenderableType] = []
    for host in found:
        try:
            told = _ask(server, host).told
        except Declined as fault:
            drawn.append(page_map.refused(host.id, host.model, str(fault)))
        else:
            drawn.append(page_map.draw(told, colours, console.width, height))
    return Group(*drawn) if drawn else NONE


def hosts_of(server: Server, target: str | None) -> list[Host]:
    """The hosts that are meant. Raises Declined if none has this name, nor its model."""
    every = server.ask("GET", "/admin/v1/hosts", Hosts).told.data
    if target is None:
        return every
    if found := [host for host in every if target in (host.id, host.model)]:
        return found
    known = ", ".join(f"{host.id} ({host.model})" for host in every) or "none"
    raise Declined(
        f"no host that runs is {target!r}, or of a model of that name; there are {known}"
    )


def _ask(server: Server, host: Host) -> Any:
    return server.ask("GET", f"/admin/v1/hosts/{quote(host.id, safe='')}/pages", HostPages)
