"""A terminal whose last lines are a panel, over which other lines scroll. Any thread may write."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text


class SteadyConsole(Console):
    """Leaves the cursor visible: a process that is ended at once can't bring it back."""

    def show_cursor(self, show: bool = True) -> bool:
        """Nothing: see the class."""
        return False


class Screen:
    """From `open` to `close`; what was written stays, and the panel goes.

    The cursor stands on an empty line below the panel: keys that are pressed are echoed there.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._console = SteadyConsole(
            file=terminal, force_terminal=True, highlight=False, markup=False, emoji=False
        )
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._lock = threading.Lock()
        self._is_open = False

    @property
    def width(self) -> int:
        """Columns, as of now."""
        return self._console.width

    @property
    def height(self) -> int:
        """Lines, as of now."""
        return self._console.height

    def open(self) -> None:
        """Begin with an empty panel."""
        with self._lock:
            self._live.start()
            self._is_open = True

    def close(self) -> None:
        """Take the panel away and give the cursor back. May be called again."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._live.stop()

    def write(self, lines: Sequence[RenderableType]) -> None:
        """Lines that scroll."""
        if lines:
            with self._lock:
                self._console.print(Group(*lines), soft_wrap=True)

    def draw(self, panel: RenderableType) -> None:
        """Another panel in place of the last."""
        with self._lock:
            if self._is_open:
                self._live.update(Group(panel, Text("")), refresh=True)
