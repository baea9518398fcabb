"""What hosts tell of themselves: their pages and their counters, asked over their own sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import httpx
from msgspec import MsgspecError, json

from engines.api import PageMap, Stats
from gateway.admin.problems import HostUnreachable, NoPages
from runtime import metrics
from runtime.node import probe
from runtime.node_wire import GoneHost, HostView

TIMEOUT_S = 5.0  # a step may take long, and is waited for

T = TypeVar("T")


async def pages(host: HostView) -> PageMap:
    """Where a host's pages are. Raises NoPages or HostUnreachable."""
    answer = await _ask(host, "/pages")
    if answer.status_code == 404:
        raise NoPages(f"the engine of {host.model} keeps nothing in pages")
    return _decoded(answer, host, PageMap)


async def all_metrics(
    hosts: Sequence[HostView], ask_gone: Callable[[], Awaitable[Sequence[GoneHost]]]
) -> str:
    """The counters of all that have started; one that doesn't answer is told as down.

    Those that are gone are asked for last: a host that ends meanwhile is told of once, as gone.
    """
    hosts = [host for host in hosts if host.socket]
    counted = await asyncio.gather(*(_stats(host) for host in hosts))
    gone = {host.id: host for host in await ask_gone()}
    told = [
        metrics.Host({"host": host.id, "model": host.model}, stats)
        for host, stats in zip(hosts, counted, strict=True)
        if host.id not in gone
    ]
    told += [
        metrics.Host({"host": host.id, "model": host.model}, host.stats, is_gone=True)
        for host in gone.values()
    ]
    return metrics.text(told)


async def _stats(host: HostView) -> Stats | None:
    try:
        return _decoded(await _ask(host, "/stats"), host, Stats)
    except HostUnreachable:
        return None


async def _ask(host: HostView, path: str) -> httpx.Response:
    if not host.socket:
        raise HostUnreachable(f"{host.id} still starts", retry_after="1")
    try:
        async with probe.client(host.socket, TIMEOUT_S) as http:
            return await http.get(path)
    except httpx.HTTPError as fault:
        raise HostUnreachable(
            f"{host.id} doesn't answer ({type(fault).__name__})", retry_after="1"
        ) from None


def _decoded(answer: httpx.Response, host: HostView, kind: type[T]) -> T:
    if answer.status_code == 200:
        with suppress(MsgspecError):
            return json.decode(answer.content, type=kind)
    raise HostUnreachable(
        f"what {host.id} answers makes no sense ({answer.status_code})", retry_after="1"
    )
