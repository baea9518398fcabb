"""The node: owns one machine's hosts. Starts them as they are needed, within one memory budget.

Everything that happens wakes one loop, which looks at all pools and does what `scaling` and
`sharing` decide. What the node tells, and is told, on `node.sock` is in `node_app`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress

import structlog

from runtime import keyring, logs, rundir, weights
from runtime.capability import CAPABILITY_LABEL, Signer
from runtime.config.footprint import host_bytes, misfits
from runtime.config.models import ModelSettings
from runtime.host.process import HostSpec, Remote
from runtime.node.app import Door, NodeServer
from runtime.node.board import ACKNOWLEDGE_S, Board
from runtime.node.demand import Demands
from runtime.node.life import Surroundings
from runtime.node.machine import memory_for_hosts
from runtime.node.pool import Pool
from runtime.node.scaling import Load, Policy
from runtime.node.sharing import share
from runtime.node.terms import Recipe, Terms
from runtime.node_wire import GoneHost, Hosts
from runtime.settings import Settings, child_environment
from runtime.tls.listener import bind

log = structlog.get_logger()

NOTHING = Load()
GAVE_WAY = "another model needs its memory"
HOST_SOCKETS = f"{'[0-9a-f]' * 6}-*.sock"
LOOK_EVERY_S = 0.25  # for what only time changes: idle hosts, backoff, demand that isn't renewed


class Node:
    """A pool for every model of our own engines, and `node.sock`."""

    def __init__(self, settings: Settings, deployment: int = 0) -> None:
        self.board = Board()
        self.demands = Demands(time.monotonic)
        self._boot = secrets.token_hex(3)  # in the hosts' ids, which no later node may use again
        self._number = 0  # of hosts so far
        self._wake = asyncio.Event()
        self._sockets = rundir.make(settings.state_dir)
        root = keyring.load(settings.state_dir, settings.root_secret)
        self._public_keys = Signer(root.derive(CAPABILITY_LABEL)).public_keys()
        env = child_environment(settings, OMP_WAIT_POLICY="PASSIVE")
        self._around = Surroundings(env, self._note_change, self._acknowledged)
        self._door = _door(settings)
        self._pools: dict[str, Pool] = {}
        self.apply(settings, deployment)

    def apply(self, settings: Settings, deployment: int = 0) -> None:
        """Follow another configuration, in the node's own loop. Its weights must be there.

        A model that is new gets a pool; one that is gone has its hosts drained; one whose hosts
        would be made otherwise has them replaced. Other hosts don't notice.
        """
        self._settings, self._deployment = settings, deployment
        logs.set_level(settings.file.observability.level)
        self._budget = settings.file.hosts.memory_bytes or memory_for_hosts()
        terms = self._terms(settings)
        for model, found in terms.items():
            if model in self._pools:
                self._pools[model].adopt(found)
            else:
                self._pools[model] = Pool(model, found, self._spec, self._around)
        for model in self._pools.keys() - terms.keys():
            self._pools[model].remove(time.monotonic())
        self._note_change()

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the hosts until `stop`, then drain them."""
        path = rundir.node_socket(self._settings.state_dir)
        for left in self._sockets.glob(HOST_SOCKETS):  # by the hosts of a node that was killed
            left.unlink(missing_ok=True)
        server = NodeServer(self, path, self._door)
        serving = asyncio.ensure_future(server.serve())
        looking = asyncio.ensure_future(self._look())
        log.info("node_started", socket=str(path), models=list(self._pools), memory=self._budget)
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((stopping, looking), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        looking.cancel()
        drain_s = self._settings.file.server.drain_s
        await asyncio.gather(*(pool.stop(drain_s) for pool in self._pools.values()))
        self.board.close()  # whoever still polls is answered, and not kept waiting again
        server.stop()
        await serving
        with suppress(asyncio.CancelledError):
            await looking  # raises what broke it

    @property
    def is_dev(self) -> bool:
        """Whether `bulkhead dev` runs it."""
        return self._settings.dev

    def hosts(self) -> Hosts:
        """All hosts and models as of now."""
        pools = self._pools.values()
        return Hosts(
            version=self.board.version,
            deployment=self._deployment,
            hosts=[life.view for pool in pools for life in pool.lives],
            models=[pool.view() for pool in pools],
        )

    def gone(self) -> list[GoneHost]:
        """Hosts that ended lately."""
        return self._around.departed.lately(time.monotonic())

    def restart(self, model: str) -> bool:
        """Forget a model's failures and replace its hosts; whether there is such a model."""
        pool = self._pools.get(model)
        if pool is None or pool.is_removed:
            return False
        pool.restart()
        log.info("model_restarted", model=model)
        self._note_change()
        return True

    def look_again(self) -> None:
        """Something was told: decide anew, soon."""
        self._wake.set()

    async def _look(self) -> None:
        while True:
            try:
                self._reconcile(time.monotonic())
            except Exception:  # a bug; hosts that nobody looks after would be worse
                log.exception("node_look_broke")
                await asyncio.sleep(LOOK_EVERY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._wake.wait()
            self._wake.clear()

    def _reconcile(self, now: float) -> None:
        """One look at everything: stop what is too much, start what is needed and has memory."""
        loads = self.demands.loads()
        for model, pool in list(self._pools.items()):
            pool.load = loads.get(model, NOTHING)
            pool.settle(now)
            if pool.is_over(now):
                del self._pools[model]
        shares = share(
            self._budget,
            [holder for pool in self._pools.values() for holder in pool.holders(now)],
            [ask for pool in self._pools.values() if (ask := pool.ask(now))],
            {model: pool.promised for model, pool in self._pools.items()},
            now,
            self._settings.file.hosts.yield_s,
        )
        for ask in shares.starts:
            self._pools[ask.model].start_host()
        for holder in shares.leaving:
            self._pools[holder.model].retire(holder.id, GAVE_WAY)
        someone_waits = any(not ask.is_optional for ask in shares.waiting)
        for ask in shares.waiting:
            if not (ask.is_optional and someone_waits):
                self._pools[ask.model].refuse(ask)

    def _terms(self, settings: Settings) -> dict[str, Terms]:
        """What the configuration says of each model's hosts."""
        file = settings.file
        ours = [model for model in file.models if not model.is_attached]
        folders = [str(weights.folder(settings, model)) for model in ours]
        sizes = [host_bytes(model, folder) for model, folder in zip(ours, folders, strict=True)]
        unfit = {ours[i].id: reason for i, _, reason in misfits(ours, sizes, self._budget)}
        for model, reason in unfit.items():
            log.error("model_failed", model=model, reason=reason)
        return {
            model.id: Terms(
                recipe=Recipe(model.engine, folder, model.options, model.default_max_tokens),
                policy=_policy(model),
                bytes=size,
                settings=file.hosts,
                patience_s=file.limits.wall_s,
                misfit=unfit.get(model.id, ""),
            )
            for model, folder, size in zip(ours, folders, sizes, strict=True)
        }

    def _spec(self, model: str, recipe: Recipe) -> HostSpec:
        """Everything that the next host is told."""
        self._number += 1
        name = f"{self._boot}-{self._number}"
        return HostSpec(
            id=f"host-{name}",
            model=model,
            engine=recipe.engine,
            path=recipe.path,
            socket=str(self._sockets / f"{name}.sock"),
            public_keys=self._public_keys,
            default_max_tokens=recipe.default_max_tokens,
            options=recipe.options,
            log_level=self._settings.file.observability.level,
            dev=self._settings.dev,
            remote=self._door.remote if self._door else None,
        )

    async def _acknowledged(self) -> None:
        await self.board.acknowledged(ACKNOWLEDGE_S)

    def _note_change(self) -> None:
        self.board.change()
        self._wake.set()


def _door(settings: Settings) -> Door | None:
    """For gateways on other machines. Raises PortInUse or BadCertificate."""
    node = settings.file.node
    if not node.port:
        return None
    remote = Remote(host=node.host, tls=node.tls, folder=str(settings.folder))
    return Door(bind(node.host, node.port, "node.port"), remote)


def _policy(model: ModelSettings) -> Policy:
    return Policy(
        model.min_hosts,
        model.max_hosts,
        model.max_in_flight,
        model.tokens_per_host,
        model.idle_timeout_s,
    )
