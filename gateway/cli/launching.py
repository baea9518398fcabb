"""`bulkhead trt launch`: one of TensorRT-LLM's servers, started and kept."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from engines.trtllm.settings import ENGINE
from gateway.cli.completing import trt_model_ids
from gateway.cli.moments import US, Span
from gateway.cli.options import Places, peek, places
from runtime import logs, open_files, state
from runtime.config.models import ModelSettings
from runtime.rundir import held
from runtime.settings import Settings, service_manager
from runtime.trt.bind import Bind, LaunchRefused, said_bind
from runtime.trt.launcher import Launcher
from runtime.trt.notify import Notifier
from runtime.trt.planning import Wish, events_bind, plan_of, socket_of, target_of
from runtime.trt.running import keep
from runtime.trt.watch import Patience

F = TypeVar("F", bound=Callable[..., Any])


class Where(click.ParamType[Bind]):
    """An address to listen on."""

    name = "host:port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Bind:
        """See click."""
        if isinstance(value, Bind):
            return value
        try:
            return said_bind(str(value))
        except LaunchRefused as fault:
            self.fail(str(fault), param, ctx)


class Seconds(Span):
    """A span of time, some seconds at least."""

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        """See click."""
        found = super().convert(value, param, context)
        if not found:
            self.fail("it has to be more than 0.", param, context)
        return found


WISHES = (
    click.option(
        "--role",
        type=click.Choice(["context", "generation", "front"]),
        default=None,
        help="Which, where prompts are computed apart from answers.",
    ),
    click.option("--server", type=Where(), help="Which, where the model has several."),
    click.option("--listen", type=Where(), help="Where it listens. Default: at its URL."),
    click.option(
        "--allow-public",
        is_flag=True,
        help="Listen on a public address, though it asks for no key.",
    ),
    click.option(
        "--gpus-per-machine", type=click.IntRange(1), default=8, help="How many GPUs it may use."
    ),
    click.option(
        "--runner",
        type=click.Choice(["docker", "podman"]),
        default=None,
        help="What runs its container. Default: whichever is here.",
    ),
)
PATIENCE = (
    click.option(
        "--start-within",
        type=Seconds(),
        default="30m",
        show_default=True,
        help="Until its first token: weights are loaded meanwhile.",
    ),
    click.option(
        "--token-every",
        type=Seconds(),
        default="15s",
        show_default=True,
        help="How often it is asked for a token.",
    ),
    click.option(
        "--token-within",
        type=Seconds(),
        default="30s",
        show_default=True,
        help="How long one may take. Two that don't come, while it computes nothing, are a hang.",
    ),
    click.option(
        "--drain", type=Seconds(), help="For answers at its end. Default: server.drain_s."
    ),
)


def wishing(command: F) -> F:
    """Adds the options of `Wish`, handed on as one argument `wish`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        names = ("server", "listen", "allow_public", "gpus_per_machine", "runner")
        given = {name: kwargs.pop(name) for name in names}
        return command(*args, wish=Wish(phase=kwargs.pop("role") or "serve", **given), **kwargs)

    for option in reversed(WISHES):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def patiently(command: F) -> F:
    """Adds the options of `Patience`, handed on as one argument: what was said of it."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        names = {
            "start_within": "start_s",
            "token_every": "every_s",
            "token_within": "within_s",
            "drain": "drain_s",
        }
        spans = {field: kwargs.pop(name) for name, field in names.items()}
        said = {field: us / US for field, us in spans.items() if us}
        return command(*args, patience=said, **kwargs)

    for option in reversed(PATIENCE):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


@click.command()
@click.argument("model", shell_complete=trt_model_ids)
@wishing
@click.option("--events", type=Where(), help="Where its guard is told of. Default: `guard_url`.")
@patiently
@places
def launch(
    model: str, wish: Wish, events: Bind | None, patience: dict[str, float], places: Places
) -> None:
    """Start TensorRT-LLM's server of MODEL on this machine, and keep it.

    It is ready once it has answered with a real token; it is started again when it dies, when no
    token comes any more, and when the guard in it does no work. A signal ends it in order, a second
    one at once.
    """
    settings = peek(places, needs="guard_secret")
    target = target_of(model_of(settings, model), wish)
    where = events_bind(target, events, allow_public=wish.allow_public)
    logs.configure()
    logs.set_level(settings.file.observability.level)
    open_files.raise_limit()
    drain_s = settings.file.server.drain_s
    with state.own_when_left(settings.state_dir, f"trt-{target.id}"), held(settings.state_dir):
        launcher = Launcher(
            plan_of(target, settings, wish),
            Patience(**{"drain_s": drain_s} | patience),
            settings.file.hosts,
            Notifier(*service_manager()),
        )
        secret = settings.secrets.get(target.model.trt.guard_secret, "")
        asyncio.run(keep(launcher, socket_of(settings.state_dir, target), where, secret))


def model_of(settings: Settings, name: str) -> ModelSettings:
    """The model of a name. Raises UsageError if TensorRT-LLM doesn't serve it."""
    ours = [one for one in settings.file.models if one.engine == ENGINE]
    for one in ours:
        if name in (one.id, *one.aliases):
            return one
    known = ", ".join(one.id for one in ours) or "none"
    raise click.UsageError(f"{name!r} is no model of engine {ENGINE!r}; there are: {known}")
