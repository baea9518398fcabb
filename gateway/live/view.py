"""The live view of `bulkhead dev`: requests scroll past, models and hosts stand below."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

import structlog
from anyio import to_thread
from rich.console import Console, RenderableType
from rich.text import Text

from gateway.admin.hub import EventHub
from gateway.admin.node_client import NodeClient
from gateway.admin.problems import Problem
from gateway.admin.thread import AdminThread
from gateway.deployed import Deployed
from gateway.live.board import Attached, Board
from gateway.live.lines import request_line
from gateway.live.log_pipe import Line, LogPipe, as_message
from gateway.live.panel import panel
from gateway.live.screen import Screen
from gateway.live.words import count, printable, span
from runtime.deploy.running import Trouble, summed_up, troubles
from runtime.settings import Settings

log = structlog.get_logger()

REFRESH_S = 0.25
MAX_LINES = 60  # in one refresh; nobody reads more
LOG = "dev.log"


class LiveView:
    """A context: it has the terminal while the block runs."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._settings = Deployed(settings)
        self._url = url
        self._running: Future[None] | None = None
        self._began = time.monotonic()
        self._board = Board()
        self._log_file = settings.state_dir / LOG
        self._pipe = LogPipe(self._log_file, self._show_line)

    def __enter__(self) -> Self:
        """Take the terminal."""
        terminal = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
        self._screen = Screen(terminal)
        self._screen.open()
        self._pipe.open()
        self._screen.write([Text(f"Logs are in {self._log_file}", "dim")])
        return self

    def follow(self, admin: AdminThread) -> None:
        """Show what happens from now on."""
        self._running = admin.spawn(self._run(admin.hub, admin.node))

    def __exit__(self, *_: object) -> None:
        """Give it back as it was."""
        if self._running:
            self._running.cancel()
        self._pipe.close()
        self._screen.close()

    async def _run(self, hub: EventHub, node: NodeClient) -> None:
        """Until cancelled, or until the hub closes."""
        asking = asyncio.create_task(self._ask(node))
        try:
            with hub.listen() as listener:
                while not listener.is_closed:
                    self._refresh(await listener.take(REFRESH_S))
                    await asyncio.sleep(REFRESH_S / 5)  # a burst is one refresh
        except Exception:  # requests go on without it
            log.exception("live_view_failed")
        finally:
            asking.cancel()

    async def _ask(self, node: NodeClient) -> None:
        """Keep up with the node; while it doesn't answer, what it said stays."""
        while True:
            try:
                hosts = await node.hosts(after=self._board.version, wait_s=REFRESH_S)
            except Problem:
                await asyncio.sleep(REFRESH_S)
            else:
                told = await to_thread.run_sync(troubles, self._settings().state_dir)
                models = [x for x in self._settings().file.models if x.is_attached]
                attached = [
                    attached_of(
                        x.id, summed_up([u.rstrip("/") for u in x.urls], told.get(x.id, {}))
                    )
                    for x in models
                ]
                self._board.see(hosts, attached, time.monotonic())

    def _refresh(self, events: Sequence[dict[str, Any]]) -> None:
        now, width = time.monotonic(), self._screen.width
        for event in events:
            self._board.hear(event, now)
        lines: list[RenderableType] = []
        if (left := len(events) - MAX_LINES) > 0:
            lines.append(Text(f"… {left} more requests", "dim"))
        lines += [request_line(event, width) for event in events[-MAX_LINES:]]
        self._screen.write(lines)
        most = max(1, self._screen.height // 2 - 2)
        self._screen.draw(panel(self._title(now), self._board.rows(now, most), width))

    def _title(self, now: float) -> list[str]:
        board = self._board
        deployment = [f"deployment {board.deployment}"] if board.deployment else []
        counted = [count(board.num_requests, "request")]
        if board.num_errors:
            counted.append(count(board.num_errors, "error"))
        return [
            "bulkhead dev",
            self._url,
            *deployment,
            f"up {span(now - self._began)}",
            ", ".join(counted),
        ]

    def _show_line(self, line: Line) -> None:
        """From the pipe's thread."""
        if isinstance(line, str):
            self._screen.write([Text(printable(line.expandtabs()))])
        elif message := as_message(line):
            grave = line.get("level") in ("error", "critical")
            self._screen.write([Text(message, "red" if grave else "yellow")])


def attached_of(model: str, trouble: Trouble | None) -> Attached:
    """With the time of its trouble by our clock, which the system's may have left behind."""
    if trouble is None:
        return Attached(model)
    failed_at = time.monotonic() - (time.time() - trouble.at)
    return Attached(model, trouble.is_down, trouble.reason, failed_at)


def can_show(fd: int = 2) -> bool:
    """Whether there is a terminal that can move its cursor."""
    return os.isatty(fd) and not Console(stderr=True).is_dumb_terminal
