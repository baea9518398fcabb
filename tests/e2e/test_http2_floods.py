"""Callers without a key who flood HTTP/2: they're hung up on, or hold little, and others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import (
    ContinuationFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

from tests.authority import Authority
from tests.e2e.clients import BODY
from tests.e2e.frames import Frames
from tests.e2e.memory import rss_mb
from tests.e2e.test_tls import SERVER
from tests.stack import Stack, fake_config, running

GROWTH_MB = 32  # of a worker, by one connection
FLOOD_BYTES = 48 << 20  # what is answered one by one would take more than `GROWTH_MB`
MOST_HEAD_BYTES = 64 * 1024
NAMED_BYTES = 4000  # of the one header that fits HPACK's table, named by one byte from then on


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("floods"))
    authority.issue()
    return authority


@pytest.fixture(scope="module")
def stack(authority: Authority) -> Iterator[Stack]:
    config = fake_config(more=SERVER)
    with running(authority.folder, config, tls=authority.context()) as stack:
        yield stack


@pytest.fixture
def held(stack: Stack) -> Iterator[None]:
    """Whatever the test does, the worker lives, answers another caller, and hasn't grown."""
    worker = stack.worker_pid()
    with stack.client() as client:
        assert client.post("/v1/completions", json=BODY).status_code == 200
        before = rss_mb(worker)
        yield
        assert rss_mb(worker) - before < GROWTH_MB
        assert client.post("/v1/completions", json=BODY).status_code == 200
    assert stack.worker_pid() == worker


def resets(frames: Frames) -> Iterator[bytes]:
    while True:
        stream = frames.stream()
        cancel = RstStreamFrame(stream, error_code=ErrorCodes.CANCEL).serialize()
        yield frames.head(stream, "/v1/models") + cancel


def empty_continuations(frames: Frames) -> Iterator[bytes]:
    stream = frames.stream()
    yield frames.head(stream, "/healthz", flags=())
    while True:
        yield ContinuationFrame(stream).serialize()


def long_continuations(frames: Frames) -> Iterator[bytes]:
    """Of one head without end."""
    stream = frames.stream()
    yield frames.head(stream, "/healthz", flags=())
    while True:
        yield ContinuationFrame(stream, literal("a")).serialize()


def bombs(frames: Frames) -> Iterator[bytes]:
    """Heads of 8 KB that stand for 16 MB each."""
    first = literal("x", kept=True)
    while True:
        head = b"\x82\x87\x84" + first + b"\xbe" * 4100  # GET https /, and the newest header kept
        yield HeadersFrame(frames.stream(), head, flags=("END_HEADERS",)).serialize()
        first = b""


def literal(name: str, kept: bool = False) -> bytes:
    """A header of `NAMED_BYTES`, uncompressed."""
    kind = b"\x40" if kept else b"\x00"
    length = hpack_integer(NAMED_BYTES)
    return kind + bytes([len(name)]) + name.encode() + length + b"v" * NAMED_BYTES


def hpack_integer(value: int) -> bytes:
    """With 7 bits in its first byte, RFC 7541 5.1; for 255 to 16,510."""
    rest = value - 127
    return bytes([127, rest & 127 | 128, rest >> 7])


Flood = Callable[[Frames], Iterator[bytes]]


@pytest.mark.parametrize("flood", [resets, empty_continuations, long_continuations, bombs])
@pytest.mark.usefixtures("held")
def test_who_floods_is_hung_up_on(stack: Stack, authority: Authority, flood: Flood) -> None:
    with closing(Frames(stack, authority.context())) as frames:
        sent = 0
        for data in flood(frames):
            if not frames.send(data):
                break
            sent += len(data)
            assert sent < FLOOD_BYTES, "it took everything"


@pytest.mark.parametrize(
    "frame", [PingFrame(opaque_data=b"12345678"), SettingsFrame(settings={1: 4096})]
)
@pytest.mark.usefixtures("held")
def test_answers_that_nobody_reads_do_not_pile_up(
    stack: Stack, authority: Authority, frame: PingFrame | SettingsFrame
) -> None:
    """Each PING and SETTINGS has one. Who reads none of them isn't read any more."""
    many = frame.serialize() * 4096
    with closing(Frames(stack, authority.context())) as frames:
        for _ in range(FLOOD_BYTES // len(many)):
            if not frames.send(many):
                break


@pytest.mark.usefixtures("held")
def test_streams_whose_client_lets_nothing_through_hold_little(
    stack: Stack, authority: Authority
) -> None:
    """As many as one connection may have, with a window of 0."""
    closed = {int(SettingCodes.INITIAL_WINDOW_SIZE): 0}
    with closing(Frames(stack, authority.context(), closed)) as frames:
        told = frames.told()
        for _ in range(told[SettingCodes.MAX_CONCURRENT_STREAMS]):
            assert frames.send(frames.head(frames.stream(), "/v1/models"))
        with stack.client() as beside:
            assert beside.post("/v1/completions", json=BODY).status_code == 200


def test_a_head_may_be_64_kib_whatever_it_is_packed_into(
    stack: Stack, authority: Authority
) -> None:
    """hyper's own bound is 16 MiB, for each of 200 streams of each connection."""
    with closing(Frames(stack, authority.context())) as frames:
        assert frames.told()[SettingCodes.MAX_HEADER_LIST_SIZE] == MOST_HEAD_BYTES
        bomb = bombs(frames)
        frames.send(next(bomb))
        assert frames.goodbye().error_code == ErrorCodes.ENHANCE_YOUR_CALM
