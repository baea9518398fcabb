"""Where the gateway and the admin API of a state folder are reached: told by who listens there.

Files in the runtime directory, so that commands find them whatever the configuration and the
command line said. Who wrote one may have been killed since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import MsgspecError, Struct, json

from runtime import durable
from runtime.rundir import make, runtime_dir

Side = Literal["gateway", "admin"]


class Address(Struct, frozen=True, kw_only=True):
    """How to reach one from this machine. The files are PEM; empty: the system's authorities."""

    url: str
    certificate: str = ""  # the listener's own, which alone is to be believed, by whatever name
    authority: str = ""  # the one to be believed


def publish(state_dir: Path, side: Side, address: Address) -> None:
    """Write it down, whole or not at all."""
    make(state_dir)
    path = _path(state_dir, side)
    draft = path.with_name(f".{path.name}")
    with durable.naming(path):
        draft.write_bytes(json.encode(address))
    draft.replace(path)


def withdraw(state_dir: Path, side: Side) -> None:
    """It listens no more."""
    _path(state_dir, side).unlink(missing_ok=True)


def find(state_dir: Path, side: Side) -> Address | None:
    """What was written down last."""
    try:
        return json.decode(_path(state_dir, side).read_bytes(), type=Address)
    except (FileNotFoundError, MsgspecError):
        return None


def _path(state_dir: Path, side: Side) -> Path:
    return runtime_dir(state_dir) / f"{side}.json"
