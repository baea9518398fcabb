"""What the node of this state folder knows, and what it can be told to do."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import httpx
from msgspec import MsgspecError, Struct, json

from gateway.admin.problems import (
    FaultImpossible,
    NodeUnreachable,
    NoSuchFault,
    NoSuchModel,
    NotDevelopment,
    Problem,
)
from runtime.node import probe
from runtime.node_wire import GoneHost, Hosts

TIMEOUT_S = 5.0
FAULT_S = 40.0  # a step is waited for
ADVICE = "; have streams run, then try again"
BY_CODE: dict[str, type[Problem]] = {
    "not_development": NotDevelopment,
    "no_such_model": NoSuchModel,
    "no_such_fault": NoSuchFault,
    "no_host": FaultImpossible,
    "fault_impossible": FaultImpossible,
}


class NodeClient:
    """Asks over `node.sock`, one connection a question: questions are rare. Raises Problems."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def hosts(self, *, after: int = 0, wait_s: float = 0.0) -> Hosts:
        """All hosts and models, at once, or once they differ from version `after`."""
        query = {"after": str(after), "wait_s": f"{wait_s:g}"}
        answer = await self._ask("GET", "/hosts", wait_s, query)
        try:
            return json.decode(answer.content, type=Hosts)
        except MsgspecError:
            raise NodeUnreachable(
                "the node's answer can't be read; is it of this version?"
            ) from None

    async def gone(self) -> list[GoneHost]:
        """Hosts that ended lately, with their last counters; an older node tells of none."""
        answer = await self._ask("GET", "/gone")
        if answer.status_code != 200:
            return []
        try:
            return json.decode(answer.content, type=list[GoneHost])
        except MsgspecError:
            return []

    async def restart(self, model: str) -> None:
        """Forget a model's failures and replace its hosts, losing no request."""
        answer = await self._ask("POST", f"/models/{quote(model, safe='')}/restart")
        if answer.status_code == 404:
            raise NoSuchModel(f"no host of ours serves {model[:128]!r}; see `bulkhead hosts list`")

    async def fault_kinds(self, model: str) -> list[dict[str, str]]:
        """The faults that can be planted in a model's hosts."""
        path = f"/models/{quote(model, safe='')}/faults"
        return _told(await self._ask("GET", path, FAULT_S), list[dict[str, str]])

    async def plant(self, model: str, kind: str) -> dict[str, str]:
        """Plant a fault in the model's busiest host: which host, and what was done."""
        path = f"/models/{quote(model, safe='')}/faults/{quote(kind, safe='')}"
        answer = await self._ask("POST", path, FAULT_S)
        told = _told(answer, dict[str, str])
        return {"host": answer.headers.get("x-host", "")} | told

    async def _ask(
        self, method: str, path: str, wait_s: float = 0.0, query: dict[str, str] | None = None
    ) -> httpx.Response:
        try:
            async with probe.client(str(self._socket), TIMEOUT_S + wait_s) as node:
                answer = await node.request(method, path, params=query)
        except httpx.HTTPError as fault:
            raise NodeUnreachable(
                f"no node answers on this state folder ({type(fault).__name__})", retry_after="1"
            ) from None
        if answer.status_code >= 500:
            raise NodeUnreachable(f"the node answered {answer.status_code}", retry_after="1")
        return answer


T = TypeVar("T")


class _Error(Struct):
    code: str
    message: str


class _Refusal(Struct):
    error: _Error


def _told(answer: httpx.Response, kind: type[T]) -> T:
    """What is answered about faults. Raises the problem that its code names."""
    try:
        if answer.status_code == 200:
            return json.decode(answer.content, type=kind)
        error = json.decode(answer.content, type=_Refusal).error
    except MsgspecError:
        raise NodeUnreachable("the node's answer can't be read; is it of this version?") from None
    problem = BY_CODE.get(error.code, NodeUnreachable)
    raise problem(error.message + (ADVICE if error.code == "fault_impossible" else ""))
