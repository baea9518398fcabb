"""`bulkhead trt status`: how TensorRT-LLM's servers do, as their launchers say."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click
import httpx
import msgspec

from engines.trtllm.settings import ENGINE
from gateway.cli.accounts import as_json
from gateway.cli.columns import table
from gateway.cli.completing import trt_model_ids
from gateway.cli.options import Places, Unreachable, peek, places
from gateway.live.words import NOTHING, clean, cut, span
from runtime.settings import Settings
from runtime.trt.planning import sockets
from runtime.trt.view import TrtState, View

ASK_S = 5.0
MAX_REASON = 60
HEADING = ("MODEL", "SERVER", "STATE", "FOR", "PID", "STARTS", "TOKEN", "GUARD", "WHY")


class Asked(NamedTuple):
    """What the launcher of a server says of it; or why it can't be asked."""

    url: str
    model: str
    view: View | None
    fault: str = ""


@click.command()
@click.argument("model", required=False, shell_complete=trt_model_ids)
@places
@as_json
def status(model: str | None, places: Places, as_json: bool) -> None:
    """How TensorRT-LLM's servers do: those launched here, and those with a `guard_url`.

    Exit code 1 if one of them isn't ready.
    """
    settings = peek(places, needs="guard_secret")
    wanted = _ids(settings, model)
    found = [one for one in _ask(settings) if wanted is None or one.model in wanted]
    if not found:
        what = f"of {model}" if model else "of this state folder"
        raise Unreachable(
            f"no launcher {what} runs, and no `guard_url` of one is configured; "
            f"`bulkhead trt launch {model or 'MODEL'}` starts one"
        )
    if as_json:
        click.echo(json.dumps([_document(one) for one in found]))
    else:
        click.echo(table([_row(one, time.time()) for one in found], HEADING))
    is_well = all(one.view and one.view.state is TrtState.READY for one in found)
    click.get_current_context().exit(0 if is_well else 1)


def _ids(settings: Settings, name: str | None) -> set[str] | None:
    """The model's id, whichever name it was given; one that is launched still may be gone here."""
    if name is None:
        return None
    return {name} | {one.id for one in settings.file.models if name in one.aliases}


def _ask(settings: Settings) -> Iterator[Asked]:
    """Those of this machine, then those elsewhere that the configuration names."""
    here = set()
    for path in sockets(settings.state_dir):
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, timeout=ASK_S) as client:
            asked = _asked(client, Asked("", "", None), "http://launcher", {})
        if asked.view:  # else its launcher was killed
            here.add(asked.view.url)
            yield asked
    with httpx.Client(timeout=ASK_S, trust_env=False) as client:
        for model, url, guard_url, secret in _elsewhere(settings):
            if url not in here:
                headers = {"authorization": f"Bearer {secret}"} if secret else {}
                yield _asked(client, Asked(url, model, None), guard_url, headers)


def _elsewhere(settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for model in settings.file.models:
        for server in model.attached if model.engine == ENGINE else ():
            if server.guard_url:
                secret = settings.secrets.get(model.trt.guard_secret, "")
                yield model.id, server.url.removesuffix("/v1"), server.guard_url, secret


def _asked(client: httpx.Client, whom: Asked, launcher: str, headers: Mapping[str, str]) -> Asked:
    try:
        answer = client.get(f"{launcher.rstrip('/')}/", headers=headers)
        answer.raise_for_status()
        view = msgspec.json.decode(answer.content, type=View)
    except httpx.HTTPStatusError as fault:
        return whom._replace(
            fault=f"its launcher, {launcher}, answers {fault.response.status_code}"
        )
    except (httpx.HTTPError, msgspec.MsgspecError) as fault:
        why = "no connection" if isinstance(fault, httpx.ConnectError) else type(fault).__name__
        return whom._replace(fault=f"its launcher, {launcher}, can't be asked ({why})")
    return Asked(view.url, view.model, view)


def _document(asked: Asked) -> dict[str, Any]:
    if asked.view is None:
        told = {"model": asked.model, "url": asked.url}
        return told | {"state": "unreachable", "reason": asked.fault}
    found: dict[str, Any] = msgspec.to_builtins(asked.view)
    return found


def _row(asked: Asked, now: float) -> tuple[str, ...]:
    view = asked.view
    if view is None:
        return (asked.model, asked.url, "unreachable", *(NOTHING,) * 5, asked.fault)
    return (
        view.model,
        view.url,
        view.state,
        span(now - view.since),
        str(view.pid or NOTHING),
        str(view.starts),
        f"{span(now - view.token_at)} ago" if view.token_at else NOTHING,
        _guard(view),
        _why(view, now),
    )


def _guard(view: View) -> str:
    guard = view.guard
    if guard is None:
        return NOTHING
    if guard.poisoned:
        return "failed"
    seen = f", {_number(guard.violations, 'violation')}" if guard.violations else ""
    return f"{_number(guard.steps, 'step')}{seen}"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _why(view: View, now: float) -> str:
    """Why it isn't ready, or why it was started anew."""
    again = f" (again in {span(view.retry_at - now)})" if view.retry_at > now else ""
    return cut(clean(view.reason), MAX_REASON) + again
