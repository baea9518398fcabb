"""KV that another process fills in: nothing of it is read before all of it has proven right."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import xxhash

from engines.embedded.door import PATIENCE_S, Load, LoadRefused
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import State
from tests.engines.books import check_books, tables_of
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import ask, drive, random_prompt

PROMPT = random_prompt(18, 5)  # four pages and a half

# What a writer does: map the memory it was passed, write its pages, tell their checksums.
WRITER = """
import os, sys
import numpy as np, xxhash
from engines.embedded.kv.memory import SharedMemory

ON_BOTH_BACKENDS = True

memory = SharedMemory.attach(int(sys.argv[1]))
for offset in map(int, sys.argv[2].split(",")):
    page = sys.stdin.buffer.read(int(sys.argv[3]))
    memory.data[offset : offset + len(page)] = np.frombuffer(page, np.uint8)
    print(xxhash.xxh3_64_intdigest(page))
"""


@pytest.fixture
def source(make_tiny: EngineFactory) -> list[bytes]:
    """The bytes of the prompt's four whole pages, as another engine computed them."""
    engine = make_tiny()
    drive(engine, ask("x", PROMPT, 1))
    keys = engine.tables.keys_of("a", PROMPT)
    return [engine.kv.bytes_of(page.id).tobytes() for page in engine.tables.prefix.match(keys)]


def fill(engine: EmbeddedEngine, load: Load, source: list[bytes]) -> list[int]:
    """Have a second process write the load's pages. Returns their checksums, as it tells them."""
    fd = engine.kv.memory.fd
    pages = source[load.first_page :]
    offsets = ",".join(map(str, load.offsets))
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(fd), offsets, str(load.page_bytes)],
        input=b"".join(pages), stdout=subprocess.PIPE, pass_fds=[fd], check=True,
    )  # fmt: skip
    return [int(line) for line in done.stdout.split()]


def states(engine: EmbeddedEngine, load: Load) -> set[State]:
    return {State(engine.pool.states[page.id]) for page in load.pages}


def test_a_prompt_continues_on_pages_that_another_process_filled(
    make_tiny: EngineFactory, source: list[bytes]
) -> None:
    """Its tokens are those of an engine that computed all itself, and all pages count as cached."""
    engine = make_tiny()
    load = engine.door.open("a", PROMPT)
    assert states(engine, load) == {State.LOADING}
    engine.door.commit(load.id, load.incarnation, fill(engine, load, source))
    answers = drive(engine, ask("x", PROMPT))
    assert answers.cached("x") == 16
    assert answers.tokens("x") == drive(make_tiny(), ask("x", PROMPT)).tokens("x")


def test_only_what_is_not_cached_is_loaded(make_tiny: EngineFactory, source: list[bytes]) -> None:
    """A prefix of the prompt is there already; and another domain finds nothing of it."""
    engine = make_tiny()
    drive(engine, ask("x", PROMPT[:9], 1))
    load = engine.door.open("a", PROMPT)
    assert (load.first_page, len(load.pages)) == (2, 2)
    engine.door.commit(load.id, load.incarnation, fill(engine, load, source))
    assert drive(engine, ask("y", PROMPT, domain="b")).cached("y") == 0
    assert drive(engine, ask("z", PROMPT)).cached("z") == 16
    with pytest.raises(LoadRefused, match="cached already"):
        engine.door.open("a", PROMPT)


def test_nothing_is_found_before_the_commit(make_tiny: EngineFactory, source: list[bytes]) -> None:
    """Written or not: a loading page is nobody's to read."""
    engine = make_tiny()
    load = engine.door.open("a", PROMPT)
    fill(engine, load, source)
    assert drive(engine, ask("x", PROMPT)).cached("x") == 0


@pytest.mark.parametrize("wrong", ["a flipped bit", "one too few", "never written"])
def test_pages_that_are_not_what_their_writer_says_are_refused(
    make_tiny: EngineFactory, source: list[bytes], wrong: str
) -> None:
    """And given up, to be wiped."""
    engine = make_tiny()
    load = engine.door.open("a", PROMPT)
    checksums = [xxhash.xxh3_64_intdigest(page) for page in source]
    if wrong != "never written":
        checksums = fill(engine, load, source)
    if wrong == "a flipped bit":
        engine.kv.bytes_of(load.pages[2].id)[5] ^= 1
    if wrong == "one too few":
        checksums.pop()
    with pytest.raises(LoadRefused):
        engine.door.commit(load.id, load.incarnation, checksums)
    assert states(engine, load) == {State.RETIRING}
    drive(engine, ask("x", PROMPT))
    assert all(engine.kv.is_zero(page) for page in free_pages(engine))


