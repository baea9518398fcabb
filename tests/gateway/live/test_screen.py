"""The panel on a real terminal, whose size changes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator

import pytest
from rich.text import Text

from gateway.live.panel import panel
from gateway.live.screen import Screen


class Window:
    """A terminal of so many columns and lines, with a screen on it."""

    def __init__(self) -> None:
        self._controller, ours = pty.openpty()
        os.set_blocking(self._controller, False)
        self._terminal = os.fdopen(ours, "w", encoding="utf-8")
        self.resize(100, 30)
        self.screen = Screen(self._terminal)
        self.screen.open()

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def shown(self) -> str:
        """What was written since the last look, its colours left out."""
        found = b""
        try:
            while data := os.read(self._controller, 65536):
                found += data
        except BlockingIOError:
            pass
        return re.sub(r"\x1b\[[0-9;]*m", "", found.decode()).replace("\r\n", "\n")

    def draw(self) -> str:
        self.screen.draw(panel(["title"], [], self.screen.width))
        return self.shown()

    def close(self) -> None:
        self.screen.close()
        self._terminal.close()
        os.close(self._controller)


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Iterator[Window]:
    monkeypatch.setenv("TERM", "xterm-256color")
    made = Window()
    yield made
    made.close()


def plain(shown: str) -> list[str]:
    """Its lines, without movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown).splitlines()


def rule_width(shown: str) -> int:
    """Of the panel's first line."""
    return next(len(line) for line in plain(shown) if "title" in line)


def test_the_width_is_the_terminal_s_own(window: Window) -> None:
    """Not that of the standard streams, which are none here."""
    assert (window.screen.width, window.screen.height) == (100, 30)
    assert rule_width(window.draw()) == 100


@pytest.mark.parametrize("columns", [60, 140])
def test_another_size_is_drawn_anew(window: Window, columns: int) -> None:
    """Nothing of the old panel stays, and the last lines are there again, as they fit now."""
    window.screen.write([Text("first"), Text("x" * 90)])
    assert "\x1b[2J" not in window.draw()
    window.resize(columns, 20)
    before, cleared, after = window.draw().partition("\x1b[2J")
    assert cleared
    assert "first" not in before
    assert rule_width(after) == columns
    assert "first" in plain(after)
    assert ("x" * 90 in after) == (columns > 90)
    assert max(map(len, plain(after))) <= columns
    assert "\x1b[2J" not in window.draw()


def test_a_line_that_comes_first_finds_the_new_size(window: Window) -> None:
    window.draw()
    window.resize(60, 20)
    window.screen.write([Text("second")])
    assert "second" in window.shown().partition("\x1b[2J")[2]


def test_no_more_lines_than_the_terminal_has_come_back(window: Window) -> None:
    window.screen.write([Text(f"line {i}") for i in range(50)])
    window.draw()
    window.resize(80, 10)
    assert re.findall(r"line \d+", window.draw()) == [f"line {i}" for i in range(40, 50)]


def test_after_the_end_nothing_is_drawn(window: Window) -> None:
    window.draw()
    window.screen.close()
    window.shown()
    window.resize(60, 20)
    assert window.draw() == ""
