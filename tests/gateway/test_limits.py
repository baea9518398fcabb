"""How many completions at once, and which requests the log tells of."""

from __future__ import annotations

import pytest

from gateway.errors import GatewayBusy
from gateway.ids import new_id
from gateway.in_flight import InFlight
from gateway.sampling import is_told
from runtime.config.observability import ObservabilitySettings


def test_no_more_than_the_limit_at_once() -> None:
    found = InFlight()
    with found.counted(2), found.counted(2):
        with pytest.raises(GatewayBusy, match="2 completions"), found.counted(2):
            raise AssertionError("it was let in")
        assert found.count == 2
        with found.counted(3):
            pass  # the limit is each request's own: a reload may raise it
    assert found.count == 0


def test_a_request_that_fails_gives_its_place_back() -> None:
    found = InFlight()
    with pytest.raises(ZeroDivisionError), found.counted(1):
        raise ZeroDivisionError
    assert found.count == 0


def told(*, failed: bool = False, **settings: float | bool) -> list[bool]:
    ids = [f"req_{i:026}" for i in range(2000)]
    sampling = ObservabilitySettings(**settings)  # type: ignore[arg-type]
    return [is_told(sampling, id, failed=failed) for id in ids]


def test_by_default_every_request_is_told() -> None:
    assert all(told())
    assert all(told(failed=True))


def test_a_share_of_the_successful_ones_is_told_and_always_the_same() -> None:
    found = told(head_sampling_rate=0.25)
    assert 400 < sum(found) < 600
    assert found == told(head_sampling_rate=0.25)
    assert all(
        one or not less for one, less in zip(found, told(head_sampling_rate=0.1), strict=True)
    )


def test_the_ids_that_requests_have_are_spread_evenly() -> None:
    sampling = ObservabilitySettings(head_sampling_rate=0.5)
    count = sum(is_told(sampling, new_id("req"), failed=False) for _ in range(2000))
    assert 850 < count < 1150


def test_a_failed_request_is_told_whatever_the_share() -> None:
    assert not any(told(head_sampling_rate=0))
    assert all(told(head_sampling_rate=0, failed=True))


def test_nothing_is_told_when_it_is_off() -> None:
    assert not any(told(enabled=False))
    assert not any(told(enabled=False, failed=True))
