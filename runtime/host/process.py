"""The child process: one engine, served over HTTP on a unix socket.

Reads its spec as one JSON line from stdin and says when it is ready as one JSON line on stdout;
at its end a second one has its counters.
A line `drain` on stdin lets running answers end first; stdin closing ends it at once, so that a
host never outlives its node.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import uvicorn
from msgspec import Struct, json

from engines.api import Engine, EngineError, EngineSpec, Stats
from engines.registry import load
from runtime import logs
from runtime.capability import Verifier
from runtime.config.tls import ServerTls
from runtime.host.app import Host
from runtime.host.drain import drained
from runtime.host.engine_thread import EngineThread
from runtime.wire import HOST_KEEP_ALIVE_S

LAST_S = 2.0  # for the counters at the end: the step that runs is waited for


class Remote(Struct, frozen=True, kw_only=True):
    """How it is reached from other machines: TLS, with a certificate at both ends."""

    host: str  # the address to listen on
    tls: ServerTls
    folder: str  # where relative paths start


class HostSpec(Struct, frozen=True, kw_only=True):
    """Everything a host is told."""

    id: str
    model: str
    engine: str
    path: str
    socket: str
    public_keys: dict[str, str]
    default_max_tokens: int
    options: dict[str, Any] = {}
    log_level: str = "info"
    dev: bool = False  # made by `bulkhead dev`: faults may be planted in its engine
    remote: Remote | None = None


class Ready(Struct, frozen=True, kw_only=True):
    """The line a host writes once it can serve, or why it can't."""

    ready: bool
    reason: str = ""
    port: int = 0  # on which gateways on other machines find it


class HostServer(uvicorn.Server):
    """Takes no signals: a host is told to stop through its stdin."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: see the class."""
        yield


def listen(path: Path) -> socket.socket:
    """A listening unix socket of mode 0600."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    sock.listen(1024)
    return sock


class Listener(NamedTuple):
    """A server of the host's app, and where it listens."""

    server: HostServer
    sock: socket.socket


async def serve(spec: HostSpec, pipe: int) -> int:
    """Load, answer, drain. Returns the exit code."""
    thread = EngineThread(lambda: build(spec))
    stdin = await stdin_reader()
    told = asyncio.ensure_future(stdin.readline())
    try:
        tls = _context(spec.remote) if spec.remote else None
        engine = await _load(thread, told)
    except Exception as fault:  # noqa: BLE001 - the node must hear the reason, whatever it is
        say(pipe, Ready(ready=False, reason=f"{type(fault).__name__}: {fault}"))
        return 1
    verifier = Verifier(spec.public_keys, spec.model)
    faults = spec.engine if spec.dev else ""
    host = Host(spec.model, engine, thread, verifier, spec.default_max_tokens, faults=faults)
    listeners = [Listener(_server(host), listen(Path(spec.socket)))]
    if spec.remote and tls:
        listeners.append(Listener(_server(host, tls), _listen_remotely(spec.remote)))
        listeners[1].server.server_state = listeners[0].server.server_state  # drained as one
    # What is loaded now stays. A collection that looks at it takes 30 ms, and all streams wait.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()  # see __main__
    code = await _serve_until_told(host, listeners, spec, pipe, (stdin, told))
    with suppress(EngineError, TimeoutError):
        async with asyncio.timeout(LAST_S):
            say(pipe, await thread.stats())
    thread.close()
    return code


# Certificates are read by what takes a while to import, and most hosts have none.
def _context(remote: Remote) -> ssl.SSLContext:
    from runtime.tls.contexts import server_context

    return server_context(remote.tls, Path(remote.folder))


def _listen_remotely(remote: Remote) -> socket.socket:
    from runtime.tls.listener import bind

    sock = bind(remote.host, 0)
    sock.listen(1024)
    return sock


async def _load(thread: EngineThread, told: asyncio.Future[bytes]) -> Engine:
    """The engine, loaded. A load can't be interrupted: if its node goes meanwhile, all ends."""
    loading = asyncio.ensure_future(thread.start())
    await asyncio.wait((loading, told), return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        os._exit(1)
    return await loading


def _server(host: Host, tls: ssl.SSLContext | None = None) -> HostServer:
    return HostServer(
        uvicorn.Config(
            host.asgi(),
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=HOST_KEEP_ALIVE_S,
            ssl_context_factory=(lambda _config, _default: tls) if tls else None,
        )
    )


async def _serve_until_told(
    host: Host,
    listeners: list[Listener],
    spec: HostSpec,
    pipe: int,
    node: tuple[asyncio.StreamReader, asyncio.Future[bytes]],
) -> int:
    stdin, told = node
    serving = asyncio.gather(*(one.server.serve(sockets=[one.sock]) for one in listeners))
    failed = asyncio.ensure_future(host.thread.failed.wait())
    while not all(one.server.started for one in listeners) and not serving.done():
        await asyncio.sleep(0.005)
    remote = listeners[1:]
    say(pipe, Ready(ready=True, port=remote[0].sock.getsockname()[1] if remote else 0))
    await asyncio.wait((serving, told, failed), return_when=asyncio.FIRST_COMPLETED)
    broken = host.thread.failed.is_set()
    host.control.draining = True
    gone = asyncio.ensure_future(_gone(stdin, told))
    ended = asyncio.ensure_future(drained(listeners[0].server, spec.socket, host.control.traffic))
    if broken:
        await asyncio.sleep(0.1)  # let the streams that run hear why they end
    else:  # for as long as it takes: the node has the patience, and ends us when it is over
        await asyncio.wait((serving, gone, ended), return_when=asyncio.FIRST_COMPLETED)
    for one in listeners:
        one.server.should_exit = True
        one.server.force_exit = broken or gone.done()
    await serving
    for task in (told, failed, gone, ended):
        task.cancel()
    return 1 if broken else 0


async def _gone(stdin: asyncio.StreamReader, told: asyncio.Future[bytes]) -> None:
    """Returns when nothing may be waited for: the node is gone, or closed stdin without `drain`."""
    if await told:
        await stdin.read()


def build(spec: HostSpec) -> Engine:
    """The engine named in the spec."""
    return load(spec.engine)(EngineSpec(spec.model, spec.path, spec.options))


def take_stdout() -> int:
    """The pipe to the node, for ourselves alone: what a library prints goes to stderr from now on.

    Nobody reads the pipe between its two lines, and a full one would stop whoever writes to it.
    """
    pipe = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return pipe


def say(pipe: int, line: Ready | Stats) -> None:
    """Write a line that the node waits for."""
    with suppress(BrokenPipeError):  # the node is gone, and what follows notices
        os.write(pipe, json.encode(line) + b"\n")


async def stdin_reader() -> asyncio.StreamReader:
    """Stdin, as a stream of this loop."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    return reader


def main() -> None:
    """`python -m runtime.host`."""
    pipe = take_stdout()
    logs.configure()
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # they reach the whole group; the node decides
        signal.signal(number, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):  # its node was killed before it had said all
        sys.exit(1)
    spec = json.decode(line, type=HostSpec)
    logs.set_level(spec.log_level)
    structlog.contextvars.bind_contextvars(host=spec.id, model=spec.model)
    sys.exit(asyncio.run(serve(spec, pipe)))


if __name__ == "__main__":
    main()
