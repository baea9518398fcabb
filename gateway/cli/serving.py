"""`bulkhead dev`, `serve`, `gateway` and `node`: the processes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, TypeVar

import click
import httpx
import msgspec

from gateway.cli.accounts import pepper
from gateway.cli.options import Places, database, load, places
from gateway.demo import demo_key
from gateway.server import GatewayFailed, NodeThread, own_port, run_gateway
from runtime import logs, state, weights
from runtime.node import Node
from runtime.settings import Settings

LISTENER = (
    click.option("--host", help="The address to listen on."),
    click.option("--port", type=click.IntRange(1, 65535), help="The port to listen on."),
)


F = TypeVar("F", bound=Callable[..., Any])


def listener(command: F) -> F:
    """Adds --host and --port."""
    for option in LISTENER:
        command = option(command)
    return command


@click.command()
@listener
@places
def dev(host: str | None, port: int | None, places: Places) -> None:
    """Serve on this machine with a demo tenant, whose key is printed."""
    settings = _settings(places, host, port, dev=True)
    with _port(settings), state.own(settings.state_dir, "node"):
        weights.ensure(settings)
        with database(settings) as db:
            secret = demo_key(db, settings.state_dir, pepper(settings))
        _serve(settings, ready=lambda: _welcome(settings, secret))


@click.command()
@listener
@places
def serve(host: str | None, port: int | None, places: Places) -> None:
    """Serve: the gateway, and the node with its hosts."""
    settings = _settings(places, host, port, dev=False)
    with _port(settings), state.own(settings.state_dir, "node"):
        weights.ensure(settings)
        _migrate(settings)
        _serve(settings, ready=lambda: _announce(settings))


@click.command()
@listener
@places
def gateway(host: str | None, port: int | None, places: Places) -> None:
    """Run the gateway alone, in front of the node that runs on the same state folder."""
    settings = _settings(places, host, port, dev=False)
    with _port(settings):
        _migrate(settings)
        run_gateway(settings, lambda: _announce(settings))


@click.command()
@places
def node(places: Places) -> None:
    """Run this machine's hosts alone; `bulkhead gateway` finds them by the state folder."""
    logs.configure()
    settings = load(places)
    with state.own(settings.state_dir, "node"):
        weights.ensure(settings)
        asyncio.run(_node_until_signal(settings))


def _settings(places: Places, host: str | None, port: int | None, *, dev: bool) -> Settings:
    logs.configure()
    settings = load(places, dev=dev)
    server = settings.file.server
    server = msgspec.structs.replace(server, host=host or server.host, port=port or server.port)
    file = msgspec.structs.replace(settings.file, server=server)
    return msgspec.structs.replace(settings, file=file)


def _port(settings: Settings) -> IO[str]:
    return own_port(settings.file.server.host, settings.file.server.port)


def _migrate(settings: Settings) -> None:
    """The store is brought to this version's schema, or refused, before anything starts."""
    with database(settings):
        pass


def _serve(settings: Settings, ready: Callable[[], None]) -> None:
    hosts = NodeThread(settings)
    hosts.start()
    try:
        run_gateway(settings, ready)
    finally:
        hosts.stop()
    if hosts.is_broken:
        raise GatewayFailed("the node broke; see the log above")


async def _node_until_signal(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Node(settings).run(stop)


def _url(settings: Settings) -> str:
    server = settings.file.server
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(server.host, server.host)  # noqa: S104
    return f"http://{host}:{server.port}"


def _wait_for(url: str) -> None:
    """Returns once `url` answers 200."""
    while True:
        with suppress(httpx.HTTPError):
            if httpx.get(url).status_code == 200:
                return
        time.sleep(0.1)


def _announce(settings: Settings) -> None:
    """Say where we serve, once we do. Runs beside the server."""
    url = _url(settings)
    _wait_for(f"{url}/healthz")
    click.echo(f"Serving on {url}", err=True)


def _welcome(settings: Settings, secret: str) -> None:
    """Wait until every model answers, then say how to call one. Runs beside the server."""
    url = _url(settings)
    _wait_for(f"{url}/readyz")
    models = sorted(settings.file.models, key=lambda model: model.engine == "openai")
    question = '[{"role": "user", "content": "What is the capital of France?"}]'
    body = f'{{"model": "{models[0].id}", "temperature": 0, "messages": {question}}}'
    click.echo(f"BULKHEAD_URL={url}\nBULKHEAD_API_KEY={secret}")
    click.echo(
        "\nTry it:\n\n"
        f"curl {url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {secret}' \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d '{body}'\n",
        err=True,
    )
