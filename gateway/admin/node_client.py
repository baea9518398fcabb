"""What the node of this state folder knows, and what it can be told to do."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import httpx
from msgspec import MsgspecError, json

from gateway.admin.problems import NodeUnreachable, NoSuchModel
from runtime.node import probe
from runtime.node_wire import Hosts

TIMEOUT_S = 5.0


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

    async def restart(self, model: str) -> None:
        """Forget a model's failures and replace its hosts, losing no request."""
        answer = await self._ask("POST", f"/models/{quote(model, safe='')}/restart")
        if answer.status_code == 404:
            raise NoSuchModel(f"no host of ours serves {model[:128]!r}; see `bulkhead hosts list`")

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
