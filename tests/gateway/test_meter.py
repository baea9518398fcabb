"""What an answer used, counted as it passes."""

from __future__ import annotations

from gateway.billing import Outcome, UsageSource
from gateway.meter import Pace
from gateway.prices import Usage
from gateway.relay.sse import Frame
from tests.gateway.counting import FINAL, meter, own, see


def test_a_host_s_counts_are_taken_exactly() -> None:
    found = see(meter(), own(prompt=34, cached=16), own(output=1), own(output=7))
    told = found.usage(Outcome.CLIENT_CANCELLED)
    assert told == (Usage(34, 16, 7), UsageSource.UPSTREAM_RUNNING)


def test_what_left_the_engine_but_not_the_gateway_isn_t_delivered() -> None:
    found = see(meter(), own(prompt=34, cached=16), own(output=2))
    see(found, own(output=9), deliver=False)
    assert found.usage(Outcome.CLIENT_CANCELLED)[0] == Usage(34, 16, 2)


def test_an_opening_frame_is_no_token() -> None:
    found = see(meter(), own(prompt=34, cached=0), Frame(b"role"))
    assert found.first_token_at is None
    assert found.usage(Outcome.CLIENT_CANCELLED)[0] == Usage(34, 0, 0)
    see(found, own(output=1))
    assert found.first_token_at == 1_002
    see(found, own(output=2))
    assert found.first_token_at == 1_002, "the first is the first"


def test_a_pace_is_told_of_what_was_seen_token_by_token() -> None:
    """Of the clock: 1001 at the start, 1002 at the first token, 1003 at the end."""
    assert meter().pace() is None
    found = see(meter(), own(prompt=1, cached=0), own(output=1))
    assert found.pace() == Pace(ttft_s=1e-6, tokens_per_s=None)
    found = see(meter(), own(prompt=1, cached=0), own(output=1), own(output=5))
    assert found.pace() == Pace(ttft_s=1e-6, tokens_per_s=4_000_000.0)


def test_another_server_s_frames_with_text_are_counted_and_said_to_be() -> None:
    text, empty = Frame(b"x", has_content=True), Frame(b"role")
    found = see(meter(), empty, text, text, text, Frame(b"x", finish_reason="stop"))
    assert found.usage(Outcome.CLIENT_CANCELLED) == (Usage(0, 0, 3), UsageSource.GATEWAY_COUNT)


def test_another_server_that_counts_along_is_believed() -> None:
    """litellm#14457: what a client used that left before the last chunk was lost."""
    running = [Frame(b"x", usage=Usage(34, 16, n), has_content=True) for n in (1, 3)]
    found = see(meter(), Frame(b"role"), *running)
    told = found.usage(Outcome.CLIENT_CANCELLED)
    assert told == (Usage(34, 16, 3), UsageSource.UPSTREAM_RUNNING)


def test_what_begins_anew_is_counted_anew() -> None:
    """A first try that was stopped may have told its usage."""
    stopped = Frame(usage=Usage(34, 16, 5), finish_reason="stop")
    found = see(meter(), stopped, Frame(begins_anew=True))
    assert found.usage(Outcome.CLIENT_CANCELLED) == (None, UsageSource.NONE)
    assert (found.final, found.finish_reason) == (None, None)
    see(found, Frame(b"x", usage=Usage(34, 0, 1), has_content=True))
    assert found.usage(Outcome.CLIENT_CANCELLED)[0] == Usage(34, 0, 1)


def counted(output: int, prompt: int = 7, text: bytes = b"x") -> Frame:
    """A chunk of another server's that tells the usage so far."""
    return Frame(text, usage=Usage(prompt, 5, output), has_content=bool(text))


def test_another_server_that_counts_along_is_believed_prompt_and_all() -> None:
    found = see(meter(), counted(0, text=b""), counted(2), counted(5))
    see(found, counted(9), deliver=False)
    told = found.usage(Outcome.CLIENT_CANCELLED)
    assert told == (Usage(7, 5, 5), UsageSource.UPSTREAM_RUNNING)


def test_a_server_that_only_told_of_the_prompt_has_its_frames_counted() -> None:
    text = Frame(b"x", has_content=True)
    for told in (counted(0, text=b""), counted(0)):  # the second says so beside a first token
        found = see(meter(), told, text, text)
        output = 2 + told.has_content
        expected = (Usage(7, 5, output), UsageSource.GATEWAY_COUNT)
        assert found.usage(Outcome.CLIENT_CANCELLED) == expected


def test_zeros_beside_text_make_no_answer_free() -> None:
    """Some servers tell of zeros with each chunk until the last."""
    zero = Frame(b"x", usage=Usage(0, 0, 0), has_content=True)
    found = see(meter(), zero, zero)
    assert found.usage(Outcome.CLIENT_CANCELLED) == (Usage(0, 0, 2), UsageSource.GATEWAY_COUNT)


def test_who_leaves_as_the_total_comes_pays_for_the_prompt() -> None:
    text = Frame(b"x", has_content=True)
    found = see(meter(), text, text)
    see(found, Frame(usage=FINAL), deliver=False)
    assert found.usage(Outcome.CLIENT_CANCELLED)[0] == Usage(7, 5, 2)


def test_a_finished_answer_s_own_total_wins() -> None:
    found = see(meter(), own(prompt=1, cached=0), own(output=2), Frame(usage=FINAL))
    for outcome in (Outcome.COMPLETED, Outcome.LENGTH):
        assert found.usage(outcome) == (FINAL, UsageSource.UPSTREAM_FINAL)


def test_the_last_total_wins_and_zero_is_one() -> None:
    found = see(meter(), Frame(b"x", usage=FINAL, has_content=True), Frame(usage=Usage(0, 0, 0)))
    assert found.usage(Outcome.COMPLETED) == (Usage(0, 0, 0), UsageSource.UPSTREAM_FINAL)


def test_who_left_before_the_end_is_billed_what_was_delivered_not_the_total() -> None:
    found = see(meter(), own(prompt=7, cached=5), own(output=2))
    see(found, own(output=3), Frame(usage=FINAL), deliver=False)
    assert found.usage(Outcome.CLIENT_CANCELLED)[0] == Usage(7, 5, 2)


def test_nothing_counted_is_unknown_and_not_zero() -> None:
    assert see(meter(), Frame(b"x")).usage(Outcome.COMPLETED) == (None, UsageSource.NONE)
    assert meter().usage(Outcome.UPSTREAM_ERROR) == (None, UsageSource.NONE)
