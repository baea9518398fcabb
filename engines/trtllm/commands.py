"""The command lines of a model's servers, as a text that says what each is for."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from engines.trtllm import command
from engines.trtllm.command import Address
from engines.trtllm.render import Unrenderable
from engines.trtllm.roles import Role, is_disaggregated, roles
from engines.trtllm.settings import TrtSettings

WATCHED = "/dev/shm/bulkhead-guard-{port}"  # noqa: S108 - made private before it is used


class Served(NamedTuple):
    """A model as it is configured."""

    id: str
    path: str  # the checkpoint's folder, absolute
    urls: tuple[str, ...]  # of its servers, or of its front
    trt: TrtSettings
    guard_urls: tuple[str, ...] = ()  # of its servers, where each has its own

    @property
    def needs_launchers(self) -> bool:
        """Whether the gateway sends it nothing before launchers tell what its guards see."""
        return self.trt.guard and bool(self.trt.guard_url or any(self.guard_urls))


class Laid(NamedTuple):
    """Where the files lie that were rendered."""

    folder: str
    views: Mapping[str, str]  # by phase, the folder in it of a checkpoint that had to be changed

    def config(self, role: Role) -> str:
        """A role's YAML."""
        return f"{self.folder}/{role.phase}.yaml"

    def checkpoint(self, role: Role) -> str:
        """What it serves."""
        view = self.views.get(role.phase)
        return f"{self.folder}/{view}" if view else role.path

    @property
    def python(self) -> str:
        """The guard's modules."""
        return f"{self.folder}/python"


def command_text(model: Served, laid: Laid, gpus_per_machine: int) -> str:
    """All of them, as a shell reads them."""
    return "\n".join(_lines(model, laid, gpus_per_machine)) + "\n"


class Place(NamedTuple):
    """One server: of which kind, where it listens, and which GPUs of that machine it has."""

    role: Role
    at: Address
    gpus: tuple[int, ...]  # (): all, of several machines
    is_alone: bool  # on its machine, as far as this model goes

    @property
    def num_gpus(self) -> str:
        """In words."""
        return f"{self.role.ranks} GPU{'s' if self.role.ranks > 1 else ''}"


def places(model: Served, gpus_per_machine: int) -> list[Place]:
    """All servers of a model. Those on one machine share its GPUs out, in order.

    Raises Unrenderable where a machine has too few.
    """
    servers = [
        (role, at) for role in roles(model.path, model.trt) for at in addresses(role, model.urls)
    ]
    beside = Counter(at.host for _, at in servers)
    taken = Counter[str]()
    found = []
    for role, at in servers:
        first = taken[at.host]
        taken[at.host] += min(role.ranks, gpus_per_machine)
        gpus = tuple(range(first, first + role.ranks)) if role.ranks <= gpus_per_machine else ()
        found.append(Place(role, at, gpus, beside[at.host] == 1))
    for host, num_gpus in taken.items():
        if num_gpus > gpus_per_machine:
            raise Unrenderable(
                f"the servers at {host} need {num_gpus} GPUs, and it has {gpus_per_machine}"
            )
    return found


def addresses(role: Role, urls: tuple[str, ...]) -> list[Address]:
    """Where each server of a role listens."""
    return [command.address_of(url) for url in (urls if role.phase == "serve" else role.urls)]


def _lines(model: Served, laid: Laid, gpus_per_machine: int) -> Iterator[str]:
    trt = model.trt
    yield f"# How to start {model.id}, one server at a time. None of them asks for a key or speaks"
    yield "# TLS: let nobody but the gateway reach their ports."
    if model.needs_launchers:
        yield "#"
        yield "# The gateway sends nothing to one whose launcher doesn't tell what its guard sees."
        yield f"# So have each started by `bulkhead trt launch {shlex.quote(model.id)}`; what is"
        yield "# started by these lines alone can be tried by hand."
    for place in places(model, gpus_per_machine):
        role, at = place.role, place.at
        yield from ("", f"# {role.phase} at {at.host}:{at.port}, {place.num_gpus}:")
        yield from _server(trt, place, laid, gpus_per_machine)
    if is_disaggregated(trt):
        yield from ("", "# The front, which the gateway calls; it needs no GPU:")
        yield command.line(command.front(trt, f"{laid.folder}/front.yaml"), command.ENVIRONMENT)


def _server(trt: TrtSettings, place: Place, laid: Laid, gpus_per_machine: int) -> Iterator[str]:
    role, at = place.role, place.at
    watched = WATCHED.format(port=at.port)
    env = command.environment(trt, laid.python, watched)
    plain = command.serve(trt, role, laid.config(role), at, laid.checkpoint(role))
    if trt.guard:  # nothing is started over a folder that somebody else has put there
        yield "# (a folder that is left of a run that has ended: remove it first)"
        yield command.line(["mkdir", "-m", "700", watched]) + " &&"
    if not place.gpus:
        yield "# on several machines, which have these files at the same place; put in their names"
        if trt.image:
            yield "# (with the image, see: bulkhead trt render --as slurm)"
        hosts = hosts_of(at.host, role.ranks, gpus_per_machine)
        yield command.line(command.over_machines(trt, plain, hosts), env)
    elif trt.image:
        yield "# (with podman: --device nvidia.com/gpu=all instead of --gpus)"
        mounts = {laid.folder: False, role.path: False} | ({watched: True} if trt.guard else {})
        gpus = str(role.ranks) if place.is_alone else command.devices(place.gpus)
        yield command.line(command.container(trt.image, plain, env, mounts, gpus))
    else:
        own = {} if place.is_alone else {command.DEVICES: ",".join(map(str, place.gpus))}
        yield command.line(plain, env | own)


def hosts_of(first: str, ranks: int, gpus_per_machine: int) -> dict[str, int]:
    """How many GPUs are used of each machine. The first serves; nobody knows the others' names."""
    full, rest = divmod(ranks, gpus_per_machine)
    used = [gpus_per_machine] * full + [rest] * bool(rest)
    names = [first, *(f"MACHINE-{number}" for number in range(2, len(used) + 1))]
    return dict(zip(names, used, strict=True))
