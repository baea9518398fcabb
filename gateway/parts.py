"""What a gateway process has for as long as it lives; an Env is made of it, and of settings.

Settings change while requests run. So what they can't change (the store, the keys' directory, the
connections) is opened once, and whatever they say is in the Env: a new one for each deployment,
given to the requests that come after it. Nothing of an old Env needs to be closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from weakref import WeakSet

import structlog
from anyio import CapacityLimiter, to_thread
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.beside import running
from gateway.budgets.sender import AlertSender
from gateway.catalog.catalog import catalog_of
from gateway.catalog.facts import facts_of
from gateway.clock import SYSTEM_CLOCK
from gateway.cors import cors_of
from gateway.cursors import Cursors
from gateway.door import Door, keep
from gateway.env import Env
from gateway.events import EventSender
from gateway.identity.auth import Authenticator, identity_keys
from gateway.identity.issuers import Issuers
from gateway.identity.last_used import LastUsed
from gateway.identity.networks import Proxies
from gateway.ids import new_id
from gateway.in_flight import InFlight
from gateway.ledger import Ledger
from gateway.limits.admission import Admission
from gateway.limits.gate import Gate
from gateway.limits.opened import open_gate
from gateway.limits.rules import rules_of
from gateway.living import kept_ledger
from gateway.money.book import PriceBook, prepare
from gateway.money.checkpoints import LABEL as CHECKPOINT_LABEL, key_of
from gateway.money.keeping import Keeper
from gateway.money.wanted import wanted_of
from gateway.owning import in_use, own_store
from gateway.payloads.payloads import Payloads
from gateway.pulse import Pulse
from gateway.relay.attached import AttachedServers
from gateway.relay.guards import Guards
from gateway.relay.health import Health
from gateway.relay.hosts import HostDirectory
from gateway.relay.node_link import LocalNode, NodeAddress, RemoteNode
from gateway.relay.placement import Placement
from gateway.relay.relay import Relay
from gateway.root import agree, keyring_of
from gateway.store.address import Database
from gateway.store.current import bring_up_to_date
from gateway.store.directory import KeyDirectory
from gateway.store.writer import Writer
from gateway.stores import database_of
from gateway.telemetry.telemetry import Telemetry
from gateway.usage.manifest import signing_key
from gateway.usage.names import names_of
from runtime import rundir
from runtime.capability import CAPABILITY_LABEL, Signer
from runtime.config.route_patterns import compile_routes
from runtime.settings import Settings

log = structlog.get_logger()

RESTORE_S = 30.0  # beyond a drain, for a restore to put the store back
REPORT_THREADS = 4


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that all Envs of a process share."""

    alerts: AlertSender
    auth: Authenticator
    directory: KeyDirectory
    gate: Gate
    events: EventSender
    hosts: HostDirectory
    issuers: Issuers
    last_used: LastUsed
    placement: Placement
    attached: AttachedServers
    health: Health
    door: Door
    ledger: Ledger
    writer: Writer
    books: WeakSet[PriceBook]  # of all settings that requests still have
    signer: Signer
    salt_key: bytes
    cursors: Cursors
    manifest_key: Ed25519PrivateKey
    database: Database
    report_threads: CapacityLimiter
    in_flight: InFlight
    pulse: Pulse
    telemetry: Telemetry
    payloads: Payloads

    def env(self, settings: Settings, newest: Callable[[], Env] | None = None) -> Env:
        """What requests are given under these settings. `newest`: see Env."""
        relay_settings = settings.file.relay
        return Env(
            admission=Admission(rules_of(settings.file), self.gate, self.directory),
            auth=self.auth,
            catalog=catalog_of(
                settings.file.models, settings.secrets, facts_of(settings), settings.folder
            ),
            clock=SYSTEM_CLOCK,
            directory=self.directory,
            events=self.events,
            hosts=self.hosts,
            last_used=self.last_used,
            ledger=self.ledger,
            relay=Relay(self.placement, self.attached, self.signer, self.salt_key, relay_settings),
            database=self.database,
            report_threads=self.report_threads,
            in_flight=self.in_flight,
            pulse=self.pulse,
            telemetry=self.telemetry,
            payloads=self.payloads,
            limits=settings.file.limits,
            observability=settings.file.observability,
            prices=self.prices(settings),
            config_hash=settings.config_hash,
            proxies=Proxies(settings.file.server.trusted_proxies),
            cors=cors_of(settings.file.tenants),
            is_routed=compile_routes(settings.file.routes),
            keep_alive_s=relay_settings.keep_alive_s,
            bill_names=names_of(settings.file),
            cursors=self.cursors,
            manifest_key=self.manifest_key,
            newest=newest,
        )

    def prices(self, settings: Settings) -> PriceBook:
        """The prices of these settings, which a restore makes forget what they knew."""
        book = PriceBook(wanted_of(settings.file), self.writer, SYSTEM_CLOCK, self.door)
        self.books.add(book)
        return book

    async def keep(self, settings: Settings, env: Env) -> None:
        """Reach what these settings, in force by now, name, and nothing else. Answers may end.

        Whoever comes during a restore waits as long as they say.
        """
        self.door.patience_s = _patience_s(settings)
        await prepare(env.prices)
        self.hosts.keep(_nodes(settings))
        self.issuers.keep(settings.file.issuers, settings.folder)
        connect_s = settings.file.relay.connect_s
        await self.attached.keep(env.catalog, connect_s)
        self.health.settings = settings.file.relay
        await self.telemetry.keep(settings)
        await self.payloads.keep(settings, lambda name: self.directory.tenant(name) is not None)


