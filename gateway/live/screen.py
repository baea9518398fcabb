"""A terminal whose last lines are a panel, over which other lines scroll. Any thread may write.

When the terminal gets another size it wraps or cuts what stands there, each kind of terminal in its
own way. So all of it is drawn anew, the last lines included.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.text import Text

DEFAULT = (80, 25)  # where a terminal doesn't know its size
MAX_KEPT = 200  # lines; no terminal is much higher


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
        self._terminal = terminal
        self._size = self._console.size = self._measured()
        self._live = self._new_panel()
        self._kept: deque[RenderableType] = deque(maxlen=MAX_KEPT)
        self._lock = threading.Lock()
        self._is_open = False

    @property
    def width(self) -> int:
        """Columns, as of now."""
        return self._measured().width

    @property
    def height(self) -> int:
        """Lines, as of now."""
        return self._measured().height

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
                self._fit()
                self._kept.extend(lines)
                self._console.print(Group(*lines), soft_wrap=True)

    def draw(self, panel: RenderableType) -> None:
        """Another panel in place of the last."""
        with self._lock:
            if self._is_open:
                self._fit()
                self._live.update(Group(panel, Text("")), refresh=True)

    def _measured(self) -> ConsoleDimensions:
        """This terminal's size; rich asks the standard streams, which are others by now."""
        try:
            found = os.get_terminal_size(self._terminal.fileno())
        except OSError:
            found = os.terminal_size((0, 0))
        return ConsoleDimensions(found.columns or DEFAULT[0], found.lines or DEFAULT[1])

    def _fit(self) -> None:
        """If the size is another: an empty terminal with the last lines, as far as they fit."""
        size = self._measured()
        if size == self._size or not self._is_open:
            return
        self._size = self._console.size = size
        self._live.stop()
        self._console.control(Control.clear(), Control.home())
        for line in list(self._kept)[-self._size.height :]:
            self._console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        self._live = self._new_panel()
        self._live.start()

    def _new_panel(self) -> Live:
        return Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
