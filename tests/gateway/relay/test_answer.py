"""What is an answer, and what isn't: by our reader, and by h11 beside it.

h11 is the second opinion: whatever it refuses, we refuse, and what both take they read alike. Ours
refuses more, which is fine: old ways of folding and of ending lines, lengths told twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import h11
import pytest
from hypothesis import example, given, strategies as st

from gateway.relay.http1.answer import MAX_HEAD_BYTES, Answer
from gateway.relay.http1.faults import Broken

OK = b"HTTP/1.1 200 OK\r\n"
TWO = b"content-length: 2\r\n\r\nhi"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


@dataclass(frozen=True)
class Read:
    """What a reader made of some bytes and the end of the connection after them."""

    is_refused: bool
    status: int = 0
    body: bytes = b""
    may_follow: bool = False


REFUSED = Read(is_refused=True)


def ours(data: bytes, cuts: tuple[int, ...] = (), method: str = "POST") -> Read:
    answer, body = Answer(method), b""
    points = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    try:
        for begin, end in pairwise(points):
            answer.feed(memoryview(data)[begin:end])
            body += answer.take()
        may_follow = answer.may_follow
        answer.end()
    except Broken:
        return REFUSED
    assert answer.is_done, "it neither ended nor broke"
    return Read(False, answer.status, body, may_follow)


def h11_s(data: bytes, method: str = "POST") -> Read:
    reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    reader.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    reader.send(h11.EndOfMessage())
    status, body, is_ended = 0, b"", False
    try:
        reader.receive_data(data)
        while True:
            event = reader.next_event()
            if event is h11.NEED_DATA:
                if is_ended:
                    return REFUSED
                is_ended = True
                reader.receive_data(b"")
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            elif not isinstance(event, h11.InformationalResponse):
                return REFUSED
    except h11.RemoteProtocolError:
        return REFUSED
    may_follow = reader.their_state is h11.DONE and not is_ended
    return Read(False, status, body, may_follow and not reader.trailing_data[0])


GOOD = {
    "a length": (OK + TWO, b"hi", True),
    "chunks": (CHUNKED + b"2\r\nhi\r\n3\r\n ho\r\n" + LAST, b"hi ho", True),
    "chunks with extensions": (CHUNKED + b'2;a=b;c="d"\r\nhi\r\n' + LAST, b"hi", True),
    "chunks with trailers": (CHUNKED + b"2\r\nhi\r\n0\r\nx: y\r\n\r\n", b"hi", True),
    "zeros before a size": (CHUNKED + b"0002\r\nhi\r\n000\r\n\r\n", b"hi", True),
    "the connection's end": (OK + b"\r\nhello", b"hello", False),
    "it says that it closes": (OK + b"connection: close\r\n" + TWO, b"hi", False),
    "an old version": (b"HTTP/1.0 200 OK\r\n" + TWO, b"hi", False),
    "an old one that stays": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n" + TWO, b"hi", True),
    "hints before it": (b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" * 3 + OK + TWO, b"hi", True),
    "no reason": (b"HTTP/1.1 200\r\n" + TWO, b"hi", True),
    "nothing, by status": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "an offer to switch": (OK + b"connection: upgrade\r\nupgrade: x\r\n" + TWO, b"hi", True),
    "another one after it": (OK + TWO + OK + TWO, b"hi", False),
    "bytes after it": (OK + TWO + b"x", b"hi", False),
    "blank lines after it": (OK + TWO + b"\r\n\r\n", b"hi", False),
    "blank lines after chunks": (CHUNKED + b"2\r\nhi\r\n" + LAST + b"\r\n", b"hi", False),
    "blank lines after a head": (OK + b"content-length: 0\r\n\r\n\r\n", b"", False),
    "a body that ends a line": (OK + b"content-length: 3\r\n\r\nhi\n", b"hi\n", True),
    "a body of line breaks alone": (OK + b"content-length: 2\r\n\r\n\r\n", b"\r\n", False),
}


@pytest.mark.parametrize("name", GOOD)
def test_an_answer_is_read_however_it_is_cut(name: str) -> None:
    data, body, may_follow = GOOD[name]
    for cuts in ((), tuple(range(len(data))), *((cut,) for cut in range(len(data)))):
        read = ours(data, cuts)
        assert read.body == body
        assert may_follow or not read.may_follow
    assert ours(data).may_follow == may_follow
    assert h11_s(data).body == body


BAD = {
    "two lengths": OK + b"content-length: 3\r\n" + TWO,
    "a length twice": OK + b"content-length: 2\r\n" + TWO,
    "a list of lengths": OK + b"content-length: 2, 2\r\n\r\nhi",
    "a length and chunks": OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + LAST,
    "chunks and a length": OK + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n" + LAST,
    "chunks in an old version": b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + LAST,
    "a coding twice": OK + b"transfer-encoding: chunked, chunked\r\n\r\n" + LAST,
    "another coding": OK + b"transfer-encoding: gzip, chunked\r\n\r\n" + LAST,
    "an unknown coding": OK + b"transfer-encoding: xchunked\r\n\r\n" + LAST,
    "a negative length": OK + b"content-length: -2\r\n\r\nhi",
    "a length with a sign": OK + b"content-length: +2\r\n\r\nhi",
    "a length in hex": OK + b"content-length: 0x2\r\n\r\nhi",
    "an empty length": OK + b"content-length:\r\n\r\nhi",
    "a length of 30 digits": OK + b"content-length: " + b"9" * 30 + b"\r\n\r\nhi",
    "a folded field": OK + b"x: a\r\n b\r\n" + TWO,
    "a folded coding": OK + b"transfer-encoding:\r\n chunked\r\n\r\n" + LAST,
    "lines that end in LF": (OK + TWO).replace(b"\r\n", b"\n"),
    "one line that ends in LF": OK + b"x: y\n" + TWO,
    "a CR within a value": OK + b"x: a\rcontent-length: 3\r\n" + TWO,
    "a NUL": OK + b"x: a\0b\r\n" + TWO,
    "a space before the colon": OK + b"content-length : 2\r\n\r\nhi",
    "a space before a name": OK + b" x: y\r\n" + TWO,
    "a field without a colon": OK + b"oops\r\n" + TWO,
    "an empty name": OK + b": y\r\n" + TWO,
    "a chunk of negative size": CHUNKED + b"-1\r\nhi\r\n" + LAST,
    "a chunk of 20 digits": CHUNKED + b"f" * 20 + b"\r\nhi",
    "a chunk without a size": CHUNKED + b"\r\nhi\r\n" + LAST,
    "a chunk size with 0x": CHUNKED + b"0x2\r\nhi\r\n" + LAST,
    "a chunk longer than it says": CHUNKED + b"2\r\nhiho\r\n" + LAST,
    "a chunk line that ends in LF": CHUNKED + b"2\nhi\r\n" + LAST,
    "another version": b"HTTP/2.0 200 OK\r\n" + TWO,
    "no version": b"HTTP 200 OK\r\n" + TWO,
    "another protocol": b"RTSP/1.0 200 OK\r\n" + TWO,
    "a protocol without heads": b"ICY 200 OK\r\n" + TWO,
    "a status of two digits": b"HTTP/1.1 99 X\r\n" + TWO,
    "a status of four": b"HTTP/1.1 2000 X\r\n" + TWO,
    "a status that isn't one": b"HTTP/1.1 777 X\r\n" + TWO,
    "a switch": b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    "a hint with a body": b"HTTP/1.1 103 X\r\n" + TWO + OK + TWO,
    "blank lines before it": b"\r\n\r\n" + OK + TWO,
    "a request": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "half a head": OK + b"content-le",
    "half a body": OK + b"content-length: 3\r\n\r\nhi",
    "half a chunk": CHUNKED + b"3\r\nhi",
    "chunks without an end": CHUNKED + b"2\r\nhi\r\n",
    "trailers without an end": CHUNKED + b"2\r\nhi\r\n0\r\nx: y\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_answer_is_refused_however_it_is_cut(name: str) -> None:
    data = BAD[name]
    for cuts in ((), tuple(range(len(data))), *((cut,) for cut in range(len(data)))):
        assert ours(data, cuts).is_refused


ENDLESS = {
    "a field": OK + b"x: ",
    "fields": OK,
    "hints": b"",
    "a reason": b"HTTP/1.1 200 ",
    "a chunk's extension": CHUNKED + b"2;",
    "trailers": CHUNKED + b"2\r\nhi\r\n0\r\n",
}
MORE = {"fields": b"x: y\r\n", "trailers": b"x: y\r\n", "hints": b"HTTP/1.1 103 X\r\n\r\n"}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("size", [1000, 70_000])
def test_what_never_ends_is_refused_before_it_fills_the_memory(name: str, size: int) -> None:
    answer, more, fed = Answer(), MORE.get(name, b"a"), 0
    answer.feed(ENDLESS[name])
    piece = more * (size // len(more) + 1)
    while fed <= MAX_HEAD_BYTES - len(piece):
        answer.feed(piece)
        fed += len(piece)
    answer.feed(piece[:10])
    with pytest.raises(Broken):
        answer.feed(piece)


def test_a_head_may_ask_for_a_body_that_is_not_there() -> None:
    """HEAD and 304 tell of one; the next bytes would be another answer."""
    assert ours(OK + TWO, method="HEAD") == Read(False, 200, b"", False)
    assert ours(b"HTTP/1.1 304 X\r\n" + TWO) == Read(False, 304, b"", False)


# Pieces that readers have disagreed on, for Hypothesis to put together.
STARTS = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 X"),
        *(b"HTTP/1.1 304 X", b"HTTP/1.1 500 ", b"HTTP/1.1 200", b"HTTP/1.1  200 OK"),
        *(b"HTTP/2.0 200 OK", b"HTTP/1.1 0200 OK", b"http/1.1 200 OK", b"HTTP/1.1 101 X"),
        *(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK", b"HTTP/1.1 200 \x00", b"HTTP/1.1 2 0"),
    ]
)
FIELDS = st.sampled_from(
    [
        *(b"content-length: 5", b"Content-Length: 5", b"content-length: 0", b"content-length: 6"),
        *(b"content-length: 05", b"content-length: 5, 5", b"content-length: 5 "),
        *(
            b"content-length:",
            b"content-length: -5",
            b"content-length:\t5",
            b"content-length: 5;",
            b"content_length: 5",
        ),
        *(b"transfer-encoding: chunked", b"Transfer-Encoding: Chunked", b"transfer-encoding:"),
        *(b"transfer-encoding: identity", b"transfer-encoding: chunked,", b"transfer-encoding : x"),
        *(b"transfer-encoding: \x0bchunked", b"transfer-encoding: chunked\r\n\tx", b"x: y\r\n z"),
        *(b"connection: close", b"connection: keep-alive", b"connection: upgrade", b"upgrade: x"),
        *(b"x: y", b"x:", b"x", b"x y: z", b"x: \x00", b"x: \x7f", b"x: \xff", b"x: a\rb", b""),
    ]
)
BODIES = st.sampled_from(
    [
        *(b"hello", b"", b"hell", b"hello!", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\n"),
        *(b"5;x\r\nhello\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"05\r\nhello\r\n00\r\n\r\n"),
        *(b"5\nhello\n0\n\n", b"5\r\nhello0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"0\r\nx\r\n\r\n"),
        *(b"+5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\ncontent-length: 9\r\n\r\n"),
        b"0\r\n\r\n",
        *(b"G\r\n", b"ffffffffffffffff\r\nhello", b"5;\r\nhello\r\n0\r\n\r\n", b"5\r\r\nhello"),
    ]
)
ENDS = st.sampled_from([b"", b"", b"", b"\r\n", b"x", OK + TWO, b"\0", b"HTTP/1.1 100 X\r\n\r\n"])
BREAKS = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r", b"\r\r\n"])


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Answers that are sound, nearly sound, and not at all."""
    lines = [draw(STARTS), *draw(st.lists(FIELDS, max_size=4)), b""]
    data = b"".join(line + draw(BREAKS) for line in lines) + draw(BODIES) + draw(ENDS)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 2))
        data = data[:at] + draw(st.binary(max_size=2)) + data[at + cut :]
    return data


CUTS = st.lists(st.integers(1, 200), max_size=6).map(tuple)


@given(answers(), CUTS, st.sampled_from(["POST", "GET", "HEAD"]))
@example(b"HTTP/1.1 100 X\r\n\r\n" + OK + TWO, (1, 18), "POST")
def test_it_agrees_with_h11_and_itself(data: bytes, cuts: tuple[int, ...], method: str) -> None:
    whole, second = ours(data, (), method), h11_s(data, method)
    cut = ours(data, cuts, method)
    assert replace(cut, may_follow=False) == replace(whole, may_follow=False)
    assert second.may_follow or not cut.may_follow
    if second.is_refused:
        assert whole.is_refused
    elif not whole.is_refused:
        assert (whole.status, whole.body) == (second.status, second.body)
        assert second.may_follow or not whole.may_follow, "what may be another's is nobody's"


@given(st.binary(max_size=200), CUTS)
def test_noise_is_refused(noise: bytes, cuts: tuple[int, ...]) -> None:
    assert ours(noise, cuts).is_refused
    after = ours(OK + TWO + noise, cuts)
    assert after.body == b"hi"
    assert not (noise and after.may_follow)
