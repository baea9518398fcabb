"""The client of Redis: its wire format, byte by byte, and its one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gateway.limits.redis_client import Address, Broken, RedisClient
from gateway.limits.resp import MAX_BUFFER, BadReply, Fault, Replies, call
from tests.redis_server import needs_redis, redis_server

WIRE = (
    b":1\r\n+OK\r\n-ERR no\r\n$3\r\na\r\n\r\n$-1\r\n"
    b"*3\r\n:1\r\n$0\r\n\r\n*1\r\n:-7\r\n*0\r\n*-1\r\n"
)
MEANT: list[object] = [1, b"OK", "ERR no", b"a\r\n", None, [1, b"", [-7]], [], None]


def plain(replies: Sequence[object]) -> list[object]:
    return [str(one) if isinstance(one, Fault) else one for one in replies]


@given(st.lists(st.integers(0, len(WIRE))))
def test_replies_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(WIRE)]
    replies, found = Replies(), []
    for start, end in pairwise(ends):
        found += replies.push(WIRE[start:end])
    assert plain(found) == MEANT


@given(st.binary())
def test_any_bytes_are_replies_or_refused(data: bytes) -> None:
    with suppress(BadReply):
        Replies().push(data)


@pytest.mark.parametrize("data", [b"HTTP/1.1 400\r\n", b":x\r\n", b"$2\r\nabc\r\n", b"*1\r\n" * 9])
def test_what_is_no_reply_is_refused(data: bytes) -> None:
    with pytest.raises(BadReply):
        Replies().push(data)


def test_a_reply_without_end_isnt_kept() -> None:
    with pytest.raises(BadReply):
        Replies().push(b"+" + b"x" * MAX_BUFFER)


def test_a_call_has_the_length_of_each_word_in_bytes() -> None:
    assert call(["GET", "ü", 12]) == b"*3\r\n$3\r\nGET\r\n$2\r\n\xc3\xbc\r\n$2\r\n12\r\n"


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "is_tls", "database", "user"),
    [
        ("redis://h", "h", 6379, "", False, 0, ""),
        ("rediss://bh@[::1]:7000/3", "::1", 7000, "", True, 3, "bh"),
        ("unix:///run/r%20s.sock?db=2", "localhost", 6379, "/run/r s.sock", False, 2, ""),
    ],
)
def test_addresses(
    url: str, host: str, port: int, path: str, is_tls: bool, database: int, user: str
) -> None:
    found = Address.of(url, "secret")
    assert found == Address(host, port, path, is_tls, database, user, "secret")
    assert "secret" not in repr(found)


@needs_redis
async def test_calls_at_once_get_their_own_answers() -> None:
    with redis_server() as server:
        client = RedisClient(Address.of(server.url + "?db=3"))
        calls = (client.call("ECHO", f"{i}") for i in range(500))
        assert await asyncio.gather(*calls) == [b"%d" % i for i in range(500)]
        with pytest.raises(Fault, match="ERR"):
            await client.call("NO")
        await client.call("SET", "k", 1)
        with server.client() as other:
            assert other.get("k") is None, "it's in another database"
        waiting = asyncio.ensure_future(client.call("BLPOP", "none", 0))
        await asyncio.sleep(0)
        client.drop()
        with pytest.raises(Broken):
            await waiting
        assert await client.call("GET", "k") == b"1", "connected anew"
        await client.aclose()


@needs_redis
async def test_a_password_is_sent_and_a_wrong_one_told() -> None:
    with redis_server() as server:
        with server.client() as other:
            other.config_set("requirepass", "letmein")
        good, bad = (RedisClient(Address.of(server.url, word)) for word in ("letmein", "x"))
        assert await good.call("PING") == b"PONG"
        with pytest.raises(Fault, match="WRONGPASS"):
            await bad.call("PING")
        await good.aclose()
        await bad.aclose()


async def test_a_server_that_is_no_redis_is_left(tmp_path: Path) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"220 mail\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    path = tmp_path / "s.sock"
    async with await asyncio.start_unix_server(other, path):
        client = RedisClient(Address.of(f"unix://{path}"))
        with pytest.raises(Broken):
            await client.call("PING")
        await client.aclose()
