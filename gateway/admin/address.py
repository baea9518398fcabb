"""Where the admin API of a state folder listens: told by the process that has the listener.

A file in the runtime directory, so that commands find it whatever the configuration says by now.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import MsgspecError, Struct, json

from runtime.state import runtime_dir


class Address(Struct, frozen=True, kw_only=True):
    """How to reach it from this machine."""

    url: str
    certificate: str = ""  # the file with the listener's own, in PEM; empty: plain HTTP


def publish(state_dir: Path, address: Address) -> None:
    """Write it down, whole or not at all."""
    path = _path(state_dir)
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(json.encode(address))
    draft.replace(path)


def withdraw(state_dir: Path) -> None:
    """It listens no more."""
    _path(state_dir).unlink(missing_ok=True)


def find(state_dir: Path) -> Address | None:
    """What was written down last; who wrote it may have been killed."""
    try:
        return json.decode(_path(state_dir).read_bytes(), type=Address)
    except (FileNotFoundError, MsgspecError):
        return None


def _path(state_dir: Path) -> Path:
    return runtime_dir(state_dir) / "admin.json"
