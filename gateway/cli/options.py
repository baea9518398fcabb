"""What every subcommand shares: where the config and the state are, and how faults are told."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from gateway.admin.key import BadAdminKey, NoAdminKey
from gateway.backups.archive import BackupError
from gateway.backups.restore import RestoreRefused
from gateway.budgets.budgets import BudgetError
from gateway.cli import signals
from gateway.cli.who import user
from gateway.evaluation.child import EvaluationFailed
from gateway.identity.tenants import TenantError
from gateway.limits.setting import LimitError
from gateway.money.errors import MoneyError
from gateway.processes.workers import GatewayFailed
from gateway.root import RootSecretLost
from gateway.store.address import Database
from gateway.store.audit import Actor, acting
from gateway.store.connection import of_the_file, open_for_writing
from gateway.store.current import bring_up_to_date
from gateway.store.errors import StoreError
from gateway.store.hold import using
from gateway.store.sql import Connection
from gateway.stores import database_of
from gateway.usage.manifest import BadManifest
from gateway.usage.parquet import NoParquet
from gateway.usage.selection import NoSuchBound
from runtime import settings as config, state
from runtime.building import BuildFailed
from runtime.config.fault_tree import draw
from runtime.config.place import Place
from runtime.config.vault import VaultError
from runtime.deploy.rollout import NeedsRestart, NotApplied
from runtime.deployments import NoDeployment
from runtime.keyring import BadRootSecret
from runtime.settings import ConfigError, Settings
from runtime.state import StateInUse
from runtime.tls.certificates import BadCertificate
from runtime.tls.listener import PortInUse
from runtime.trt.bind import LaunchRefused
from runtime.weights import WeightsUnavailable


class NoState(Exception):
    """There is nothing to read yet."""


class Unreachable(Exception):
    """What a command has to ask doesn't answer. The message says where it was looked for."""


class Stranger(Exception):
    """What answers isn't a Bulkhead. The message says which address."""


class Refused(Exception):
    """The other side doesn't accept our key."""


class Declined(Exception):
    """The other side knows us, and says no; the message is its own."""


class Exit(enum.IntEnum):
    """What a command ends with; `docs/operating.md` says so to operators."""

    OK = 0
    FAILED = 1
    USAGE = 2  # click's own
    CONFIG = 3
    IN_USE = 4
    UNREACHABLE = 5
    REFUSED = 6
    INTERRUPTED = 130
    TERMINATED = 143


# Faults that a person can mend: told in their own words, without a traceback. The one table.
EXIT_CODES: dict[type[Exception], Exit] = {
    NoState: Exit.FAILED,
    RootSecretLost: Exit.FAILED,
    ConfigError: Exit.CONFIG,
    BadCertificate: Exit.CONFIG,
    StateInUse: Exit.IN_USE,
    PortInUse: Exit.IN_USE,
    Unreachable: Exit.UNREACHABLE,
    Stranger: Exit.UNREACHABLE,
    Refused: Exit.REFUSED,
    Declined: Exit.FAILED,
    BadAdminKey: Exit.FAILED,
    NoAdminKey: Exit.FAILED,
    BadRootSecret: Exit.FAILED,
    VaultError: Exit.FAILED,
    WeightsUnavailable: Exit.FAILED,
    BuildFailed: Exit.FAILED,
    LaunchRefused: Exit.FAILED,
    TenantError: Exit.FAILED,
    BudgetError: Exit.FAILED,
    LimitError: Exit.FAILED,
    MoneyError: Exit.FAILED,
    StoreError: Exit.FAILED,
    GatewayFailed: Exit.FAILED,
    NoDeployment: Exit.FAILED,
    NeedsRestart: Exit.FAILED,
    NotApplied: Exit.FAILED,
    BackupError: Exit.FAILED,
    EvaluationFailed: Exit.FAILED,
    RestoreRefused: Exit.FAILED,
    NoParquet: Exit.FAILED,
    BadManifest: Exit.FAILED,
    NoSuchBound: Exit.FAILED,
    OSError: Exit.FAILED,
}


@dataclass(frozen=True, slots=True)
class Places:
    """Which installation a command is about, as the command line says it. None: not said."""

    config: Path | None = None
    env: str | None = None
    state_dir: Path | None = None
    variables: tuple[str, ...] = ()  # "NAME:value"


