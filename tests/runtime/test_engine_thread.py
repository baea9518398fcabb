"""The engine's thread: commands in, outputs back, and failures that reach everybody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import structlog

from engines.api import (
    ContextLengthExceeded,
    Engine,
    EngineFailed,
    EngineRetiring,
    FinishReason,
    KvIntegrityAbort,
    Output,
    Request,
    RequestRefused,
    Sampling,
)
from engines.fake import FakeEngine
from runtime.host import engine_thread
from runtime.host.engine_thread import EngineThread
from tests.runtime.servers import GatedEngine, as_engine

WAIT_S = 5.0


def request(name: str, prompt: bytes = b"abc", max_tokens: int = 5) -> Request:
    return Request(name, "d", tuple(prompt), Sampling(max_tokens))


@asynccontextmanager
async def driven(engine: FakeEngine) -> AsyncIterator[EngineThread]:
    thread = EngineThread(lambda: as_engine(engine))
    assert await thread.start() is as_engine(engine)
    try:
        yield thread
    finally:
        if isinstance(engine, GatedEngine):
            engine.open()
        await asyncio.to_thread(thread.close)
        assert not thread._thread.is_alive()


async def collect(thread: EngineThread, name: str) -> list[Output]:
    async with asyncio.timeout(WAIT_S):
        told: list[Output] = []
        while not (told and told[-1].finish):
            told += await thread.outputs(name)
        return told


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_outputs_come_in_order_to_their_own_answer() -> None:
    async with driven(FakeEngine()) as thread:
        names = [f"r{i}" for i in range(20)]
        prompts = {name: f"{name} says hello".encode() for name in names}
        for name in names:
            await thread.submit(request(name, prompts[name], 12))
        answers = await asyncio.gather(*(collect(thread, name) for name in names))
        for name, outputs in zip(names, answers, strict=True):
            assert bytes(t for o in outputs for t in o.token_ids) == prompts[name][:12]
            assert [o.finish for o in outputs] == [None] * 11 + [FinishReason.LENGTH]


@pytest.mark.parametrize(
    ("bad", "error"),
    [(request("r", b""), RequestRefused), (request("r", b"x" * 9000), ContextLengthExceeded)],
)
async def test_a_refused_request_reaches_its_caller_and_leaves_nothing(
    bad: Request, error: type[RequestRefused]
) -> None:
    async with driven(FakeEngine()) as thread:
        with pytest.raises(error):
            await thread.submit(bad)
        assert thread.in_flight == 0
        await thread.submit(request("r"))
        assert len(await collect(thread, "r")) == 5


async def test_an_engine_that_can_t_be_built_is_told_to_who_starts_it() -> None:
    def build() -> Engine:
        raise FileNotFoundError("no weights")

    thread = EngineThread(build)
    with pytest.raises(FileNotFoundError, match="no weights"):
        await thread.start()
    thread.close()


async def test_an_abort_while_queued_takes_the_request_out() -> None:
    engine = GatedEngine(max_running=1)
    async with driven(engine) as thread:
        await thread.submit(request("a"))
        await until(lambda: engine.waiting)
        submitted = asyncio.ensure_future(thread.submit(request("b")))
        await asyncio.sleep(0)
        thread.abort("b")
        engine.allow(5)
        await submitted
        await collect(thread, "a")
        assert (await thread.stats()).aborted == 1
        assert (await thread.stats()).running == 0


async def test_an_abort_while_running_ends_it_and_others_go_on() -> None:
    engine = GatedEngine()
    async with driven(engine) as thread:
        await thread.submit(request("a", max_tokens=100))
        await until(lambda: engine.waiting)
        submitted = asyncio.ensure_future(thread.submit(request("b", max_tokens=3)))
        engine.allow(2)
        await submitted
        thread.abort("a")
        engine.allow(5)
        assert len(await collect(thread, "b")) == 3
        assert (await thread.stats()).aborted == 1
        assert thread.in_flight == 1, "b is read to its end, but not yet forgotten"


async def test_outputs_after_an_abort_go_nowhere() -> None:
    """A step was running when the request was aborted: what it brings is dropped."""
    engine = GatedEngine()
    async with driven(engine) as thread:
        await thread.submit(request("a", max_tokens=3))
        await until(lambda: engine.waiting)
        thread.abort("a")
        engine.allow(1)
        assert (await thread.stats()).running == 0
        assert thread.in_flight == 0


async def test_an_abort_after_the_end_or_of_nobody_changes_nothing() -> None:
    async with driven(FakeEngine()) as thread:
        await thread.submit(request("a"))
        await collect(thread, "a")
        for name in ("a", "a", "nobody"):
            thread.abort(name)
        assert (await thread.stats()).aborted == 0


async def test_a_caller_cancelled_in_submit_leaves_no_request() -> None:
    engine = GatedEngine()
    async with driven(engine) as thread:
        await thread.submit(request("a", max_tokens=2))
        await until(lambda: engine.waiting)
        submitting = asyncio.ensure_future(thread.submit(request("b", max_tokens=1000)))
        await asyncio.sleep(0)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        engine.allow(3)
        await collect(thread, "a")
        assert (await thread.stats()).running == 0


async def test_an_engine_s_failure_reaches_every_answer_and_later_submits() -> None:
    async with driven(FakeEngine(faults=True)) as thread:
        for name, prompt in (("a", b"fine and long"), ("b", b"engine fails"), ("c", b"fine too")):
            await thread.submit(request(name, prompt, 1000))
        answers = await asyncio.gather(*(collect(thread, name) for name in "abc"))
        for outputs in answers:
            assert outputs[-1].finish is FinishReason.ERROR
            assert isinstance(outputs[-1].error, EngineFailed)
        assert thread.failed.is_set()
        with pytest.raises(EngineFailed):
            await thread.submit(request("d"))


async def test_a_request_that_meets_the_failing_step_hears_of_it() -> None:
    """It was queued while the step ran that broke the engine: nobody will ever run it."""
    engine = GatedEngine(faults=True)
    async with driven(engine) as thread:
        await thread.submit(request("a", b"engine fails", 100))
        engine.allow(3)
        await until(lambda: engine.allowed == 0 and engine.waiting)
        late = asyncio.ensure_future(thread.submit(request("b")))
        await asyncio.sleep(0)
        engine.allow(1)
        with pytest.raises(EngineFailed):
            async with asyncio.timeout(30):
                await late
        assert thread.in_flight == 1


async def test_stats_of_a_failed_engine_don_t_hang() -> None:
    async with driven(FakeEngine(faults=True)) as thread:
        await thread.submit(request("a", b"engine fails", 100))
        await collect(thread, "a")
        with pytest.raises(EngineFailed):
            async with asyncio.timeout(30):
                await thread.stats()


async def test_a_bug_in_an_engine_s_add_reaches_the_caller() -> None:
    """Not an EngineError, yet whoever submits must not wait for ever."""

    class Broken(FakeEngine):
        def add(self, request: Request) -> None:
            raise ZeroDivisionError

    async with driven(Broken()) as thread:
        with pytest.raises((EngineFailed, ZeroDivisionError)):
            async with asyncio.timeout(30):
                await thread.submit(request("a"))
        await until(thread.failed.is_set)


async def test_an_integrity_abort_ends_one_answer_and_no_other() -> None:
    async with driven(FakeEngine(faults=True)) as thread:
        await thread.submit(request("bad", b"integrity", 50))
        await thread.submit(request("good", b"innocent", 50))
        bad, good = await asyncio.gather(collect(thread, "bad"), collect(thread, "good"))
        assert isinstance(bad[-1].error, KvIntegrityAbort)
        assert len(good) == 50
        assert not thread.failed.is_set()


async def test_a_request_id_that_runs_already_is_refused() -> None:
    """Else two answers would share one queue."""
    engine = GatedEngine()
    async with driven(engine) as thread:
        await thread.submit(request("a", b"first", 5))
        again = asyncio.ensure_future(thread.submit(request("a", b"other", 5)))
        await asyncio.sleep(0)
        engine.allow(20)
        with pytest.raises(RequestRefused):
            async with asyncio.timeout(30):
                await again
        outputs = await collect(thread, "a")
        assert bytes(t for o in outputs for t in o.token_ids) == b"first"


async def test_close_ends_the_thread_and_closes_the_engine() -> None:
    closed = threading.Event()

    class Closing(FakeEngine):
        def close(self) -> None:
            closed.set()

    async with driven(Closing()) as thread:
        await thread.submit(request("a", max_tokens=8000))
    assert closed.is_set()


async def test_an_engine_that_wants_to_be_replaced_is_noticed_and_takes_nothing_new() -> None:
    """What runs goes on to its end."""
    async with driven(FakeEngine(faults=True)) as thread:
        await thread.submit(request("a", b"retire", 500))
        await thread.submit(request("b", b"longer", 500))
        answers = await asyncio.gather(collect(thread, "a"), collect(thread, "b"))
        assert [outputs[-1].finish for outputs in answers] == [FinishReason.LENGTH] * 2
        assert thread.retirement == "told to retire"
        with pytest.raises(EngineRetiring):
            await thread.submit(request("c"))
        assert not thread.failed.is_set()


class Tended(FakeEngine):
    """Tells that it has been tended."""

    def __init__(self) -> None:
        super().__init__()
        self.tended = threading.Event()

    def tend(self) -> None:
        self.tended.set()


async def test_an_idle_engine_is_given_moments_to_look_after_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It finds out by itself that it should be replaced; a request that comes is answered."""
    monkeypatch.setattr(engine_thread, "TEND_S", 0.01)
    engine = Tended()
    async with driven(engine) as thread:
        assert await asyncio.to_thread(engine.tended.wait, 60)
        await thread.submit(request("a"))
        assert (await collect(thread, "a"))[-1].finish is FinishReason.LENGTH


