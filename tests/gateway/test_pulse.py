"""How fast a model answered lately: medians of the last answers."""

from __future__ import annotations

from gateway.meter import Pace
from gateway.pulse import KEPT, Pulse


def test_before_any_answer_nothing_is_known() -> None:
    assert Pulse().figures("m") == {"ttft_p50": None, "tps_p50": None}


def test_medians_of_each_model_apart() -> None:
    pulse = Pulse()
    for ttft_s, rate in ((0.1, 10.0), (0.3, 30.0), (9.0, 20.0)):
        pulse.note("m", Pace(ttft_s, rate))
    pulse.note("other", Pace(5.0, 1.0))
    pulse.note("m", None)
    assert pulse.figures("m") == {"ttft_p50": 0.3, "tps_p50": 20.0}


def test_an_answer_of_one_token_has_no_rate() -> None:
    pulse = Pulse()
    pulse.note("m", Pace(0.2, None))
    assert pulse.figures("m") == {"ttft_p50": 0.2, "tps_p50": None}


def test_old_answers_are_forgotten() -> None:
    pulse = Pulse()
    for _ in range(KEPT):
        pulse.note("m", Pace(9.0, 1.0))
    for _ in range(KEPT):
        pulse.note("m", Pace(0.1, 50.0))
    assert pulse.figures("m") == {"ttft_p50": 0.1, "tps_p50": 50.0}
