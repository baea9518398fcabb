"""Log lines: one write for many, none lost, none late that matters."""

from __future__ import annotations

import asyncio
import io
import threading

from runtime.log_lines import LineWriter


class Stream(io.BytesIO):
    """Counts what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        self.writes.append(data)
        return len(data)


async def test_the_lines_of_a_turn_are_one_write_and_a_warning_takes_them_along() -> None:
    stream = Stream()
    lines = LineWriter(stream)
    lines.info(b"1")
    lines.debug(b"2")
    assert stream.writes == []
    await asyncio.sleep(0)
    lines.info(b"3")
    lines.warning(b"4")
    assert stream.writes == [b"1\n2\n", b"3\n4\n"]
    await asyncio.sleep(0)
    assert len(stream.writes) == 2


def test_without_a_loop_each_line_is_written_at_once() -> None:
    stream = Stream()
    lines = LineWriter(stream)
    lines.info(b"1")
    lines.info(b"2")
    assert stream.writes == [b"1\n", b"2\n"]


async def test_no_line_of_many_threads_is_lost() -> None:
    stream = Stream()
    lines = LineWriter(stream)

    def write(number: int) -> None:
        for i in range(200):
            lines.info(b"%d/%d" % (number, i))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for i in range(200):
        lines.info(b"loop/%d" % i)
        await asyncio.sleep(0)
    for thread in threads:
        thread.join()
    await asyncio.sleep(0)
    written = b"".join(stream.writes).split()
    assert len(written) == len(set(written)) == 9 * 200


async def test_a_stream_that_is_closed_fails_nobody() -> None:
    with open("/dev/full", "wb", buffering=0) as stream:
        lines = LineWriter(stream)
        lines.info(b"1")
        lines.error(b"2")
        await asyncio.sleep(0)
