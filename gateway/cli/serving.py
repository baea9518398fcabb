"""`bulkhead dev`, `serve`, `gateway` and `node`: the processes."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import click
import msgspec

from gateway import address
from gateway.address import Address
from gateway.admin.thread import AdminThread
from gateway.cli.api_keys import pepper
from gateway.cli.listening import Addresses, admin_port_option, listener
from gateway.cli.options import Places, database, load, locate, places
from gateway.cli.watching import Watch
from gateway.demo import demo_key
from gateway.live.view import LiveView, can_show
from gateway.processes import local_ca
from gateway.processes.server import NodeThread, keep_hosts, node_of, own_store, run_gateway
from gateway.processes.workers import GatewayFailed
from gateway.root import keyring_of, refuse_if_lost
from gateway.stores import database_of
from runtime import logs, open_files, state, weights
from runtime.config import overrides
from runtime.deploy import reload
from runtime.deploy.reload import Start
from runtime.deploy.rollout import by
from runtime.deploy.running import running
from runtime.deployments import Deployments
from runtime.rundir import held
from runtime.settings import Settings
from runtime.tls.listener import bind

deployed_option = click.option(
    "--deployed",
    is_flag=True,
    help="Start with the current deployment, whatever the file says by now. "
    "With the file if nothing was deployed yet.",
)


@click.command()
@listener
@click.option("--https", is_flag=True, help="Serve HTTPS, with a certificate made for it.")
@click.option("--json", "as_json", is_flag=True, help="JSON log lines, on a terminal too.")
@places
def dev(addresses: Addresses, https: bool, as_json: bool, places: Places) -> None:
    """Serve on this machine with a demo tenant, whose key is printed.

    A change of the config file is deployed as soon as it's saved. On a terminal, requests scroll
    past over a panel of models and hosts.
    """
    settings = _settings(load(places, dev=True), addresses)
    watch = Watch(settings)
    with _ours(settings, with_node=True) as sock:
        if https:
            settings = _with_local_tls(settings)
        is_live = can_show() and not as_json
        with (
            LiveView(settings, url_of(settings)) if is_live else nullcontext() as view,
            AdminThread(settings, "dev") as admin,
        ):
            if view:
                view.follow(admin)
            weights.ensure(settings)
            with database(settings, create=True) as db:
                secret = demo_key(db, settings.state_dir, pepper(settings))
            start = _deploy(settings, "bulkhead dev")
            watch.start()
            _serve(start, sock, ready=lambda: _welcome(settings, secret))


@click.command()
@listener
@deployed_option
@places
def serve(addresses: Addresses, deployed: bool, places: Places) -> None:
    """Serve: the gateway, and the node with its hosts."""
    settings = _settings(_chosen(places, deployed=deployed), addresses)
    with _ours(settings, with_node=True) as sock, AdminThread(settings, "serve"):
        weights.ensure(settings)
        _migrate(settings)
        _serve(_deploy(settings, "bulkhead serve"), sock, ready=lambda: _announce(settings))


@click.command()
@listener
@deployed_option
@places
def gateway(addresses: Addresses, deployed: bool, places: Places) -> None:
    """Run the gateway alone, in front of the node that runs on the same state folder.

    It starts with what is deployed to that node, or with its file if no node runs there.
    """
    deployed = deployed or _has_node(places)
    settings = _settings(_chosen(places, deployed=deployed), addresses)
    with _ours(settings, with_node=False) as sock, AdminThread(settings, "gateway"):
        _migrate(settings)
        _run_gateway(_deploy(settings, "bulkhead gateway"), sock, lambda: _announce(settings))


@click.command()
@admin_port_option
@deployed_option
@places
def node(admin_port: int | None, deployed: bool, places: Places) -> None:
    """Run this machine's hosts alone; `bulkhead gateway` finds them by the state folder."""
    settings = _settings(_chosen(places, deployed=deployed), Addresses(admin_port=admin_port))
    with (
        state.own_when_left(settings.state_dir, "node"),
        held(settings.state_dir),
        AdminThread(settings, "node"),
    ):
        if isinstance(database_of(settings), Path):  # a node may not reach the gateways' server
            refuse_if_lost(settings)
        weights.ensure(settings)
        asyncio.run(_node_until_signal(_deploy(settings, "bulkhead node")))


