"""What went wrong last with attached servers, and when that is said."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.relay.troubles import Troubles
from runtime.deploy.running import Trouble

URL, OTHER = "http://a.test/v1", "http://b.test/v1"


class Desk:
    """Troubles at a time of our own, and what was told of them last."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[dict[str, tuple[Trouble, ...]]] = []
        self.troubles = Troubles(lambda: self.now)
        self.troubles.on_change = self.told.append

    @property
    def last(self) -> dict[str, tuple[Trouble, ...]]:
        return self.told[-1]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_down_and_up_are_one_line_each_however_many_requests(desk: Desk) -> None:
    with capture_logs() as logs:
        desk.troubles.answered(URL)
        for _ in range(5):
            desk.troubles.unreachable("m", URL, "Connection refused")
            desk.troubles.unreachable("n", URL, "Connection refused")
            desk.now += 3
        desk.troubles.answered(URL)
        desk.troubles.answered(URL)
    assert [line["event"] for line in logs] == ["attached_server_down", "attached_server_up"]
    assert logs[1]["down_s"] == 15


def test_what_it_was_stays_known_once_it_is_back(desk: Desk) -> None:
    desk.troubles.unreachable("m", URL, "Connection refused")
    reason = "Connection refused"
    assert desk.last == {"m": (Trouble(url=URL, reason=reason, at=100, is_down=True),)}
    desk.troubles.answered(URL)
    assert desk.last == {"m": (Trouble(url=URL, reason=reason, at=100, is_down=False),)}


def test_a_server_that_answers_wrongly_is_up(desk: Desk) -> None:
    with capture_logs() as logs:
        desk.troubles.failed("m", URL, "it answers 401")
    assert (desk.last["m"][0].reason, desk.last["m"][0].is_down) == ("it answers 401", False)
    assert logs == []


def test_the_same_again_and_again_is_told_once_a_second(desk: Desk) -> None:
    for _ in range(21):
        desk.troubles.failed("m", URL, "it answers 500")
        desk.now += 0.125
    assert [told["m"][0].at for told in desk.told] == [100, 101, 102]
    desk.troubles.failed("m", URL, "it answers 502")
    assert desk.last["m"][0].reason == "it answers 502", "another is told at once"


def test_a_breaker_that_opens_and_closes_is_told_and_one_line_each(desk: Desk) -> None:
    with capture_logs() as logs:
        desk.troubles.failed("m", URL, "it answers 500")
        for state in ("open", "half-open", "open", "half-open", "closed", "closed"):
            desk.troubles.breaker("m", URL, state)
    assert [line["event"] for line in logs] == ["attached_server_opened", "attached_server_closed"]
    told = [(one["m"][0].breaker, one["m"][0].is_down) for one in desk.told]
    assert told == [
        ("closed", False), ("open", True), ("half-open", True), ("open", True),
        ("half-open", True), ("closed", False),
    ]  # fmt: skip


def test_what_is_no_longer_attached_is_forgotten(desk: Desk) -> None:
    desk.troubles.unreachable("m", URL, "x")
    desk.troubles.unreachable("n", OTHER, "x")
    desk.troubles.keep({OTHER})
    assert [*desk.last] == ["n"]


def test_who_can_t_be_told_fails_no_request(desk: Desk) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    desk.troubles.on_change = full
    desk.troubles.unreachable("m", URL, "x")
