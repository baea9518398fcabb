"""`bulkhead tail`'s patience: what it does when the other side goes away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.cli.options import Refused, Unreachable
from gateway.cli.tail import events


class Script:
    """Connections, one after the other: each yields its events, then raises what it ends with."""

    def __init__(self, *connections: list[Any]) -> None:
        self._connections = iter(connections)
        self.slept: list[float] = []

    def connect(self) -> Iterator[Any]:
        for step in next(self._connections):
            if isinstance(step, Exception):
                raise step
            yield step

    def events(self) -> Iterator[Any]:
        return events(self.connect, self.slept.append)


def test_events_pass_and_the_news_of_listening_does_not() -> None:
    script = Script([None, {"n": 1}, {"n": 2}])
    heard = script.events()
    assert [next(heard), next(heard)] == [{"n": 1}, {"n": 2}]


def test_a_first_attempt_that_fails_is_told_at_once() -> None:
    with pytest.raises(Unreachable, match="nobody"):
        next(Script([Unreachable("nobody")]).events())


def test_later_ones_are_tried_again_more_and_more_slowly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = [Unreachable("gone")]
    script = Script([None], *[away] * 7, [None, {"n": 1}], away, [None, {"n": 2}])
    heard = script.events()
    assert next(heard) == {"n": 1}
    assert script.slept == [1, 2, 4, 8, 16, 16, 16, 16]
    assert next(heard) == {"n": 2}
    assert script.slept[8:] == [1, 2]
    assert "gone; trying again in 2 s" in capsys.readouterr().err


def test_a_key_that_is_refused_is_not_tried_again() -> None:
    heard = Script([None, {"n": 1}], [Refused("another key now")]).events()
    next(heard)
    with pytest.raises(Refused):
        next(heard)
