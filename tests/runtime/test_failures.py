"""Failures in a row: longer and longer waits, then none but one try at a time."""

from __future__ import annotations

from runtime.config.sections import HostSettings
from runtime.node.failures import REPEATS_S, Failures

SETTINGS = HostSettings(
    backoff_first_s=1, backoff_max_s=3, max_failures=4, retry_failed_s=100
)  # waits of 1, 2, 3 s


def failed(times: int, now: float = 0.0) -> Failures:
    failures = Failures()
    for _ in range(times):
        failures.note("no memory", 0, now, SETTINGS)
    return failures


def test_each_failure_is_waited_out_for_longer() -> None:
    assert [failed(n).retry_at for n in (1, 2, 3)] == [1, 2, 3]
    failures = failed(2, now=10)
    assert (failures.holds_back(11.9), failures.holds_back(12)) == (True, False)


def test_too_many_in_a_row_and_the_model_has_failed_with_its_reason() -> None:
    failures = failed(4)
    assert (failures.has_failed, failures.count, failures.reason) == (True, 4, "no memory")
    assert failures.holds_back(99.9)
    assert not failed(3).has_failed


def test_one_that_has_failed_gets_one_try_when_its_time_has_come() -> None:
    failures = failed(4)
    assert not failures.holds_back(100)
    assert not failures.has_failed
    failures.note("again", 0, 101, SETTINGS)
    assert failures.has_failed
    assert failures.holds_back(200)


def test_a_host_that_served_for_long_has_cleared_what_was_before() -> None:
    failures = failed(3)
    failures.note("out of memory", 3600, 5000, SETTINGS)
    assert (failures.count, failures.retry_at) == (1, 5001)


def test_a_host_that_served_already_when_others_failed_says_nothing_of_them() -> None:
    failures = failed(2, now=50)
    failures.forgive(ready_at=49)
    assert failures.count == 2
    failures.forgive(ready_at=51)
    assert (failures.count, failures.holds_back(51)) == (0, False)


def test_clearing_forgets_everything() -> None:
    failures = failed(4)
    failures.clear()
    assert (failures.count, failures.reason, failures.holds_back(0)) == (0, "", False)


def test_a_host_that_asks_to_be_replaced_is_no_failure_unless_the_next_does_soon() -> None:
    failures = Failures()
    assert not failures.note_retirement("another domain's page", 9, 100, SETTINGS)
    assert (failures.count, failures.holds_back(100)) == (0, False)
    assert not failures.note_retirement("another domain's page", 9, 100 + REPEATS_S, SETTINGS)
    assert failures.note_retirement("another domain's page", 9, 101 + REPEATS_S, SETTINGS)
    assert (failures.count, failures.reason) == (1, "another domain's page")
    assert failures.holds_back(101 + REPEATS_S)


def test_hosts_that_all_ask_to_be_replaced_at_once_have_failed() -> None:
    failures = Failures()
    for _ in range(1 + SETTINGS.max_failures):
        failures.note_retirement("another domain's page", 9, 100, SETTINGS)
    assert failures.has_failed
