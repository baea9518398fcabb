"""What every subcommand shares: where the config and the state are, and how faults are told."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway.server import GatewayFailed, PortInUse
from gateway.store.connection import DATABASE, open_for_writing
from gateway.store.errors import StoreError
from gateway.store.migrate import migrate
from gateway.tenants import TenantError
from runtime import settings as config, state
from runtime.keyring import BadRootSecret
from runtime.settings import ConfigError, Settings
from runtime.state import StateInUse
from runtime.weights import WeightsUnavailable


class NoState(Exception):
    """There is nothing to read yet."""


# Faults that a person can mend: told in their own words, without a traceback.
TOLD = (
    NoState,
    ConfigError,
    StateInUse,
    BadRootSecret,
    WeightsUnavailable,
    TenantError,
    StoreError,
    PortInUse,
    GatewayFailed,
)

F = TypeVar("F", bound=Callable[..., Any])


def places(command: F) -> F:
    """Adds --config and --state, and turns our own errors into one message and exit code 1."""

    @click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The config file. Default: bulkhead.toml or config/bulkhead.toml, here or above.",
    )
    @click.option(
        "--state",
        "state_dir",
        type=click.Path(file_okay=False, path_type=Path),
        help="The folder of database, keys and weights. Default: .bulkhead beside the config.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except TOLD as fault:
            raise click.ClickException(str(fault)) from None
        except OSError as fault:
            where = f"{fault.filename}: " if fault.filename else ""
            raise click.ClickException(f"{where}{fault.strerror or fault}") from None

    return wrapped  # type: ignore[return-value]


def load(config_path: Path | None, state_dir: Path | None) -> Settings:
    """The settings, with warnings told on stderr."""
    settings, report = config.load(config_path, state_dir)
    for warning in report.warnings:
        click.echo(f"warning: {warning}", err=True)
    return settings


@contextmanager
def database(settings: Settings, *, create: bool = True) -> Iterator[sqlite3.Connection]:
    """The store, brought to this version's schema. Raises NoState rather than `create` it."""
    path = settings.state_dir / DATABASE
    if not create and not path.exists():
        raise NoState(f"{settings.state_dir} holds no database; name the folder with --state")
    state.prepare(settings.state_dir)
    migrate(path)
    db = open_for_writing(path)
    try:
        yield db
    finally:
        db.close()


def table(rows: Sequence[tuple[str, ...]], heading: tuple[str, ...]) -> str:
    """Columns for people."""
    every = [heading, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(heading))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in every
    )
    return "\n".join(line.rstrip() for line in lines)