def _chosen(places: Places, *, deployed: bool) -> Settings:
    """The file's settings, or the current deployment's if that is wanted and there is one."""
    if not deployed:
        return load(places, dev=False)
    state_dir = locate(places).state_dir
    current = Deployments(state_dir).current()
    if current is None:
        return load(places, dev=False)
    if places.variables:
        raise click.UsageError("a deployment has its own --var; leave them out")
    return reload.load(state_dir, current.number, dev=False)


def _has_node(places: Places) -> bool:
    return any(process.role == "node" for process in running(locate(places).state_dir))


def _deploy(settings: Settings, command: str) -> Start:
    """Make what we start with the current deployment: it's what our workers will load."""
    book = Deployments(settings.state_dir)
    with book.writing():
        current = book.add(settings.text, settings.origin, by=by(command), message="start")
    return Start(settings, current, current.number)


def _settings(settings: Settings, given: Addresses) -> Settings:
    """With what the command line says, which wins; this process is made ready to serve."""
    logs.configure()
    open_files.raise_limit()
    return given.over(settings)


@contextmanager
def _ours(settings: Settings, *, with_node: bool) -> Iterator[socket.socket]:
    """What we alone may have: the state folder's roles, then the port.

    A folder in use mostly has its port in use too, and another port would be no help. Raises
    StateInUse or PortInUse.
    """
    with ExitStack() as stack:
        if with_node:
            stack.enter_context(state.own_when_left(settings.state_dir, "node"))
        stack.enter_context(own_store(settings.state_dir))
        stack.enter_context(held(settings.state_dir))
        yield stack.enter_context(bind(settings.file.server.host, settings.file.server.port))


def _with_local_tls(settings: Settings) -> Settings:
    folder = settings.state_dir / "tls"
    local_ca.ensure(folder, local_ca.names_here())
    server = msgspec.structs.replace(settings.file.server, tls=overrides.local_tls(str(folder)))
    file = msgspec.structs.replace(settings.file, server=server)
    return msgspec.structs.replace(settings, file=file, local_tls=str(folder))


def _migrate(settings: Settings) -> None:
    """The store is brought to this version's schema, or refused, before anything starts."""
    refuse_if_lost(settings)
    with database(settings, create=True):
        keyring_of(settings)


def _run_gateway(start: Start, sock: socket.socket, ready: Callable[[], None]) -> None:
    """Serve; commands find it by the state folder meanwhile."""
    settings = start.settings
    authority = f"{settings.local_tls}/ca.pem" if settings.local_tls else ""
    here = Address(url=url_of(settings), authority=authority)

    def serving() -> None:
        address.publish(settings.state_dir, "gateway", here)
        ready()

    try:
        run_gateway(start, sock, serving)
    finally:
        address.withdraw(settings.state_dir, "gateway")


def _serve(start: Start, sock: socket.socket, ready: Callable[[], None]) -> None:
    hosts = NodeThread(start)
    hosts.start()
    try:
        _run_gateway(start, sock, ready)
    finally:
        hosts.stop()
    if hosts.is_broken:
        raise GatewayFailed("the node broke; see the log above")


async def _node_until_signal(start: Start) -> None:
    stop = asyncio.Event()

    def told() -> None:
        state.say_stopping(start.settings.state_dir)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, told)
    await keep_hosts(node_of(start), start, stop)


def url_of(settings: Settings) -> str:
    """Where the gateway is called from this machine."""
    server = settings.file.server
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)  # noqa: S104
    scheme = "https" if server.tls.cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{server.port}"


def _announce(settings: Settings) -> None:
    """Say where we serve."""
    click.echo(f"Serving on {url_of(settings)}", err=True)


def _welcome(settings: Settings, secret: str) -> None:
    """Say how to call a model."""
    url = url_of(settings)
    ca = f"{settings.local_tls}/ca.pem" if settings.local_tls else ""
    models = sorted(settings.file.models, key=lambda model: model.is_attached)
    question = '[{"role": "user", "content": "What is the capital of France?"}]'
    body = f'{{"model": "{models[0].id}", "temperature": 0, "messages": {question}}}'
    if ca:
        click.echo(f"BULKHEAD_CA={ca}")
    click.echo(f"BULKHEAD_URL={url}\nBULKHEAD_API_KEY={secret}")
    click.echo(
        "\nTry it:\n\n"
        f"curl {f'--cacert {ca} ' if ca else ''}{url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {secret}' \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d '{body}'\n",
        err=True,
    )
