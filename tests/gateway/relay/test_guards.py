"""Guards in attached servers are followed over a real port: whose requests end, and where none go.

The launcher here is scripted byte by byte; what it should tell is `runtime/trt/telling.py`'s.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from structlog.testing import capture_logs

from engines.trtllm.salts import digest
from engines.trtllm.settings import TrtSettings
from gateway.catalog.catalog import Deployment, catalog_of
from gateway.errors import IntegrityAbort, Unavailable
from gateway.relay import guards, trust
from gateway.relay.attached import AttachedServers
from gateway.relay.errand import Errand
from gateway.relay.extra_fields import salt_of
from gateway.relay.guards import MAX_LINE_BYTES, Guards
from gateway.relay.place import Place
from gateway.relay.placement import Placement
from gateway.relay.relay import Relay
from gateway.relay.sse import Frame
from runtime.capability import Signer
from runtime.config.attached import AttachedServer
from runtime.config.models import ModelSettings
from tests.gateway.relaying import ANSWER, CHUNK, DONE, SETTINGS, USAGE, collect, errand, text
from tests.runtime.upstream import Exchange, Upstream, upstream

KEY = b"salt key"
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
)
WAIT_S = 20


def counters(steps: int = 0, *, boot: str = "b0", poisoned: bool = False) -> bytes:
    told = {"boot": boot, "steps": steps, "checked": 0, "violations": 0, "poisoned": poisoned}
    return json.dumps(told).encode() + b"\n"


def violation(salt: str | None, seq: int = 1) -> bytes:
    told = {"seq": seq, "kind": "foreign", "salt": digest(salt) if salt else None, "salt_id": None}
    return json.dumps({"violation": told}).encode() + b"\n"


class Launcher:
    """Tells each follower its counters ten times a second, and `say`s what comes between."""

    def __init__(self) -> None:
        self.boot = "b0"
        self.steps = 0
        self.poisoned = False
        self.status = 200
        self.cut = 0  # bytes of a chunk; 0: whole lines
        self.followers: list[Exchange] = []
        self.asked: list[Exchange] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.asked.append(exchange)
        if self.status != 200:
            await exchange.reply(self.status, b"no\n", "text/plain")
            return
        await exchange.send(HEAD)
        self.followers.append(exchange)
        try:
            while exchange in self.followers:
                self.steps += 1
                await self._line(exchange, self.counters())
                await asyncio.sleep(0.1)
        finally:
            with suppress(ValueError):
                self.followers.remove(exchange)

    def counters(self) -> bytes:
        return counters(self.steps, boot=self.boot, poisoned=self.poisoned)

    async def say(self, line: bytes) -> None:
        for exchange in list(self.followers):
            await self._line(exchange, line)

    async def _line(self, exchange: Exchange, line: bytes) -> None:
        size = self.cut or len(line)
        for at in range(0, len(line), size):
            await exchange.event(line[at : at + size])

    async def end(self) -> None:
        for exchange in list(self.followers):
            self.followers.remove(exchange)
            await exchange.send(b"0\r\n\r\n")

    def break_off(self) -> None:
        for exchange in list(self.followers):
            exchange.reset()
            self.followers.remove(exchange)


class Model:
    """Streams a token, and then whatever the tests let go on, by the salt that it was sent."""

    def __init__(self) -> None:
        self.salts: list[str] = []
        self.begins = True  # at once
        self.may_end: dict[str, asyncio.Event] = {}

    def ending(self, salt: str) -> asyncio.Event:
        return self.may_end.setdefault(salt, asyncio.Event())

    async def __call__(self, exchange: Exchange) -> None:
        asked = exchange.json()
        salt = asked["cache_salt"]
        self.salts.append(salt)
        if not self.begins:
            await self.ending(salt).wait()
        if not asked.get("stream"):
            await exchange.reply_json(200, ANSWER)
            return
        await exchange.events(text("h"), end=False)
        await self.ending(salt).wait()
        for event in (text("o", "stop"), CHUNK | {"choices": [], "usage": USAGE}, DONE):
            await exchange.event(event)
        await exchange.send(b"0\r\n\r\n")


class World:
    """A relay to guarded servers; `models[i]` answers where `launchers[i]` tells."""

    def __init__(self, relay: Relay, attached: AttachedServers, placement: Placement) -> None:
        self.relay = relay
        self.attached = attached
        self.placement = placement
        self.models: list[Model] = []
        self.launchers: list[Launcher] = []
        self.places: list[Place] = []
        self.of: Deployment
        self.following: asyncio.Task[None]

    @property
    def model(self) -> Model:
        return self.models[0]

    @property
    def launcher(self) -> Launcher:
        return self.launchers[0]

    @property
    def fault(self) -> str:
        guard = self.places[0].guard
        return guard.fault if guard else "none is heard"

    def errand(self, domain: str = "one", **changes: Any) -> Errand:
        given = errand(domain=domain, of=self.of, **changes)
        given.request_id = f"req_{domain}"
        return given

    async def trusted(self) -> None:
        await until(lambda: not any(place.guard and place.guard.fault for place in self.places))

    def streaming(self, domain: str) -> tuple[asyncio.Task[list[Frame]], list[Frame]]:
        seen: list[Frame] = []
        asked = self.errand(domain, stream=True)
        return asyncio.ensure_future(collect(self.relay, asked, seen)), seen


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


def deployment(pairs: list[tuple[Upstream, str]], **trt: Any) -> Deployment:
    servers = tuple(
        AttachedServer(url=f"{server.url}/v1", guard_url=guard) for server, guard in pairs
    )
    model = ModelSettings(
        id="ours",
        engine="tensorrt-llm",
        servers=servers,
        trt=TrtSettings(guard_secret="KEY", **trt),
    )
    return catalog_of([model], {"KEY": "sk-guard"}).deployment("ours", 0)


@asynccontextmanager
async def world(servers: int = 1, launcher: Any = None) -> AsyncIterator[World]:
    attached, placement = AttachedServers(), Placement()
    found = World(Relay(placement, attached, Signer(bytes(32)), KEY, SETTINGS), attached, placement)
    async with AsyncExitStack() as stack:
        pairs = []
        for _ in range(servers):
            found.models.append(Model())
            found.launchers.append(Launcher())
            model = await stack.enter_async_context(upstream(found.models[-1]))
            told = await stack.enter_async_context(upstream(launcher or found.launchers[-1]))
            pairs.append((model, f"{told.url}/guard/"))
        found.of = deployment(pairs)
        found.places = attached.places(found.of, SETTINGS.connect_s)
        found.following = asyncio.ensure_future(Guards(attached, placement, tick_s=0.01).follow())
        try:
            yield found
        finally:
            found.following.cancel()
            await asyncio.wait([found.following])
            await attached.aclose()


async def test_nothing_is_sent_where_nobody_watches_yet() -> None:
    async with world() as found:
        found.launcher.status = 503
        with pytest.raises(Unavailable):
            await found.relay.whole(found.errand())
        assert found.model.salts == []
        await until(lambda: "it answers 503" in found.fault)
        assert found.attached.troubles.told()["ours"][0].is_down
        found.launcher.status = 200
        await found.trusted()
        await found.relay.whole(found.errand())
        (last,) = found.attached.troubles.told()["ours"]
        assert (last.is_down, last.guard) == (False, "")


async def test_the_launcher_is_shown_its_secret_at_its_path() -> None:
    async with world() as found:
        await found.trusted()
        (asked,) = found.launcher.asked
        assert (asked.method, asked.path) == ("GET", "/guard/events")
        assert asked.header("authorization") == "Bearer sk-guard"


async def test_a_violation_ends_that_tenant_s_answer_and_no_other() -> None:
    async with world() as found:
        await found.trusted()
        (one, seen), (two, _) = found.streaming("one"), found.streaming("two")
        await until(lambda: len(found.model.salts) == 2 and seen)
        with capture_logs() as logs:
            await found.launcher.say(violation(salt_of(KEY, "one")))
            with pytest.raises(IntegrityAbort):
                await one
        (line,) = [line for line in logs if line["event"] == "guard_violation"]
        assert line["stopped"] == 1
        assert salt_of(KEY, "one") not in str(logs)
        assert not two.done()
        found.model.ending(salt_of(KEY, "two")).set()
        assert (await two)[-1].done
        assert found.fault == "", "the guard watches: the place goes on"
        assert "wasn't its own" in found.attached.troubles.told()["ours"][0].reason
        guard = found.places[0].guard
        assert guard is not None
        assert (guard.violations, guard.flights) == (1, set())
        assert found.places[0].in_flight == 0


async def test_the_same_tenant_s_answers_at_another_server_go_on() -> None:
    async with world(servers=2) as found:
        await found.trusted()
        (first, _), (second, _) = found.streaming("one"), found.streaming("one")
        await until(lambda: all(len(model.salts) == 1 for model in found.models))
        await found.launchers[0].say(violation(salt_of(KEY, "one")))
        done, _ = await asyncio.wait((first, second), return_when="FIRST_COMPLETED", timeout=WAIT_S)
        (ended,) = done
        assert isinstance(ended.exception(), IntegrityAbort)
        found.models[1].ending(salt_of(KEY, "one")).set()
        other = second if ended is first else first
        assert (await other)[-1].done


async def test_a_violation_that_names_nobody_ends_all_that_run_there() -> None:
    async with world() as found:
        await found.trusted()
        (one, first), (two, second) = found.streaming("one"), found.streaming("two")
        await until(lambda: first and second)
        await found.launcher.say(violation(None))
        for task in (one, two):
            with pytest.raises(IntegrityAbort):
                await task


@pytest.mark.parametrize("streamed", [False, True])
async def test_before_its_first_byte_it_is_asked_again_with_nothing_cached(streamed: bool) -> None:
    async with world() as found:
        found.model.begins = False
        await found.trusted()
        asked = found.errand("one", stream=streamed)
        work = found.relay.whole(asked) if not streamed else collect(found.relay, asked)
        answer: asyncio.Task[Any] = asyncio.ensure_future(work)
        await until(lambda: found.model.salts)
        await found.launcher.say(violation(salt_of(KEY, "one")))
        await until(lambda: len(found.model.salts) == 2)
        warm, cold = found.model.salts
        assert warm == salt_of(KEY, "one")
        assert cold == salt_of(KEY, "one req_one")
        found.model.ending(cold).set()
        await asyncio.wait_for(answer, WAIT_S)
        assert asked.attempts == 2


async def test_it_is_asked_again_elsewhere_where_there_is_another_server() -> None:
    async with world(servers=2) as found:
        for model in found.models:
            model.begins = False
        await found.trusted()
        asked = found.errand("one")
        answer = asyncio.ensure_future(found.relay.whole(asked))
        await until(lambda: found.models[0].salts or found.models[1].salts)
        first = 0 if found.models[0].salts else 1
        other = found.models[1 - first]
        await found.launchers[first].say(violation(salt_of(KEY, "one")))
        await until(lambda: other.salts)
        other.ending(other.salts[0]).set()
        await asyncio.wait_for(answer, WAIT_S)
        assert len(found.models[first].salts) == 1


async def test_a_request_that_is_stopped_twice_is_told_so() -> None:
    async with world() as found:
        found.model.begins = False
        await found.trusted()
        answer = asyncio.ensure_future(found.relay.whole(found.errand("one")))
        await until(lambda: found.model.salts)
        await found.launcher.say(violation(found.model.salts[0]))
        await until(lambda: len(found.model.salts) == 2)
        await found.launcher.say(violation(found.model.salts[1], seq=2))
        with pytest.raises(IntegrityAbort):
            await asyncio.wait_for(answer, WAIT_S)
        assert len(found.model.salts) == 2


async def test_a_slow_reader_gets_no_byte_more() -> None:
    """Whose answer lies ready when the violation comes."""
    async with world() as found:
        await found.trusted()
        batches = found.relay.stream(found.errand("one", stream=True))
        await anext(batches)
        found.model.ending(salt_of(KEY, "one")).set()
        await found.launcher.say(violation(salt_of(KEY, "one")))
        await until(lambda: found.places[0].guard and found.places[0].guard.violations)
        with pytest.raises(IntegrityAbort):
            await anext(batches)


@pytest.mark.parametrize("cut", [1, 7])
async def test_lines_may_come_in_any_pieces(cut: int) -> None:
    async with world() as found:
        found.launcher.cut = cut
        await found.trusted()
        one, seen = found.streaming("one")
        await until(lambda: seen)
        await found.launcher.say(violation(salt_of(KEY, "one")))
        with pytest.raises(IntegrityAbort):
            await one


async def test_a_guard_that_failed_ends_all_and_is_sent_nothing_until_a_new_start() -> None:
    async with world() as found:
        await found.trusted()
        (one, first), (two, second) = found.streaming("one"), found.streaming("two")
        await until(lambda: first and second)
        found.launcher.poisoned = True
        for task in (one, two):
            with pytest.raises(IntegrityAbort):
                await task
        assert "has failed" in found.fault
        with pytest.raises(Unavailable):
            await found.relay.whole(found.errand())
        found.launcher.poisoned, found.launcher.boot = False, "b1"
        await found.trusted()
        await found.relay.whole(found.errand())


async def test_a_stream_that_broke_is_taken_up_where_it_was_left() -> None:
    async with world() as found:
        await found.trusted()
        await found.launcher.say(violation("nobody's", seq=41))
        await until(lambda: found.places[0].guard and found.places[0].guard.seq == 41)
        found.launcher.break_off()
        await until(lambda: len(found.launcher.asked) == 2)
        query = parse_qs(urlsplit(found.launcher.asked[1].path).query)
        assert query == {"boot": ["b0"], "after": ["41"]}
        assert found.fault == "", "for a moment it is trusted: five seconds"


async def test_once_its_launcher_ends_the_stream_nothing_is_sent_and_what_runs_may_end() -> None:
    async with world() as found:
        await found.trusted()
        one, seen = found.streaming("one")
        await until(lambda: seen)
        found.launcher.status = 503
        await found.launcher.end()
        await until(lambda: "launcher ends it" in found.fault)
        found.model.ending(salt_of(KEY, "one")).set()
        assert (await one)[-1].done
        found.launcher.status = 200
        await found.trusted()


async def test_who_waits_is_served_once_the_guard_is_heard() -> None:
    async with world() as found:
        await found.trusted()
        found.launcher.poisoned = True
        await until(lambda: "has failed" in found.fault)
        line = found.placement.line("ours")
        line.set_places(found.places)
        waiting = asyncio.ensure_future(line.wait(line.turn(1), 8, WAIT_S))
        await asyncio.sleep(0)
        found.launcher.poisoned, found.launcher.boot = False, "b1"
        assert await waiting is found.places[0]


async def refuses(exchange: Exchange) -> None:
    await exchange.reply(401, b"", "text/plain")


async def nonsense(exchange: Exchange) -> None:
    await exchange.send(HEAD)
    await exchange.event(counters())
    await exchange.event(b"not json\n")
    await exchange.gone()


async def endless(exchange: Exchange) -> None:
    """A line of ten megabytes, as far as anybody takes it."""
    await exchange.send(HEAD)
    for _ in range(10 * 1024 // 16):
        await exchange.event(b"x" * 16 * 1024)
    await exchange.gone()


async def drips(exchange: Exchange) -> None:
    await exchange.send(HEAD)
    while True:
        await exchange.event(b" ")
        await asyncio.sleep(0.05)


async def silent(exchange: Exchange) -> None:
    await exchange.gone()


async def no_http(exchange: Exchange) -> None:
    await exchange.send(b"hello\r\n\r\n")
    exchange.close()


async def unknown(exchange: Exchange) -> None:
    await exchange.send(HEAD)
    while True:
        await exchange.event(b'{"later":"launchers"}\n')
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("launcher", "reason"),
    [
        (refuses, "401: the model's guard_secret isn't its own"),
        (nonsense, "no JSON"),
        (endless, f"more than {MAX_LINE_BYTES} bytes"),
        (drips, "silent"),
        (silent, "silent"),
        (unknown, "silent"),
        (no_http, ""),
    ],
)
async def test_a_launcher_that_tells_no_counters_is_trusted_by_nobody(
    launcher: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "SILENT_S", 0.3)
    monkeypatch.setattr(guards, "SILENT_S", 0.3)
    monkeypatch.setattr(guards, "RETRY_S", 1.0)
    async with world(launcher=launcher) as found:
        guard = found.places[0].guard
        assert guard is not None
        await until(lambda: guard.trouble and reason in guard.fault)
        with pytest.raises(Unavailable):
            await found.relay.whole(found.errand())
        assert found.attached.troubles.told()["ours"][0].guard == guard.fault


async def test_a_guard_that_counts_no_step_while_answers_come_is_trusted_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trust, "JUDGED_S", 0.05)
    async with world() as found:
        await found.trusted()

        class Stuck(Launcher):
            def counters(self) -> bytes:
                return counters(5)

        found.launcher.__class__ = Stuck
        async with asyncio.timeout(WAIT_S):
            while not found.fault:
                with suppress(Unavailable):
                    await found.relay.whole(found.errand())
        assert found.fault == "it answers, and its guard counts no steps"


async def test_what_isn_t_followed_isn_t_trusted() -> None:
    async with world() as found:
        await found.trusted()
        found.following.cancel()
        await until(lambda: found.fault == "its guard isn't followed")


async def test_a_server_that_is_let_go_is_watched_until_its_last_answer_has_ended() -> None:
    async with world() as found, upstream(Model()) as other:
        await found.trusted()
        one, seen = found.streaming("one")
        await until(lambda: seen)
        await found.attached.keep([deployment([(other, "")], version="1.3.0rc22")], 1)
        await asyncio.sleep(0.1)
        await found.launcher.say(violation(salt_of(KEY, "one")))
        with pytest.raises(IntegrityAbort):
            await one
        await until(lambda: not found.launcher.followers)


async def test_a_server_without_a_guard_to_hear_is_sent_requests_as_ever() -> None:
    async with world() as found, upstream(Model()) as other:
        found.of = deployment([(other, "")], guard=False)
        await found.relay.whole(found.errand())
        (place,) = found.attached.places(found.of, SETTINGS.connect_s)
        assert place.guard is None