@asynccontextmanager
async def open_parts(settings: Settings, *, is_worker: bool = False) -> AsyncIterator[Parts]:
    """Open the parts, in the order they need each other; close them in reverse.

    A worker's parent owns the store; a process without one does so itself.
    """
    root = await to_thread.run_sync(keyring_of, settings)
    database = database_of(settings)
    async with AsyncExitStack() as stack:
        if not is_worker:
            stack.enter_context(await own_store(settings.state_dir))
        boot_id, door = new_id("boot"), Door(_patience_s(settings))
        use = await stack.enter_async_context(in_use(database))
        await to_thread.run_sync(bring_up_to_date, database)
        await to_thread.run_sync(agree, database, root)
        writer = Writer(database)
        writer.start()
        stack.push_async_callback(to_thread.run_sync, writer.close)
        keeper = Keeper(writer, SYSTEM_CLOCK, door, key_of(root.derive(CHECKPOINT_LABEL)))
        ledger = await stack.enter_async_context(
            kept_ledger(settings, writer, boot_id, door, keeper)
        )
        directory = KeyDirectory(database, SYSTEM_CLOCK, include_demo=settings.dev)
        await directory.refresh_if_changed()
        await stack.enter_async_context(running(directory.watch(asyncio.Event())))
        books: WeakSet[PriceBook] = WeakSet()
        if use is not None:
            look_again = partial(_look_again, directory, books)
            keeping = keep(door, use, use.database, ledger.flush, look_again)
            await stack.enter_async_context(running(keeping))
        last_used = await stack.enter_async_context(_last_used(writer, door))
        issuers = Issuers(SYSTEM_CLOCK)
        issuers.keep(settings.file.issuers, settings.folder)
        placement = Placement()
        hosts = HostDirectory(_nodes(settings), placement)
        stack.push_async_callback(hosts.aclose)
        await stack.enter_async_context(running(hosts.follow()))
        attached = AttachedServers()
        stack.push_async_callback(attached.aclose)
        salt_key = root.derive("cache-salt")
        health = Health(attached, placement, salt_key, settings.file.relay)
        for follows in (health.follow(), Guards(attached, placement).follow()):
            await stack.enter_async_context(running(follows))
        events, telemetry = _tellers(stack, settings)
        payloads = Payloads(boot_id)
        stack.push_async_callback(payloads.aclose)
        gate = await stack.enter_async_context(_gate(settings, boot_id))
        yield Parts(
            alerts=AlertSender(database, writer, door, SYSTEM_CLOCK),
            auth=Authenticator(directory, SYSTEM_CLOCK, identity_keys(root), issuers),
            directory=directory,
            gate=gate,
            events=events,
            hosts=hosts,
            issuers=issuers,
            last_used=last_used,
            placement=placement,
            attached=attached,
            health=health,
            door=door,
            ledger=ledger,
            writer=writer,
            books=books,
            signer=Signer(root.derive(CAPABILITY_LABEL)),
            salt_key=salt_key,
            cursors=Cursors(root.derive("cursors")),
            manifest_key=signing_key(root),
            database=database,
            report_threads=CapacityLimiter(REPORT_THREADS),
            in_flight=InFlight(),
            pulse=Pulse(),
            telemetry=telemetry,
            payloads=payloads,
        )


@asynccontextmanager
async def _last_used(writer: Writer, door: Door) -> AsyncIterator[LastUsed]:
    last_used = LastUsed(writer, door, SYSTEM_CLOCK)
    async with running(last_used.follow()):
        yield last_used


def _gate(settings: Settings, boot_id: str) -> AbstractAsyncContextManager[Gate]:
    limits = settings.file.limits
    password = settings.secrets.get(limits.redis.password_secret, "")
    return open_gate(limits, password, boot_id, settings.folder)


def _tellers(stack: AsyncExitStack, settings: Settings) -> tuple[EventSender, Telemetry]:
    events = EventSender(rundir.events_socket(settings.state_dir), SYSTEM_CLOCK)
    stack.callback(events.close)
    telemetry = Telemetry()
    stack.push_async_callback(telemetry.aclose)
    return events, telemetry


def _patience_s(settings: Settings) -> float:
    """A restore may take a drain, and then the store is put back."""
    return settings.file.server.drain_s + RESTORE_S


def _nodes(settings: Settings) -> list[NodeAddress]:
    """This machine's, whether or not one runs here, and those on other machines."""
    connect_s = settings.file.relay.connect_s
    socket = str(rundir.node_socket(settings.state_dir))
    others = (RemoteNode(node, settings.folder, connect_s) for node in settings.file.nodes)
    return [LocalNode(socket, connect_s), *others]


async def _look_again(directory: KeyDirectory, books: Iterable[PriceBook]) -> None:
    """The store has other content."""
    for book in books:
        book.forget()
    await directory.refresh_if_changed()
