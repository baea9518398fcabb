"""When jobs run: boundaries of cron expressions, in UTC."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given, strategies as st

from gateway.crons.schedule import due, last_until, next_after, period_before
from runtime.config.sections import CronSettings

MINUTE = datetime.timedelta(minutes=1)
EXPRESSIONS = ("0 3 * * *", "* * * * *", "*/7 * * * *", "30 0 1 * *", "0 0 29 2 *", "15 4 * * 1")
FIRST, LAST = (datetime.datetime.fromisoformat(f"{year}-01-01") for year in (2024, 2040))
MOMENTS = st.datetimes(FIRST, LAST, timezones=st.just(datetime.UTC))


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


def job(cron: str) -> CronSettings:
    return CronSettings(cron=cron, run="warm", model="m")


def fired(cron: str, since: str, now: str) -> list[str]:
    return [f"{when:%d %H:%M:%S}" for _, when in due([job(cron)], at(since), at(now))]


@pytest.mark.parametrize(
    ("since", "now", "when"),
    [
        ("2026-11-30T02:59:59", "2026-11-30T02:59:59.9", []),
        ("2026-11-30T02:59:59.9", "2026-11-30T03:00:00", ["30 03:00:00"]),
        ("2026-11-30T02:59:59", "2026-11-30T03:00:00.4", ["30 03:00:00"]),
        ("2026-11-30T03:00:00", "2026-11-30T03:00:01", []),
        ("2026-11-30T03:00:00.4", "2026-11-30T03:00:01", []),
        ("2026-11-27T01:00:00", "2026-11-30T09:00:00", ["30 03:00:00"]),
    ],
    ids=["before", "at it", "just after it", "not again", "nor a moment later", "late: once"],
)
def test_a_job_is_due_once_for_a_boundary(since: str, now: str, when: list[str]) -> None:
    assert fired("0 3 * * *", since, now) == when


def test_a_clock_that_was_set_back_makes_nothing_due() -> None:
    assert fired("* * * * *", "2026-11-30T03:00:30", "2026-11-30T02:00:00") == []


def test_each_job_has_its_own_boundary() -> None:
    jobs = [job("0 * * * *"), job("59 2 * * *"), job("0 4 * * *")]
    found = due(jobs, at("2026-11-30T02:30:00"), at("2026-11-30T03:10:00"))
    assert found == [(jobs[0], at("2026-11-30T03:00:00")), (jobs[1], at("2026-11-30T02:59:00"))]


@given(st.sampled_from(EXPRESSIONS), MOMENTS)
def test_periods_meet_without_gap_or_overlap(cron: str, moment: datetime.datetime) -> None:
    last, following = last_until(cron, moment), next_after(cron, moment)
    assert last <= moment < following
    assert period_before(cron, following) == last
    assert next_after(cron, last) == following
    assert last_until(cron, last) == last


@given(st.sampled_from(EXPRESSIONS[:3]), MOMENTS, st.lists(st.integers(0, 200), max_size=20))
def test_however_often_one_looks_each_boundary_comes_once(
    cron: str, start: datetime.datetime, gaps_s: list[int]
) -> None:
    seen: list[datetime.datetime] = []
    since = start
    for gap_s in gaps_s:
        now = since + datetime.timedelta(seconds=gap_s)
        seen += [when for _, when in due([job(cron)], since, now)]
        since = now
    assert seen == sorted(set(seen))
    if max(gaps_s, default=0) < 60:
        expected, when = [], next_after(cron, start)
        while when <= since:
            expected.append(when)
            when = next_after(cron, when)
        assert seen == expected