async def test_an_engine_that_is_asked_all_the_time_is_tended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever watches its pages doesn't keep it from looking after them."""
    monkeypatch.setattr(engine_thread, "TEND_S", 0.01)
    engine = Tended()
    async with driven(engine) as thread:
        async with asyncio.timeout(60):
            while not engine.tended.is_set():
                await thread.stats()


async def test_an_id_that_is_used_again_gets_nothing_of_the_request_before() -> None:
    """Not even what was on its way when that one was aborted."""
    async with driven(FakeEngine()) as thread:
        await thread.submit(request("a", b"first", 500))
        stale = thread._answers["a"]
        thread.abort("a")
        await thread.submit(request("a", b"second", 3))
        thread._deliver([(Output("a", token_ids=(7,)), stale)])
        outputs = await collect(thread, "a")
    assert bytes(t for o in outputs for t in o.token_ids) == b"sec"


async def test_what_an_engine_logs_names_its_host_and_model() -> None:
    """The engine has a thread of its own, which knows what was bound where it was made."""

    class Telling(FakeEngine):
        def step(self) -> list[Output]:
            seen.append(structlog.contextvars.get_contextvars())
            return super().step()

    seen: list[dict[str, object]] = []
    with structlog.contextvars.bound_contextvars(host="host-1", model="echo"):
        thread = EngineThread(lambda: as_engine(Telling()))
    await thread.start()
    await thread.submit(request("a"))
    await collect(thread, "a")
    await asyncio.to_thread(thread.close)
    assert seen[0] == {"host": "host-1", "model": "echo"}
