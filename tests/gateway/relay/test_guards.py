"""Guards in attached servers are followed over a real port: whose requests end, and where none go.

The launcher here is scripted; what it should tell is `runtime/trt/telling.py`'s.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from gateway.errors import IntegrityAbort, Unavailable
from gateway.relay import trust
from gateway.relay.extra_fields import salt_of
from tests.gateway.guarding import (
    KEY,
    WAIT_S,
    Launcher,
    Model,
    counters,
    deployment,
    until,
    violation,
    world,
)
from tests.gateway.relaying import SETTINGS, collect
from tests.runtime.upstream import upstream


async def test_nothing_is_sent_where_nobody_watches_yet() -> None:
    async with world() as found:
        found.launcher.status = 503
        await until(lambda: "it answers 503" in found.fault)
        with pytest.raises(Unavailable, match="can't be reached just now"):
            await found.relay.whole(found.errand())
        assert found.model.salts == []
        assert found.attached.troubles.told()["ours"][0].is_down
        found.launcher.status = 200
        await found.trusted()
        await found.relay.whole(found.errand())
        (last,) = found.attached.troubles.told()["ours"]
        assert (last.is_down, last.guard) == (False, "")


async def test_who_comes_before_anything_was_heard_waits_for_it() -> None:
    """So it is when a gateway starts, and when a worker takes over: no request is refused."""
    async with world() as found:
        assert found.fault == "its guard has yet to be heard"
        await found.relay.whole(found.errand())
        assert len(found.model.salts) == 1


async def test_but_not_for_long() -> None:
    async with world(launcher=Launcher()) as found:
        found.following.cancel()
        with pytest.raises(Unavailable, match="no engine ready"):
            await found.relay.whole(found.errand())
        assert found.model.salts == []


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


async def test_what_is_read_slowly_is_no_sign_that_a_step_was_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else whoever reads slowly from an idle server has everybody else sent nowhere."""
    monkeypatch.setattr(trust, "JUDGED_S", 0.05)
    async with world() as found:
        await found.trusted()
        place, guard = found.places[0], found.places[0].guard
        assert guard is not None
        batches = found.relay.stream(found.errand("one", stream=True))
        await anext(batches)
        asked_at, read_at = place.asked_at, place.heard_at
        assert 0 < asked_at < read_at
        found.model.ending(salt_of(KEY, "one")).set()
        async for _ in batches:
            pass
        assert (place.asked_at, place.heard_at > read_at) == (asked_at, True)


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


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stream_that_is_lost_ends_what_runs_there_unwatched(
    streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself goes on: without a hook nobody else would end its answers."""
    monkeypatch.setattr(trust, "SILENT_S", 2.0)  # its launcher tells ten times a second
    monkeypatch.setattr(trust, "UNWATCHED_S", 3.0)
    patient = replace(SETTINGS, first_byte_s=600.0, idle_s=600.0)
    async with world(settings=patient) as found:
        with capture_logs() as logs:
            found.model.begins = streamed
            await found.trusted()
            asked = found.errand("one", stream=streamed)
            work = collect(found.relay, asked) if streamed else found.relay.whole(asked)
            running: asyncio.Task[Any] = asyncio.ensure_future(work)
            await until(lambda: found.model.salts)
            found.launcher.status = 503
            found.launcher.break_off()
            with pytest.raises(IntegrityAbort):
                await asyncio.wait_for(running, 6 * WAIT_S)
        (line,) = [line for line in logs if line["event"] == "guard_lost"]
        assert line["stopped"] == 1
        assert "nothing was heard" in line["reason"]
        assert len(found.model.salts) == 1, "nothing more is sent there"
        found.launcher.status = 200
        await found.trusted()
        found.model.begins = True
        await found.relay.whole(found.errand())


async def test_a_cut_that_is_mended_in_time_ends_nothing() -> None:
    async with world() as found:
        await found.trusted()
        one, seen = found.streaming("one")
        await until(lambda: seen)
        found.launcher.break_off()
        await until(lambda: len(found.launcher.asked) == 2 and found.launcher.followers)
        found.model.ending(salt_of(KEY, "one")).set()
        assert (await one)[-1].done


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
