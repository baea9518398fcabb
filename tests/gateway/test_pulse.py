"""How fast a model answered a tenant lately: medians of its last answers."""

from __future__ import annotations

from gateway.meter import Pace
from gateway.pulse import KEPT, MAX_SERIES, Pulse

NOTHING = {"ttft_p50": None, "tps_p50": None}


def test_before_any_answer_nothing_is_known() -> None:
    assert Pulse().figures("t", "m") == NOTHING


def test_medians_of_each_model_apart() -> None:
    pulse = Pulse()
    for ttft_s, rate in ((0.1, 10.0), (0.3, 30.0), (9.0, 20.0)):
        pulse.note("t", "m", Pace(ttft_s, rate))
    pulse.note("t", "other", Pace(5.0, 1.0))
    pulse.note("t", "m", None)
    assert pulse.figures("t", "m") == {"ttft_p50": 0.3, "tps_p50": 20.0}


def test_a_tenant_s_answers_move_nobody_else_s_figures() -> None:
    """Else one could read off another's: between known values a median is the one unknown."""
    pulse = Pulse()
    for ttft_s in (0.1, 0.9):
        pulse.note("curious", "m", Pace(ttft_s, None))
    before = pulse.figures("curious", "m")
    pulse.note("other", "m", Pace(0.34567, 21.0))
    assert pulse.figures("curious", "m") == before
    assert pulse.figures("nobody", "m") == NOTHING


def test_an_answer_of_one_token_has_no_rate() -> None:
    pulse = Pulse()
    pulse.note("t", "m", Pace(0.2, None))
    assert pulse.figures("t", "m") == {"ttft_p50": 0.2, "tps_p50": None}


def test_old_answers_are_forgotten() -> None:
    pulse = Pulse()
    for _ in range(KEPT):
        pulse.note("t", "m", Pace(9.0, 1.0))
    for _ in range(KEPT):
        pulse.note("t", "m", Pace(0.1, 50.0))
    assert pulse.figures("t", "m") == {"ttft_p50": 0.1, "tps_p50": 50.0}


def test_of_many_tenants_those_silent_for_longest_are_forgotten() -> None:
    pulse = Pulse()
    pulse.note("early", "m", Pace(1.0, None))
    pulse.note("busy", "m", Pace(1.0, None))
    for number in range(MAX_SERIES - 1):
        pulse.note("busy", "m", Pace(1.0, None))
        pulse.note(f"t{number}", "m", Pace(1.0, None))
    assert pulse.figures("early", "m") == NOTHING
    assert pulse.figures("busy", "m")["ttft_p50"] == 1.0
