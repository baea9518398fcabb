"""`bulkhead tail`: requests as they end, until Ctrl-C."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import click
import httpx
import msgspec
from rich.console import Console

from gateway.admin.filters import RESULTS
from gateway.cli import answers
from gateway.cli.calling import Server, admin_server, check, decoded, stranger, unreachable
from gateway.cli.completing import model_ids, tenant_names
from gateway.cli.options import Declined, Places, Unreachable, places
from gateway.live.lines import request_line
from runtime.node.scaling import backoff_s

SILENCE_S = 20.0  # there is a comment every 5 s
BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 16.0

Event = dict[str, Any]


@click.command()
@click.option(
    "--format",
    "form",
    type=click.Choice(["pretty", "json"]),
    help="Default: pretty on a terminal, else one JSON object a line.",
)
@click.option(
    "--status",
    "results",
    type=click.Choice(RESULTS),
    multiple=True,
    help="May be given several times.",
)
@click.option("--model", shell_complete=model_ids, default="", help="Only this model's.")
@click.option(
    "--tenant",
    shell_complete=tenant_names,
    default="",
    help="Only this tenant's: its name or its id.",
)
@click.option("--search", default="", help="Only those with this text in one of their values.")
@click.option(
    "--sampling-rate",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="The share of requests to show.",
)
@places
def tail(  # noqa: PLR0913 - one argument an option
    form: Literal["pretty", "json"] | None,
    results: tuple[str, ...],
    model: str,
    tenant: str,
    search: str,
    sampling_rate: float,
    places: Places,
) -> None:
    """Show requests as they end: who, what, how long, how it went. Never their content."""
    query: list[tuple[str, str]] = [("status", result) for result in results]
    query += [("model", model), ("tenant", tenant), ("search", search)]
    query += [("sampling_rate", str(sampling_rate))]
    show = shown_as(form or ("pretty" if sys.stdout.isatty() else "json"))
    try:
        for event in events(lambda: stream(admin_server(places), query), time.sleep):
            show(event)
    except (KeyboardInterrupt, BrokenPipeError):  # whoever reads us has had enough
        return


def shown_as(form: str) -> Callable[[Event], None]:
    """How to print an event."""
    if form == "json":
        return lambda event: click.echo(json.dumps(event))
    console = Console(highlight=False)
    return lambda event: console.print(request_line(event, console.width), soft_wrap=True)


def events(
    connect: Callable[[], Iterator[Event | None]], sleep: Callable[[float], None]
) -> Iterator[Event]:
    """Events without end. Raises what the first attempt does; after it, tries again and again."""
    failures, connected = 0, False
    while True:
        try:
            for event in connect():
                failures, connected = 0, True
                if event is not None:
                    yield event
            fault = "the stream ended"
        except (Unreachable, Declined) as lost:
            if not connected:
                raise
            fault = str(lost)
        failures += 1
        wait_s = backoff_s(failures, BACKOFF_FIRST_S, BACKOFF_MAX_S)
        click.echo(f"{fault}; trying again in {wait_s:g} s", err=True)
        sleep(wait_s)


def stream(server: Server, query: list[tuple[str, str]]) -> Iterator[Event | None]:
    """One connection: None once it listens, then its events. Raises Unreachable, Refused…"""
    try:
        with (
            server.client(SILENCE_S) as http,
            http.stream("GET", "/admin/v1/tail", params=[p for p in query if p[1]]) as answer,
        ):
            if answer.is_error:
                answer.read()
                check(answer, server.url)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise stranger(server.url)
            for line in answer.iter_lines():
                if line.startswith(": listening"):
                    yield None
                elif line.startswith("data:"):
                    yield event_of(line.removeprefix("data:"), server.url)
    except httpx.HTTPError as fault:
        raise unreachable(server.url, fault) from None


def event_of(text: str, url: str) -> Event:
    """One request. Raises Stranger for what is none."""
    found = decoded(text)
    try:
        msgspec.convert(found, answers.Event)
    except msgspec.ValidationError:
        raise stranger(url) from None
    event: Event = found
    return event