def test_an_abandoned_load_waits_for_its_writer(
    make_tiny: EngineFactory, source: list[bytes]
) -> None:
    """Its late write reaches nobody: the pages are wiped and reused only after `drained`."""
    engine = make_tiny(num_pages=9)
    load = engine.door.open("a", PROMPT)
    engine.door.abandon(load.id, load.incarnation)
    before = drive(engine, ask("x", random_prompt(12, 1), 4, domain="b")).tokens("x")
    assert states(engine, load) == {State.RETIRING}
    fill(engine, load, source)  # too late
    again = drive(engine, ask("y", random_prompt(12, 1), 4, domain="c")).tokens("y")
    assert again == before
    engine.door.drained(load.id, load.incarnation)
    drive(engine, ask("z", random_prompt(12, 1), 4))
    assert State.RETIRING not in states(engine, load)
    assert all(engine.kv.is_zero(page) for page in free_pages(engine))


def test_a_writer_that_is_never_heard_of_again_keeps_its_pages(make_tiny: EngineFactory) -> None:
    """They go out of use, since nobody knows what it may still write."""
    engine = make_tiny()
    load = engine.door.open("a", PROMPT)
    engine.door.quarantine(load.id, load.incarnation)
    assert states(engine, load) == {State.QUARANTINED}
    engine.door.drained(load.id, load.incarnation)
    assert states(engine, load) == {State.QUARANTINED}


def test_a_silent_writer_is_waited_for_so_long(make_tiny: EngineFactory) -> None:
    """Then its pages go out of use: a timeout proves nothing about what it still writes."""
    engine = make_tiny()
    now = 0.0
    engine.door._clock = lambda: now
    load = engine.door.open("a", PROMPT)
    given_up = engine.door.open("b", PROMPT)
    engine.door.abandon(given_up.id, given_up.incarnation)
    now = PATIENCE_S
    engine.tend()
    assert states(engine, load) == {State.LOADING}
    now = PATIENCE_S + 1
    engine.tend()
    assert states(engine, load) == states(engine, given_up) == {State.QUARANTINED}
    with pytest.raises(LoadRefused, match="given up"):
        engine.door.commit(load.id, load.incarnation, [0] * 4)


@pytest.mark.parametrize(("domain", "token"), [("(public)", 1), ("a", -1), ("a", 1 << 32)])
def test_a_prompt_that_cannot_be_is_not_opened(
    make_tiny: EngineFactory, domain: str, token: int
) -> None:
    """Nobody speaks for the public, and a token is a number of 32 bits."""
    with pytest.raises(LoadRefused, match="nobody's"):
        make_tiny().door.open(domain, [token] * 8)


def test_messages_come_late_twice_or_out_of_order(
    make_tiny: EngineFactory, source: list[bytes]
) -> None:
    """The first end counts; what follows changes nothing."""
    engine = make_tiny()
    load = engine.door.open("a", PROMPT)
    checksums = fill(engine, load, source)
    name = (load.id, load.incarnation)
    engine.door.commit(*name, checksums)
    for late in (engine.door.abandon, engine.door.drained, engine.door.quarantine):
        late(*name)
    engine.door.commit(*name, [])
    assert states(engine, load) == {State.CACHED}
    given_up = engine.door.open("b", PROMPT)
    name = (given_up.id, given_up.incarnation)
    engine.door.drained(*name)
    engine.door.abandon(*name)
    with pytest.raises(LoadRefused, match="given up"):
        engine.door.commit(*name, checksums)
    engine.pool.recycle()
    check_books(engine.pool, tables_of(engine))
    assert (engine.pool.pins == 0).all()


@pytest.mark.parametrize(("id", "incarnation"), [("own", "other"), ("other", "own")])
def test_a_load_of_another_pool_is_refused(
    make_tiny: EngineFactory, id: str, incarnation: str
) -> None:
    """After a restart the same page numbers mean other pages."""
    engine = make_tiny()
    load = engine.door.open("a", PROMPT)
    name: dict[str, Any] = {
        "load_id": load.id if id == "own" else "0" * 32,
        "incarnation": load.incarnation if incarnation == "own" else "0" * 32,
    }
    with pytest.raises(LoadRefused):
        engine.door.commit(checksums=[0] * 4, **name)
    assert states(engine, load) == {State.LOADING}
    engine.door.drained(load.id, load.incarnation)


def test_what_does_not_fit_is_not_opened(make_tiny: EngineFactory) -> None:
    """Nothing stays taken."""
    engine = make_tiny(num_pages=5)
    with pytest.raises(LoadRefused, match="no room"):
        engine.door.open("a", random_prompt(40, 1))
    with pytest.raises(LoadRefused, match="no whole page"):
        engine.door.open("a", [1, 2])
    engine.pool.recycle()
    assert engine.pool.num_free == 4


def free_pages(engine: EmbeddedEngine) -> list[int]:
    return [page for page in range(1, engine.pool.num_pages) if engine.pool.states[page] == 0]
