"""Command lines that start what was rendered: in TensorRT-LLM's own venv, or in a container."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from engines.trtllm import folder
from engines.trtllm.render import Unrenderable
from engines.trtllm.roles import Role
from engines.trtllm.settings import TrtSettings

PORT = 8000  # trtllm-serve's own
PLAIN = 80  # where the gateway calls if a URL of plain HTTP names none
# Newer releases tell their maker how they are used, unless they are told not to.
DEVICES = "CUDA_VISIBLE_DEVICES"
ENVIRONMENT = {"TRTLLM_NO_USAGE_STATS": "1"}


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


def address_of(url: str) -> Address:
    """Of a server's URL. Behind TLS, which it has none of, it listens to this machine alone."""
    parts = urlsplit(url if "://" in url else f"//{url}")
    is_fronted = parts.scheme == "https"
    port = parts.port or (PLAIN if parts.scheme == "http" else PORT)
    return Address("127.0.0.1" if is_fronted else parts.hostname or "", port)


def serve(trt: TrtSettings, role: Role, config: str, at: Address, path: str = "") -> list[str]:
    """One server. `config` is its YAML; `path` the checkpoint, if it isn't the role's."""
    return [
        program(trt, "trtllm-serve"),
        path or role.path,
        *("--backend", "pytorch"),
        *("--host", at.host),
        *("--port", str(at.port)),
        *("--config", config),
    ]


def front(trt: TrtSettings, config: str) -> list[str]:
    """The front of context and generation servers; its YAML says where it listens."""
    return [program(trt, "trtllm-serve"), "disaggregated", "-c", config]


def environment(trt: TrtSettings, python: str, guard_folder: str) -> dict[str, str]:
    """What a server needs in its environment. `python` holds the guard's modules.

    Raises Unrenderable where it can't be named there.
    """
    if not trt.guard:
        return dict(ENVIRONMENT)
    if ":" in python:
        raise Unrenderable(f"{python}: PYTHONPATH can't name a folder with a :")
    return ENVIRONMENT | {"PYTHONPATH": python} | dict.fromkeys(folder.VARIABLES, guard_folder)


def over_machines(trt: TrtSettings, command: Sequence[str], hosts: Mapping[str, int]) -> list[str]:
    """One server whose GPUs are on several machines, by MPI: how many on each. The first serves."""
    return [
        "mpirun",
        *("-n", str(sum(hosts.values()))),
        *("--host", ",".join(f"{host}:{num_gpus}" for host, num_gpus in hosts.items())),
        *(part for name in sorted(_exported(trt)) for part in ("-x", name)),
        program(trt, "trtllm-llmapi-launch"),
        *command,
    ]


def _exported(trt: TrtSettings) -> set[str]:
    return set(environment(trt, "", ""))


def container(
    image: str,
    command: Sequence[str],
    env: Mapping[str, str],
    mounts: Mapping[str, bool],
    gpus: int | str,
    user: str = "",
) -> list[str]:
    """The same command in a container. `mounts`: folders, and whether each is written to; `gpus`:
    how many, or which (`devices`).

    Folders keep their paths, since links lead from one to another; and it has the machine's
    network, so that it listens where it would without a container. `user`: a uid, or uid:gid.
    """
    env = dict(env) | ({"HOME": "/tmp"} if user else {})  # noqa: S108 - the container's own
    return [
        *("docker", "run", "--rm", "--init", "--network", "host"),
        *("--gpus", str(gpus), "--ipc", "host"),
        *("--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
        *(("--user", user) if user else ()),
        *(part for pair in sorted(env.items()) for part in ("-e", "=".join(pair))),
        *(part for mount in sorted(mounts) for part in ("-v", _mount(mount, mounts[mount]))),
        image,
        *command,
    ]


def devices(gpus: Sequence[int]) -> str:
    """Certain GPUs, as docker reads it: a field of CSV."""
    return f'"device={",".join(map(str, gpus))}"'


def _mount(place: str, is_writable: bool) -> str:
    return f"{mountable(place)}:{place}" + ("" if is_writable else ":ro")


def mountable(place: str) -> str:
    """A folder that a container can be given. Raises Unrenderable for one that can't be named."""
    if set(place) & set(",:"):
        raise Unrenderable(f"{place}: a container's mounts can't name a folder with a , or a :")
    return place


def line(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """As a shell reads it, with what is in the environment before it."""
    before = [f"{name}={shlex.quote(value)}" for name, value in sorted((env or {}).items())]
    return " ".join([*before, shlex.join(command)])


def program(trt: TrtSettings, name: str) -> str:
    """Programs of a venv lie beside its Python."""
    return str(PurePosixPath(trt.python).parent / name) if trt.python else name
