"""A request as one line."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.live.lines import name_widths, request_line

EVENT: dict[str, Any] = {
    "timestamp": "2026-11-30T12:03:04.123456Z",
    "result": "ok",
    "status": 200,
    "model": "smollm2-135m-instruct",
    "tenant_name": "demo",
    "input_tokens": 34,
    "cached_input_tokens": 16,
    "output_tokens": 120,
    "ttft_ms": 120.3,
    "duration_ms": 1234.5,
}


def test_a_request_that_went_well() -> None:
    line = request_line(EVENT, 120)
    told = "12:03:04 200 smollm2-135m-instruct demo 34 (16) → 120 ttft 120 ms 1.23 s"
    assert " ".join(line.plain.split()) == told


def test_one_that_did_not_says_why_and_is_red() -> None:
    event = EVENT | {"result": "error", "status": 404, "code": "model_not_found"}
    line = request_line(event | {"model": None, "path": "/v1/x", "method": "GET"}, 120)
    assert "404 GET /v1/x" in line.plain
    assert "model_not_found" in line.plain
    assert any("red" in str(span.style) for span in line.spans)


def test_a_stream_that_broke_is_marked_without_colours_too() -> None:
    broken = EVENT | {"result": "error", "code": "host_lost"}
    assert " !200 smollm2-135m-instruct " in request_line(broken, 80).plain
    assert "  503 smollm2-135m-instruct " in request_line(broken | {"status": 503}, 80).plain
    assert "!" not in request_line(EVENT, 80).plain


def test_a_client_that_left_is_called_so() -> None:
    line = request_line(EVENT | {"result": "canceled", "status": 499}, 120)
    assert "client left" in line.plain


def test_what_was_lost_is_told() -> None:
    assert "7 before it" in request_line(EVENT | {"dropped": 7}, 120).plain


@pytest.mark.parametrize("width", [20, 40, 80, 100, 200])
def test_a_line_fits_whatever_it_holds(width: int) -> None:
    event = EVENT | {"model": "m" * 128, "tenant_name": "t" * 64, "code": "c" * 30}
    assert request_line(event, width).cell_len <= width


def test_an_event_with_nothing_in_it_is_a_line_too() -> None:
    assert request_line({}, 80).plain.strip()


def test_all_of_it_fits_an_ordinary_terminal() -> None:
    for event in (EVENT, EVENT | {"result": "error", "code": "context_length_exceeded"}):
        assert request_line(event, 80).plain.endswith(" 1.23 s")


def test_columns_stand_under_each_other() -> None:
    one, other = request_line(EVENT, 80).plain, request_line(EVENT | {"model": "echo"}, 80).plain
    assert one.index("demo") == other.index("demo")


def test_a_client_can_not_write_to_the_terminal() -> None:
    event = {"method": "GET", "path": "/\x1b]0;owned\x07\n", "status": 404, "code": "x"}
    assert request_line(event, 120).plain.isprintable()


def test_names_have_the_room_there_is() -> None:
    assert name_widths(40) == (21, 7)
    assert name_widths(80) == (21, 7), "the model of `make dev` is whole"
    assert name_widths(120) == (46, 22)
    assert name_widths(400) == (64, 32)
    event = EVENT | {"model": "m" * 60, "tenant_name": "t" * 30}
    assert "m" * 60 in request_line(event, 160).plain
    assert "t" * 30 in request_line(event, 160).plain
