"""A meter, and the frames that it sees."""

from __future__ import annotations

from gateway.meter import Meter
from gateway.prices import Usage
from gateway.relay.sse import Frame
from runtime.wire import Counts

FINAL = Usage(7, 5, 3)


class FakeClock:
    def __init__(self) -> None:
        self.us = 1_000

    def now_us(self) -> int:
        self.us += 1
        return self.us


def meter() -> Meter:
    return Meter(FakeClock())


def own(**counts: int) -> Frame:
    return Frame(b"x", counts=Counts(**counts))


def see(found: Meter, *frames: Frame, deliver: bool = True) -> Meter:
    for frame in frames:
        found.see(frame)
    if deliver:
        found.handed_over()
    return found
