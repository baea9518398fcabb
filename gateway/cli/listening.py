"""Where a command listens: --host, --port and --admin-port."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import click
import msgspec

from runtime.config import overrides
from runtime.config.kinds import Host
from runtime.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where to listen, as the command line says it. None: as the configuration says."""

    host: str | None = None
    port: int | None = None
    admin_port: int | None = None

    def over(self, settings: Settings) -> Settings:
        """With what is said here, which wins."""
        server, admin = settings.file.server, settings.file.admin
        file = msgspec.structs.replace(
            settings.file,
            server=msgspec.structs.replace(
                server, host=self.host or server.host, port=self.port or server.port
            ),
            admin=msgspec.structs.replace(
                admin, port=admin.port if self.admin_port is None else self.admin_port
            ),
        )
        return msgspec.structs.replace(settings, file=file)


def a_host(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    """What --host says, checked as `server.host` is in the file."""
    if given is not None and (told := overrides.fault(Host, given)):
        raise click.BadParameter(told)
    return given


LISTENER = (
    click.option("--host", callback=a_host, help="The address to listen on."),
    click.option("--port", type=click.IntRange(1, 65535), help="The port to listen on."),
)
admin_port_option = click.option(
    "--admin-port", type=click.IntRange(0, 65535), help="The admin API's port. 0: no admin API."
)


def listener(command: F) -> F:
    """Adds --host, --port and --admin-port, handed on as one argument `addresses`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = {field.name: kwargs.pop(field.name) for field in fields(Addresses)}
        return command(*args, addresses=Addresses(**given), **kwargs)

    for option in (*LISTENER, admin_port_option):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]
