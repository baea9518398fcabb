"""Windows: local days and months as instants; every moment is in exactly one."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from gateway.budgets.windows import EPOCH, US, Kind, NoSuchZone, Window, window_at, zone_of

HOUR = 3_600_000_000


def us(text: str) -> int:
    return (datetime.datetime.fromisoformat(text) - EPOCH) // US


def at(kind: Kind, moment: str, zone: str) -> Window:
    return window_at(kind, us(moment), ZoneInfo(zone), 0)


@pytest.mark.parametrize(
    ("moment", "zone", "starts", "hours"),
    [
        ("2026-11-30T12:00Z", "UTC", "2026-11-30T00:00Z", 24),
        ("2026-11-30T15:30Z", "Asia/Tokyo", "2026-11-30T15:00Z", 24),
        ("2026-03-29T12:00Z", "Europe/Paris", "2026-03-28T23:00Z", 23),  # clocks go forward
        ("2026-10-25T12:00Z", "Europe/Paris", "2026-10-24T22:00Z", 25),  # and back
        ("2024-02-29T01:00Z", "America/New_York", "2024-02-28T05:00Z", 24),
        ("2024-02-29T06:00Z", "America/New_York", "2024-02-29T05:00Z", 24),
        ("2026-04-24T12:00Z", "Africa/Cairo", "2026-04-23T22:00Z", 23),  # there is no midnight
        ("2018-02-17T12:00Z", "America/Sao_Paulo", "2018-02-17T02:00Z", 25),  # 23:00 comes twice
        ("2026-11-01T12:00Z", "America/Havana", "2026-11-01T04:00Z", 25),  # 00:00 comes twice
        ("2026-04-05T02:00Z", "Australia/Lord_Howe", "2026-04-04T13:00Z", 24.5),  # by half an hour
        ("2026-11-30T20:00Z", "Asia/Kathmandu", "2026-11-30T18:15Z", 24),
    ],
)
def test_days_are_those_of_the_zone(moment: str, zone: str, starts: str, hours: float) -> None:
    window = at("daily", moment, zone)
    assert window.starts_at == us(starts)
    assert window.ends_at == us(starts) + int(hours * HOUR)


def test_a_day_that_a_country_left_out_is_no_window() -> None:
    """Samoa had no 30 December 2011."""
    before = at("daily", "2011-12-30T09:59:59Z", "Pacific/Apia")
    after = at("daily", "2011-12-30T10:00:00Z", "Pacific/Apia")
    assert before.ends_at == after.starts_at == us("2011-12-30T10:00:00Z")


@pytest.mark.parametrize(
    ("moment", "starts", "ends"),
    [
        ("2024-02-29T23:59:59.999999Z", "2024-02-01T00:00Z", "2024-03-01T00:00Z"),
        ("2024-03-01T00:00Z", "2024-03-01T00:00Z", "2024-04-01T00:00Z"),
        ("2026-02-14T00:00Z", "2026-02-01T00:00Z", "2026-03-01T00:00Z"),
        ("2026-12-31T23:59Z", "2026-12-01T00:00Z", "2027-01-01T00:00Z"),
    ],
)
def test_months_end_where_they_do(moment: str, starts: str, ends: str) -> None:
    assert at("monthly", moment, "UTC") == Window(us(starts), us(ends))


def test_a_month_has_its_zones_clock_at_both_ends() -> None:
    window = at("monthly", "2026-03-15T00:00Z", "Europe/Paris")
    assert window == Window(us("2026-02-28T23:00Z"), us("2026-03-31T22:00Z"))


def test_a_total_begins_with_its_budget_and_never_ends() -> None:
    assert window_at("total", us("2026-11-30T00:00Z"), ZoneInfo("UTC"), 5) == Window(5, None)


ZONES = st.sampled_from(
    (
        *("UTC", "Europe/Paris", "America/Havana", "America/Sao_Paulo", "Africa/Cairo"),
        *("Asia/Beirut", "Pacific/Apia", "Australia/Lord_Howe", "Asia/Tehran", "Asia/Gaza"),
        *("America/St_Johns", "America/Toronto", "Pacific/Kwajalein", "Africa/Casablanca"),
    )
).map(ZoneInfo)


@given(
    zone=ZONES,
    now_us=st.integers(us("1910-01-01T00:00Z"), us("2100-01-01T00:00Z")),
    kind=st.sampled_from(["daily", "monthly"]),
)
@settings(max_examples=400)
def test_windows_tile_time(zone: ZoneInfo, now_us: int, kind: Kind) -> None:
    window = window_at(kind, now_us, zone, 0)
    assert window.ends_at is not None
    assert window.starts_at <= now_us < window.ends_at
    for inside in (window.starts_at, window.ends_at - 1):
        assert window_at(kind, inside, zone, 0) == window
    assert window_at(kind, window.ends_at, zone, 0).starts_at == window.ends_at
    assert window_at(kind, window.starts_at - 1, zone, 0).ends_at == window.starts_at


@pytest.mark.parametrize("name", ["", "Europe", "Mars/Olympus", "../etc/passwd", "/UTC", "a\0b"])
def test_what_is_no_zone_is_told(name: str) -> None:
    with pytest.raises(NoSuchZone, match="not a time zone"):
        zone_of(name)
