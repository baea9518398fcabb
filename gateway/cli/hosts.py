"""`bulkhead hosts`: which models are served, by which hosts, and how they are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from urllib.parse import quote

import click

from gateway.cli.accounts import as_json
from gateway.cli.answers import AttachedServer, Host, Hosts, PoolModel, PoolModels, Restart
from gateway.cli.calling import Server, admin_server
from gateway.cli.columns import table
from gateway.cli.completing import host_model_ids
from gateway.cli.help import Sentences
from gateway.cli.options import Places, places
from gateway.live.words import NOTHING, amount, clean, count, cut, span

WATCH_S = 1.0
MAX_REASON_LEN = 60


@click.group(cls=Sentences)
def hosts() -> None:
    """Models, and the host processes that serve them."""


@hosts.command("list")
@click.option("--watch", "-w", is_flag=True, help="Again every second, until Ctrl-C.")
@places
@as_json
def list_hosts(watch: bool, as_json: bool, places: Places) -> None:
    """All models and hosts, as the node sees them."""
    server = admin_server(places)
    try:
        show(server, as_json=as_json)
        while watch:
            time.sleep(WATCH_S)
            show(server, as_json=as_json, over=True)
    except KeyboardInterrupt:
        return


@hosts.command("restart")
@click.argument("model", shell_complete=host_model_ids)
@places
def restart_hosts(model: str, places: Places) -> None:
    """Replace MODEL's hosts, and forget its failures. No request is lost."""
    server = admin_server(places)
    server.ask("POST", f"/admin/v1/models/{quote(model)}/restart", Restart)
    click.echo(f"The hosts of {model} are being replaced; see `bulkhead hosts list --watch`.")


def show(server: Server, *, as_json: bool, over: bool = False) -> None:
    """Ask once and print; `over` what was printed before, if this is a terminal."""
    models = server.ask("GET", "/admin/v1/models", PoolModels)
    found = server.ask("GET", "/admin/v1/hosts", Hosts)
    if as_json:
        documents = {"models": models.document["data"], "hosts": found.document["data"]}
        click.echo(json.dumps(documents))
        return
    if over:
        click.clear()
    click.echo(as_text(models.told.data, found.told.data, time.time()))


def as_text(models: list[PoolModel], hosts: list[Host], now: float) -> str:
    """Two tables. `now`: unix seconds."""
    told = table([model_row(model, now) for model in models], MODEL_HEADING, "No models.")
    several = [server_row(m, s, now) for m in models if len(m.servers) > 1 for s in m.servers]
    if several:
        told += "\n\n" + table(several, SERVER_HEADING)
    if hosts:
        told += "\n\n" + table([host_row(host, now) for host in hosts], HOST_HEADING)
    return told


MODEL_HEADING = ("MODEL", "STATE", "HOSTS", "RUNNING", "WAITING", "FAILURES", "WHY")
SERVER_HEADING = ("SERVER", "MODEL", "STATE", "BREAKER", "WHY")
HOST_HEADING = ("HOST", "MODEL", "STATE", "FOR", "PID", "RUNNING", "MEMORY", "WHY")


def model_row(model: PoolModel, now: float) -> tuple[str, ...]:
    """One model."""
    if model.state == "attached":
        nothing = (NOTHING,) * 4
        return (model.id, "down" if model.is_down else "attached", *nothing, _server(model, now))
    return (
        model.id,
        model.state.replace("_", " "),
        f"{model.hosts}/{model.max_hosts}",
        str(model.in_flight),
        str(model.waiting),
        str(model.failures),
        "; ".join(_why(model, now)),
    )


def _why(model: PoolModel, now: float) -> Iterator[str]:
    """What an operator should know of a model's hosts."""
    again = model.retry_at - now
    if model.reason:
        retry = f" (again in {span(again)})" if again > 0 else ""
        yield cut(clean(model.reason), MAX_REASON_LEN) + retry
    if model.retirement:
        reason = cut(clean(model.retirement), MAX_REASON_LEN)
        yield f"a host was replaced {span(now - model.retired_at)} ago: {reason}"
    if model.stopped:
        yield f"{count(model.stopped, 'request')} stopped by a check, on hosts that have ended"


def _server(model: PoolModel, now: float) -> str:
    """Where an attached server is, and what went wrong there last."""
    if model.failed_at is None:
        return model.url
    reason = cut(clean(model.reason), MAX_REASON_LEN)
    return f"{model.url}: {reason} ({span(now - model.failed_at)} ago)"


def server_row(model: PoolModel, server: AttachedServer, now: float) -> tuple[str, ...]:
    """One of several servers of a model."""
    why = ""
    if server.failed_at is not None:
        reason = cut(clean(server.reason), MAX_REASON_LEN)
        why = f"{reason} ({span(now - server.failed_at)} ago)"
    return (server.url, model.id, "down" if server.is_down else "up", server.breaker, why)


def host_row(host: Host, now: float) -> tuple[str, ...]:
    """One host."""
    return (
        host.id,
        host.model,
        host.state,
        span(now - host.since) if host.since else NOTHING,
        str(host.pid or NOTHING),
        str(host.in_flight),
        amount(host.rss_bytes),
        "; ".join(_notable(host)),
    )


def _notable(host: Host) -> Iterator[str]:
    if host.reason:
        yield cut(clean(host.reason), MAX_REASON_LEN)
    if host.integrity_aborts:
        yield f"{count(host.integrity_aborts, 'request')} stopped by a check of its pages"
