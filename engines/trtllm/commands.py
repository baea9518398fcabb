"""The command lines of a model's servers, as a text that says what each is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from engines.trtllm import command
from engines.trtllm.command import Address
from engines.trtllm.roles import Role, is_disaggregated, roles
from engines.trtllm.settings import TrtSettings

WATCHED = "/dev/shm/bulkhead-guard-{port}"  # noqa: S108 - made private before it is used


class Served(NamedTuple):
    """A model as it is configured."""

    id: str
    path: str  # the checkpoint's folder, absolute
    urls: tuple[str, ...]  # of its servers, or of its front
    trt: TrtSettings


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


def addresses(role: Role, urls: tuple[str, ...]) -> list[Address]:
    """Where each server of a role listens."""
    return [command.address_of(url) for url in (urls if role.phase == "serve" else role.urls)]


def _lines(model: Served, laid: Laid, gpus_per_machine: int) -> Iterator[str]:
    trt = model.trt
    yield f"# How to start {model.id}, one server at a time. None of them asks for a key or speaks"
    yield "# TLS: let nobody but the gateway reach their ports."
    for role in roles(model.path, trt):
        for at in addresses(role, model.urls):
            s = "s" if role.ranks > 1 else ""
            yield from ("", f"# {role.phase} at {at.host}:{at.port}, {role.ranks} GPU{s}:")
            yield from _server(trt, role, laid, at, gpus_per_machine)
    if is_disaggregated(trt):
        yield from ("", "# The front, which the gateway calls; it needs no GPU:")
        yield command.line(command.front(trt, f"{laid.folder}/front.yaml"), command.ENVIRONMENT)


def _server(
    trt: TrtSettings, role: Role, laid: Laid, at: Address, gpus_per_machine: int
) -> Iterator[str]:
    watched = WATCHED.format(port=at.port)
    env = command.environment(trt, laid.python, watched)
    plain = command.serve(trt, role, laid.config(role), at, laid.checkpoint(role))
    if trt.guard:  # without -p: a folder that somebody else has put there is refused
        yield command.line(["mkdir", "-m", "700", watched])
    if role.ranks > gpus_per_machine:
        yield "# on several machines, which have these files at the same place; put in their names"
        if trt.image:
            yield "# (with the image, see: bulkhead trt render --as slurm)"
        hosts = hosts_of(at.host, role.ranks, gpus_per_machine)
        yield command.line(command.over_machines(trt, plain, hosts), env)
    elif trt.image:
        yield "# (with podman: --device nvidia.com/gpu=all instead of --gpus)"
        mounts = {laid.folder: False, role.path: False} | ({watched: True} if trt.guard else {})
        yield command.line(command.container(trt.image, plain, env, mounts, role.ranks))
    else:
        yield command.line(plain, env)


def hosts_of(first: str, ranks: int, gpus_per_machine: int) -> dict[str, int]:
    """How many GPUs are used of each machine. The first serves; nobody knows the others' names."""
    full, rest = divmod(ranks, gpus_per_machine)
    used = [gpus_per_machine] * full + [rest] * bool(rest)
    names = [first, *(f"MACHINE-{number}" for number in range(2, len(used) + 1))]
    return dict(zip(names, used, strict=True))
