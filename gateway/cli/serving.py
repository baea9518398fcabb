"""`bulkhead dev`, `serve` and `node`: the processes."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import httpx
import msgspec

from gateway.cli.accounts import pepper
from gateway.cli.options import database, load, places
from gateway.demo import demo_key
from gateway.server import GatewayFailed, NodeThread, PortInUse, check_port, run_gateway
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
def dev(host: str | None, port: int | None, config: Path | None, state_dir: Path | None) -> None:
    """Serve on this machine with a demo tenant, whose key is printed."""
    settings = _settings(config, state_dir, host, port, dev=True)
    weights.ensure(settings)
    with state.own(settings.state_dir, "node"), database(settings) as db:
        secret = demo_key(db, settings.state_dir, pepper(settings))
        db.close()
        _serve(settings, ready=lambda: _welcome(settings, secret))


@click.command()
@listener
@places
def serve(host: str | None, port: int | None, config: Path | None, state_dir: Path | None) -> None:
    """Serve: the gateway, and the node with its hosts."""
    settings = _settings(config, state_dir, host, port, dev=False)
    weights.ensure(settings)
    with state.own(settings.state_dir, "node"):
        with database(settings):
            pass  # brought to this version's schema, or refused, before anything starts
        _serve(settings, ready=lambda: click.echo(f"Serving on {_url(settings)}", err=True))


@click.command()
@places
def node(config: Path | None, state_dir: Path | None) -> None:
    """Run this machine's hosts only; a gateway finds them by the state folder."""
    logs.configure()
    settings = load(config, state_dir)
    weights.ensure(settings)
    with state.own(settings.state_dir, "node"):
        asyncio.run(_node_until_signal(settings))


def _settings(
    config: Path | None, state_dir: Path | None, host: str | None, port: int | None, *, dev: bool
) -> Settings:
    logs.configure()
    settings = load(config, state_dir)
    server = settings.file.server
    server = msgspec.structs.replace(server, host=host or server.host, port=port or server.port)
    file = msgspec.structs.replace(settings.file, server=server)
    try:
        check_port(server.host, server.port)
    except PortInUse as fault:
        raise click.ClickException(str(fault)) from None
    return msgspec.structs.replace(settings, file=file, dev=dev)


def _serve(settings: Settings, ready: Callable[[], None]) -> None:
    hosts = NodeThread(settings)
    hosts.start()
    try:
        run_gateway(settings, ready)
    except GatewayFailed as fault:
        raise click.ClickException(str(fault)) from None
    finally:
        hosts.stop()


async def _node_until_signal(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Node(settings).run(stop)


def _url(settings: Settings) -> str:
    server = settings.file.server
    host = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host  # noqa: S104
    return f"http://{host}:{server.port}"


def _welcome(settings: Settings, secret: str) -> None:
    """Wait until every model answers, then say how to call it. Runs beside the server."""
    url = _url(settings)
    while True:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                break
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    model = settings.file.models[0].id
    question = '[{"role": "user", "content": "What is the capital of France?"}]'
    body = f'{{"model": "{model}", "temperature": 0, "messages": {question}}}'
    print(f"BULKHEAD_URL={url}")  # noqa: T201 - these two lines are for `eval`
    print(f"BULKHEAD_API_KEY={secret}", flush=True)  # noqa: T201
    click.echo(
        "\nTry it:\n\n"
        f"curl {url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {secret}' \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d '{body}'\n",
        err=True,
    )
    sys.stderr.flush()