def regular_file(_: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """The file, which another process opens by its name: a pipe of ours isn't there."""
    if path is not None and not path.is_file():
        raise click.BadParameter(f"{str(path)!r} must be a file, and no pipe", param=param)
    return path


F = TypeVar("F", bound=Callable[..., Any])

PLACES = (
    click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The config file. Default: bulkhead.toml or config/bulkhead.toml, here or above.",
    ),
    click.option(
        "--env",
        "-e",
        shell_complete=lambda context, _option, begun: _environments(context, begun),
        help="The environment of the config: [env.NAME]. Empty: the top of the file.",
    ),
    click.option(
        "--state",
        "state_dir",
        type=click.Path(file_okay=False, path_type=Path),
        help="The folder of database, keys and weights. Default: .bulkhead beside the config.",
    ),
    click.option(
        "--var",
        "variables",
        multiple=True,
        metavar="NAME:VALUE",
        callback=lambda _context, _option, given: _variables(given),
        help="A variable, instead of the one in [vars]. May be given several times.",
    ),
)


def places(command: F) -> F:
    """Adds --config, --env, --state and --var, handed on as one argument `places`."""
    return _placed(command, PLACES)


def whereabouts(command: F) -> F:
    """The same without --var, for commands that only work in the state folder."""
    return _placed(command, PLACES[:-1])


def telling(command: F) -> F:
    """Turns our own errors into one message and its exit code, and signals into an end in order."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            with signals.in_order():
                return command(*args, **kwargs)
        except BrokenPipeError:  # who reads us has had enough: click ends quietly
            raise
        except tuple(EXIT_CODES) as fault:
            raise Told(fault) from None

    return wrapped  # type: ignore[return-value]


def _placed(command: F, options: Sequence[Callable[[Any], Any]]) -> F:
    @telling
    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = {f.name: kwargs.pop(f.name) for f in fields(Places) if f.name in kwargs}
        return command(*args, places=Places(**given), **kwargs)

    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


class Told(click.ClickException):
    """A fault in a sentence, with the exit code of its kind."""

    def __init__(self, fault: Exception) -> None:
        text = str(fault)
        if isinstance(fault, OSError):
            where = f"{fault.filename}: " if fault.filename else ""
            text = where + (fault.strerror or text)
        super().__init__(text)
        self.fault = fault
        code = next(code for kind, code in EXIT_CODES.items() if isinstance(fault, kind))
        self.exit_code = code  # type: ignore[misc] # click reads the instance's

    def show(self, file: IO[Any] | None = None) -> None:
        """The faults of a configuration as a tree, anything else as click does."""
        if isinstance(self.fault, ConfigError):
            told = draw(self.fault.source, self.fault.report, colour=True)
            click.echo(told, file=file, err=file is None)  # click leaves colours to terminals
        else:
            super().show(file)


def load(places: Places, *, dev: bool | None = None) -> Settings:
    """The settings, with warnings told on stderr. `dev` has `.dev.vars` read."""
    settings, report = config.load(
        places.config, places.state_dir, env=places.env, variables=places.variables, dev=dev
    )
    if report.warnings:
        click.echo(draw(settings.source, report, colour=True), err=True)
    return settings


def peek(places: Places, needs: str = "") -> Settings:
    """The settings for a command that serves nothing: no secret is needed, but that of a key."""
    return config.peek(
        places.config, places.state_dir, env=places.env, variables=places.variables, needs=needs
    )


def locate(places: Places) -> Place:
    """Where to work, for commands that don't need what the config file says: it may be at fault."""
    return config.locate(places.config, places.state_dir, env=places.env)


def _environments(context: click.Context, begun: str) -> list[CompletionItem]:
    try:
        names = config.environment_names(context.params.get("config"))
    except tuple(EXIT_CODES):
        return []
    return [CompletionItem(name) for name in names if name.startswith(begun)]


def _variables(given: tuple[str, ...]) -> tuple[str, ...]:
    for text in given:
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*:", text):
            raise click.BadParameter(f"{text!r} is not NAME:VALUE")
    return given


def tell_if_new(path: Database) -> None:
    """Say what a command is about to make, which another folder may have already."""
    if isinstance(path, Path) and not path.exists():
        click.echo(f"Making {path}; a folder that is there already is named by --state.", err=True)


def need_database(database: Database) -> None:
    """Raises NoState if the folder has no store."""
    if isinstance(database, Path) and not database.exists():
        raise NoState(f"{database.parent} holds no database; name the folder with --state")


@contextmanager
def database(place: Place, *, create: bool = False) -> Iterator[Connection]:
    """The store, brought to this version's schema. Raises NoState rather than `create` it.

    A server's database is there, or its server says so.
    """
    found = database_of(place)
    if not create:
        need_database(found)
    state.prepare(place.state_dir)
    with using(found) if isinstance(found, Path) else nullcontext(), of_the_file():
        bring_up_to_date(found)
        with closing(open_for_writing(found)) as db, acting(Actor("cli", user())):
            yield db
