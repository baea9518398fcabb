"""What a node tells, by version, and how it knows that every gateway has heard it."""

from __future__ import annotations

import asyncio
import time

import pytest

from runtime.node import board as module
from runtime.node.board import Board


async def acknowledged(board: Board, timeout_s: float = 20) -> float:
    began = time.monotonic()
    await board.acknowledged(timeout_s)
    return time.monotonic() - began


async def test_who_asks_for_another_version_is_answered_at_once_else_at_the_change() -> None:
    board = Board()
    await board.newer_than(board.version - 1)
    waiting = asyncio.ensure_future(board.newer_than(board.version))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    board.change()
    await asyncio.wait_for(waiting, 30)


async def test_a_board_that_closes_keeps_nobody_waiting() -> None:
    board = Board()
    waiting = asyncio.ensure_future(board.newer_than(board.version + 1))
    await asyncio.sleep(0)
    board.close()
    await asyncio.wait_for(waiting, 30)
    await asyncio.wait_for(board.newer_than(board.version), 30)


async def test_nobody_follows_so_nobody_is_waited_for() -> None:
    assert await acknowledged(Board()) < 1


async def test_every_follower_must_have_taken_it_in() -> None:
    board = Board()
    for name in ("one", "two"):
        board.begin(name, board.version)
    board.change()
    waiting = asyncio.ensure_future(board.acknowledged(20))
    for name in ("one", "two"):
        await asyncio.sleep(0.01)
        assert not waiting.done()
        board.end(name, is_gone=False)
        board.begin(name, board.version)
    await asyncio.wait_for(waiting, 30)


async def test_a_later_version_is_an_acknowledgement_too() -> None:
    board = Board()
    board.begin("one", board.version)
    board.change()
    waiting = asyncio.ensure_future(board.acknowledged(20))
    await asyncio.sleep(0)
    board.change()
    board.begin("one", board.version)
    await asyncio.wait_for(waiting, 30)


async def test_a_gateway_that_left_is_not_waited_for() -> None:
    board = Board()
    board.begin("one", 0)
    waiting = asyncio.ensure_future(board.acknowledged(20))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    board.end("one", is_gone=True)
    await asyncio.wait_for(waiting, 30)


async def test_nor_one_that_has_not_asked_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board()
    board.begin("one", 0)
    board.end("one", is_gone=False)
    monkeypatch.setattr(module, "LATELY_S", 0.0)
    await asyncio.sleep(0.01)
    assert await acknowledged(board) < 5


async def test_one_that_hangs_is_waited_for_only_so_long() -> None:
    board = Board()
    board.begin("one", 0)
    assert 0.05 <= await acknowledged(board, 0.05) < 5
