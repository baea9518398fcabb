"""Boots: who lives is known by a lock, in this process and in others, and after a kill."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import boots as module
from gateway.boots import Boots

CHILD = """
import sys
from pathlib import Path
from gateway.boots import Boots
with Boots(Path(sys.argv[1])).living("boot_child"):
    print("lives", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def boots(tmp_path: Path) -> Boots:
    return Boots(tmp_path)


def test_a_boot_lives_until_it_ends(boots: Boots) -> None:
    assert not boots.is_alive("boot_1")
    with boots.living("boot_1"):
        assert boots.is_alive("boot_1")
        assert boots.dead() == []
    assert not boots.is_alive("boot_1")
    assert boots.dead() == ["boot_1"]
    boots.forget(["boot_1"])
    assert boots.dead() == []


def test_a_killed_process_is_dead_at_once(boots: Boots, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        assert child.stdout.readline() == b"lives\n"
        assert boots.is_alive("boot_child")
        child.kill()
        child.wait()
    assert not boots.is_alive("boot_child")
    assert boots.dead() == ["boot_child"]


def test_what_was_never_finished_is_no_boot(boots: Boots, tmp_path: Path) -> None:
    """A process killed between making its file and locking it."""
    with boots.living("boot_1"):
        (tmp_path / "boots" / ".boot_2").touch()
        assert boots.dead() == []


async def test_the_watch_reaps_once_for_each_that_died(
    boots: Boots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.001)
    reaped = asyncio.Event()
    count = 0

    async def reap() -> None:
        nonlocal count
        count += 1
        reaped.set()

    with boots.living("boot_mine"):
        watching = asyncio.create_task(boots.watch(reap))
        for name in ("boot_2", "boot_3"):
            with boots.living(name):
                pass
            await asyncio.wait_for(reaped.wait(), 20)
            reaped.clear()
        assert count == 2
        assert boots.is_alive("boot_mine")
        watching.cancel()


async def test_a_disk_that_fails_does_not_end_the_watch(
    boots: Boots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only one lets no file be removed, say."""
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.001)
    reaped, looks = asyncio.Event(), 0
    plain = boots.dead

    def dead() -> list[str]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise OSError("read-only file system")
        return plain()

    monkeypatch.setattr(boots, "dead", dead)

    async def reap() -> None:
        reaped.set()

    with boots.living("boot_2"):
        pass
    watching = asyncio.create_task(boots.watch(reap))
    await asyncio.wait_for(reaped.wait(), 20)
    watching.cancel()
