"""Event streams: cut anywhere, read exactly; what a server says of usage is believed or refused."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gateway.prices import Usage
from gateway.relay.sse import (
    MAX_FRAME_BYTES,
    BadFrame,
    Frame,
    Splitter,
    foreign_reader,
    read_error,
    read_native,
    read_usage,
)
from runtime.host.answer import Piece
from runtime.host.wire import AnswerEncoder, error_object, usage_object
from runtime.wire import DONE, KEEP_ALIVE, Counts, prompt_comment

read = foreign_reader("chatcmpl-ours", "our-model")
TEXT = "a é 日本 \U0001f600 z"


def split(chunks: list[bytes]) -> list[bytes]:
    splitter = Splitter()
    return [event for chunk in chunks for event in splitter.push(chunk)]


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(i % (len(data) + 1) for i in at)})
    return [data[a:b] for a, b in pairwise(marks)]


lines = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
events = st.lists(
    st.lists(lines.map(lambda text: f"data: {text}".encode()), min_size=1, max_size=3).map(
        b"\n".join
    ),
    max_size=6,
)


@given(events, st.lists(st.integers(0, 500), max_size=20), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_however_the_bytes_came(
    whole: list[bytes], at: list[int], end: bytes
) -> None:
    data = b"".join(event.replace(b"\n", end) + end * 2 for event in whole)
    assert split(pieces(data, at)) == whole


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_utf_8_in_small_slices_survives(size: int, end: bytes) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": TEXT}}]}
    data = b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + end * 2
    (event,) = split([data[i : i + size] for i in range(0, len(data), size)])
    frame = read(event)
    assert json.loads(frame.data[6:])["choices"][0]["delta"]["content"] == TEXT


def test_lone_carriage_returns_end_lines_too() -> None:
    assert split([b"data: a\r\rdata: b\r\r", b"data: c\n\n"]) == [
        b"data: a",
        b"data: b",
        b"data: c",
    ]


def test_more_blank_lines_are_no_events() -> None:
    assert split([b"\n\n\n\ndata: a\n\n\n\n", b"\n\n"]) == [b"data: a"]


def test_an_event_waits_for_its_end() -> None:
    assert split([b"data: a\n", b"data: b"]) == []


def test_an_event_without_end_is_not_held_for_ever() -> None:
    with pytest.raises(BadFrame):
        split([b"x" * 1000] * (MAX_FRAME_BYTES // 1000 + 2))


def writer(chat: bool = True) -> AnswerEncoder:
    return AnswerEncoder(chat=chat, answer_id="chatcmpl-1", model="m", created=1)


@pytest.mark.parametrize("chat", [True, False])
def test_a_host_s_stream_is_read_as_it_was_written(chat: bool) -> None:
    """Counts are stripped, text passes byte for byte, the usage waits."""
    host = writer(chat)
    texts = [
        '"usage":{"prompt_tokens":9}',
        'data: {"error":1}\n\n: t=99\n',
        TEXT,
        '"finish_reason":"x"',
    ]
    data = prompt_comment(34, 16) + host.opening()
    for i, text in enumerate(texts, 1):
        data += host.piece(Piece(text, i * 2))
    data += host.usage(usage_object(34, 16, 8)) + DONE
    frames = [read_native(event) for event in split([data])]
    assert frames[0] == Frame(counts=Counts(prompt=34, cached=16))
    body = frames[2:] if chat else frames[1:]
    for i, (text, frame) in enumerate(zip(texts, body, strict=False), 1):
        assert frame.counts == Counts(output=i * 2)
        choice = json.loads(frame.data.removeprefix(b"data: "))["choices"][0]
        assert (choice["delta"]["content"] if chat else choice["text"]) == text
        assert (frame.usage, frame.error, frame.finish_reason, frame.tail) == (
            None,
            None,
            None,
            b"",
        )
        assert b"t=%d" % (i * 2) not in frame.data
    usage, done = frames[-2:]
    assert (usage.usage, usage.data) == (Usage(34, 16, 8), b"")
    assert json.loads(usage.tail[6:])["usage"]["completion_tokens"] == 8
    assert done == Frame(done=True)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_host_s_finish_reason_is_read(chat: bool, finish: Any) -> None:
    from engines.api import FinishReason

    data = writer(chat).piece(Piece("x", 3, FinishReason(finish)))
    frames = [read_native(event) for event in split([data])]
    assert frames[-1].finish_reason == finish
    assert all(frame.counts == Counts(output=3) for frame in frames)


def test_a_host_s_error_is_read() -> None:
    event = b"data: " + json.dumps(error_object("draining", "why"), separators=(",", ":")).encode()
    with_space = event.replace(b'{"error":{', b'{"error":{', 1)
    assert read_native(with_space).error == ("draining", "why")


def test_a_host_s_comments_alone_say_nothing_to_the_client() -> None:
    assert read_native(KEEP_ALIVE.strip()) == Frame(counts=Counts())
    assert read_native(b": t=5\n: p=1 c=0").data == b""


def chunk(**fields: Any) -> bytes:
    base = {"id": "theirs", "object": "chat.completion.chunk", "created": 5, "model": "theirs"}
    return b"data: " + json.dumps(base | fields).encode()


def delta(**fields: Any) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": fields, "finish_reason": None}]


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def test_another_server_s_id_and_model_become_ours_and_its_own_fields_stay_there() -> None:
    frame = read(chunk(choices=delta(content="x"), system_fingerprint="theirs", x_host="10.0.0.7"))
    body = json.loads(frame.data.removeprefix(b"data: "))
    assert (body["id"], body["model"], body["created"]) == ("chatcmpl-ours", "our-model", 5)
    assert b"theirs" not in frame.data
    assert b"10.0.0.7" not in frame.data
    assert frame.has_content


def test_usage_in_a_chunk_with_choices_is_read_and_told_once() -> None:
    frame = read(chunk(choices=delta(content="x"), usage=USAGE))
    assert frame.usage == Usage(7, 0, 3)
    assert b"usage" not in frame.data
    tail = json.loads(frame.tail.removeprefix(b"data: "))
    assert (tail["choices"], tail["usage"], tail["id"]) == ([], USAGE, "chatcmpl-ours")


def test_usage_of_zero_is_a_count_and_no_usage_is_none() -> None:
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    assert read(chunk(choices=[], usage=zero)).usage == Usage(0, 0, 0)
    assert read_usage(zero) == Usage(0, 0, 0)
    for absent in ({}, {"usage": None}):
        assert read(chunk(choices=delta(content="x"), **absent)).usage is None
    assert read_usage(None) is None


def test_cached_tokens_are_read_whatever_stands_beside_them() -> None:
    for details, cached in (
        ({"cached_tokens": 4}, 4),
        ({"cached_tokens": None}, 0),
        ({}, 0),
        (None, 0),
    ):
        found = read(chunk(choices=[], usage=USAGE | {"prompt_tokens_details": details})).usage
        assert found == Usage(7, cached, 3)


def test_of_a_server_without_salts_nobody_learns_what_it_had_cached() -> None:
    """It may have been another tenant's: neither told nor billed, in no field of the server's."""
    cached = {"prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0}}
    event = chunk(choices=[], usage=USAGE | cached | {"prompt_cache_hit_tokens": 4})
    frame = foreign_reader("chatcmpl-ours", "our-model", is_salted=False)(event)
    assert frame.usage == Usage(7, 0, 3)
    told = json.loads(frame.tail.removeprefix(b"data: "))["usage"]
    assert told == USAGE | {"prompt_tokens_details": {"cached_tokens": 0}}
    assert read(event).usage == Usage(7, 4, 3), "with salts it was the tenant's own"
    assert json.loads(read(event).tail.removeprefix(b"data: "))["usage"] == USAGE | cached


BAD_USAGE: list[Any] = [
    {"prompt_tokens": 7}, {"completion_tokens": 3}, USAGE | {"prompt_tokens": -1},
    USAGE | {"prompt_tokens": "many"}, USAGE | {"completion_tokens": None},
    USAGE | {"completion_tokens": 2**40}, USAGE | {"prompt_tokens_details": {"cached_tokens": 8}},
    USAGE | {"prompt_tokens_details": {"cached_tokens": -1}},
    USAGE | {"prompt_tokens_details": "none"}, USAGE | {"prompt_tokens_details": [1]},
    USAGE | {"prompt_tokens": [7]}, USAGE | {"prompt_tokens": 7.5}, "7 tokens", [7, 3], 10,
]  # fmt: skip


@pytest.mark.parametrize("usage", BAD_USAGE, ids=str)
def test_a_usage_that_can_t_be_breaks_the_answer_and_nothing_else(usage: Any) -> None:
    """Neither a guess nor a crash: nobody can tell what such an answer used."""
    with pytest.raises(BadFrame):
        read(chunk(choices=[], usage=usage))


BAD_CHUNKS: list[bytes] = [
    b"data: x", b"data: [1]", b"data: 7", b'data: "x"', b"data: null", b"data: {", b"data: \xff",
    b"data:", chunk(choices=["x"]), chunk(choices=5), chunk(choices="abc"), chunk(choices={"a": 1}),
    chunk(choices=[{"delta": "x"}]), chunk(choices=[{"delta": {}, "finish_reason": 7}]),
    chunk(choices=[{"delta": {}, "finish_reason": ["stop"]}]), b"data: " + b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("event", BAD_CHUNKS, ids=lambda event: event[-40:].decode("latin-1"))
def test_what_isn_t_a_chunk_is_a_bad_frame_and_nothing_else(event: bytes) -> None:
    with pytest.raises(BadFrame):
        read(event)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["choices", "usage", "error", "delta", "content", "finish_reason",
                         "prompt_tokens", "completion_tokens", "prompt_tokens_details"]),
        inner, max_size=4)))  # fmt: skip
def test_any_json_is_a_frame_or_a_bad_frame(value: Any) -> None:
    try:
        frame = read(b"data: " + json.dumps(value).encode())
    except BadFrame:
        return
    assert isinstance(frame, Frame)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (b'data: {"error":{"message":"m","code":"c"}}', ("c", "m")),
        (b'data: {"error":{"message":"m","type":"t","code":null}}', ("t", "m")),
        (b'data: {"error":{"code":429}}', ("429", "")),
        (b'data: {"error":"boom"}', ("upstream_error", "boom")),
        (b'data: {"error":{"message":"m"},"choices":[]}', ("upstream_error", "m")),
    ],
)
def test_an_error_event_is_read(event: bytes, error: tuple[str, str]) -> None:
    assert read(event).error == error


def test_an_error_of_null_is_no_error() -> None:
    frame = read(chunk(choices=delta(content="x"), error=None))
    assert frame.error is None
    assert frame.has_content


def test_a_long_error_is_cut() -> None:
    assert len(read_error("x" * 10_000)[1]) <= 500
    assert len(read_error({"message": "x" * 10_000})[1]) <= 500


@pytest.mark.parametrize("event", [b": ping", b"event: ping", b"id: 1\nretry: 5", b":"])
def test_comments_and_other_fields_are_dropped(event: bytes) -> None:
    assert read(event) == Frame()


def test_data_in_several_lines_is_one() -> None:
    assert read(b'event: x\ndata: {"choices":\ndata:[]}').data == b""
    assert read(b"data: [DONE]").done
    assert read(b"data:[DONE]").done
