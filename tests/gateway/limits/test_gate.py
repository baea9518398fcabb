"""What was let in is settled once, however it ends: nothing is held at rest, no limit is passed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gateway.billing import Outcome, UsageSource
from gateway.errors import Unsupported
from gateway.limits import admission, told
from gateway.limits.alone import Alone
from gateway.limits.gate import Gate, Grant
from gateway.limits.limit import Kind, Limit, Take
from gateway.limits.local import LocalLimiter
from gateway.limits.rules import Caller, Rules, caller_of
from gateway.prices import Usage
from gateway.record import Settlement
from gateway.schema import decode_chat
from gateway.store.limit_rules import NO_RULES, Rule, Scope
from gateway.store.principal import Principal
from runtime.config.limits import RateSettings, TenantRateSettings

PLACES = Limit("tenant:concurrent", Kind.CONCURRENT, 3, "tenant")
REQUESTS = Limit("tenant:rpm", Kind.REQUESTS, 8, "tenant")
TOKENS = Limit("tenant:tpm", Kind.TOKENS, 1000, "tenant")
ALL = (PLACES, REQUESTS, TOKENS)


class Still:
    """A clock that stands."""

    def __call__(self) -> int:
        return 10**15


@dataclass
class Story:
    """One request: what it may take, how long it runs, and how it ends."""

    most: int
    turns: int
    outcome: Outcome
    used: int | None
    delivered: bool
    is_cancelled: bool

    @property
    def end(self) -> Settlement:
        usage = None if self.used is None else Usage(self.used, 0, 0)
        return Settlement(
            outcome=self.outcome,
            usage=usage,
            usage_source=UsageSource.NONE,
            status_code=0,
            finish_reason=None,
            host_id="h",
            first_token_at=1 if self.delivered else None,
        )


stories = st.builds(
    Story,
    most=st.integers(1, 600),
    turns=st.integers(0, 5),
    outcome=st.sampled_from(Outcome),
    used=st.none() | st.integers(0, 900),
    delivered=st.booleans(),
    is_cancelled=st.booleans(),
)


def debit(story: Story) -> tuple[int, int]:
    """What the table in `admission` says is counted: a request or none, and tokens."""
    is_answer = story.outcome in (Outcome.COMPLETED, Outcome.LENGTH, Outcome.CLIENT_CANCELLED)
    if story.outcome in (Outcome.INTEGRITY_ABORT, Outcome.REFUSED):
        return 0, 0
    if not is_answer and not story.delivered:
        return 0, 0
    return 1, story.most if story.used is None else story.used


@settings(max_examples=60)
@given(st.lists(stories, max_size=30))
async def test_nothing_is_held_at_rest_and_what_is_debited_was_used(all_: list[Story]) -> None:
    local = LocalLimiter(Still())
    gate = Gate(Alone(lambda: 1, local))
    running = 0
    counted: list[tuple[int, int]] = []

    async def live(number: int, story: Story) -> None:
        nonlocal running
        takes = [Take(PLACES, 1), Take(REQUESTS, 1), Take(TOKENS, story.most)]
        _, grant = await gate.enter(f"r{number}", takes)
        if grant is None:
            return
        async with grant:
            running += 1
            assert running <= PLACES.number
            try:
                for _ in range(story.turns):
                    await asyncio.sleep(0)
            finally:
                running -= 1
            counted.append(debit(story))
            await admission.settle(grant, story.end)
            await grant.settle(1, 10**6)  # only the first counts

    tasks = [asyncio.create_task(live(i, story)) for i, story in enumerate(all_)]
    await asyncio.sleep(0)
    for task, story in zip(tasks, all_, strict=True):
        if story.is_cancelled:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    verdict = await gate.look([Take(limit, 0) for limit in ALL])
    assert (len(gate), verdict.levels[0]) == (0, 0)
    assert verdict.levels[1] == sum(REQUESTS.cost(requests) for requests, _ in counted)
    assert verdict.levels[2] == sum(TOKENS.cost(tokens) for _, tokens in counted)


async def test_who_leaves_before_an_engine_has_it_counts_as_a_request_without_tokens() -> None:
    gate = Gate(Alone(lambda: 1, LocalLimiter(Still())))
    _, grant = await gate.enter("r", [Take(REQUESTS, 1), Take(TOKENS, 500)])
    assert grant
    end = Settlement(Outcome.CLIENT_CANCELLED, None, UsageSource.NONE, 499, None, None, None)
    await admission.settle(grant, end)
    levels = (await gate.look([Take(REQUESTS, 0), Take(TOKENS, 0)])).levels
    assert levels == (REQUESTS.cost(1), 0)


async def test_a_burst_of_200_keys_meets_the_tenants_limit() -> None:
    rules = Rules(RateSettings(rpm=60, concurrent=5), RateSettings(rpm=600), {}, {})
    gate = Gate(Alone(lambda: 1))
    let_in: list[Grant] = []
    for i in range(200):
        limits = rules.limits(Caller("tn_1", "acme", f"key_{i}"), "echo", NO_RULES)
        assert [limit.scope for limit in limits] == ["key", "tenant", "tenant"]
        _, grant = await gate.enter(f"r{i}", [Take(limit, 1) for limit in limits])
        let_in += [grant] if grant else []
    assert len(let_in) == 5
    assert len({limit.key for grant in let_in for limit, _ in _pairs(grant)}) == 5 + 2


def _pairs(grant: Grant) -> list[tuple[Limit, int]]:
    return [(take.limit, take.amount) for take in grant.takes]


def test_each_number_comes_from_the_store_the_tenant_or_all_tenants() -> None:
    rules = Rules(
        per_tenant=RateSettings(rpm=60, tpm=6000, concurrent=6),
        per_key=RateSettings(),
        tenants={
            ("acme", ""): TenantRateSettings(tpm=7000),
            ("acme", "echo"): TenantRateSettings(rpm=5),
        },
        models={"echo": RateSettings(concurrent=100, fail="closed")},
    )
    caller = Caller("tn_1", "acme", "key_1", "pr_1")
    stored = {
        Scope("tenant", "tn_1"): Rule(concurrent=8),
        Scope("project", "pr_1", "echo"): Rule(tpm=70),
        Scope("project", "pr_2"): Rule(tpm=1),
    }
    found = {limit.key: limit for limit in rules.limits(caller, "echo", stored)}
    assert {key: limit.number for key, limit in found.items()} == {
        "tenant:tn_1::rpm": 60,
        "tenant:tn_1::tpm": 7000,
        "tenant:tn_1::concurrent": 8,
        "tenant:tn_1:echo:rpm": 5,
        "project:pr_1:echo:tpm": 70,
        "model:echo:echo:concurrent": 100,
    }
    closed = [key for key, limit in found.items() if limit.fails_closed]
    assert closed == ["model:echo:echo:concurrent"]
    assert len(rules.limits(caller, "echo", NO_RULES)) == 5, "the store's went"


def test_a_subject_is_counted_apart_at_each_tenant() -> None:
    who: dict[str, Any] = {"tenant_name": "x", "subject": "https://id|ann", "project_id": "pr_1"}
    ann, other = (caller_of(Principal(tenant_id=id, **who)) for id in ("tn_1", "tn_2"))
    assert ann.key != other.key
    assert "ann" not in ann.key
    assert ann.project_id == "pr_1"
    assert caller_of(Principal("tn_1", "x", "key_1")).key == "key_1"


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (12_000, "12ms"),
        (1_500_000, "1.5s"),
        (59_999_001, "1m0s"),
        (86_400_000, "1m26.4s"),
        (3_600_000_000, "1h0m0s"),
    ],
)
def test_durations_are_as_go_writes_them(us: int, text: str) -> None:
    assert told.duration(us) == text


def test_the_tightest_limit_of_each_kind_is_told_and_no_other_tenants() -> None:
    takes = [
        Take(Limit("a", Kind.REQUESTS, 60, "key"), 1),
        Take(Limit("b", Kind.REQUESTS, 600, "tenant"), 1),
        Take(Limit("c", Kind.REQUESTS, 1, "model"), 1),
        Take(PLACES, 1),
    ]
    found = told.headers(takes, [3_000_000, 9_950_000, 0, 1])
    assert found == {
        b"x-ratelimit-limit-requests": b"600",
        b"x-ratelimit-remaining-requests": b"0",
        b"x-ratelimit-reset-requests": b"9.95s",
        b"ratelimit-policy": b'"rpm";q=600;w=60, "concurrent";q=3;qu="concurrent-requests"',
        b"ratelimit": b'"rpm";r=0;t=10, "concurrent";r=2',
    }


def test_a_request_is_for_one_answer_so_its_bound_is_too() -> None:
    """Whoever lets `n` or `best_of` in has to multiply the bound."""
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"n":2}'
    with pytest.raises(Unsupported):
        decode_chat(body)


class Slow(Alone):
    """One that is asked over a network, which may take its time."""

    waits = True

    def __init__(self, local: LocalLimiter) -> None:
        super().__init__(lambda: 1, local)
        self.goes_on = asyncio.Event()

    async def settle(self, grant: str, takes: Sequence[Take], used: Sequence[int]) -> None:
        await self.goes_on.wait()
        await super().settle(grant, takes, used)


async def test_who_leaves_while_it_is_settled_holds_nothing_at_other_models_either() -> None:
    limiter = Slow(LocalLimiter(Still()))
    gate = Gate(limiter)
    elsewhere = Limit("model:concurrent", Kind.CONCURRENT, 3, "model")
    _, grant = await gate.enter("r", [Take(PLACES, 1)])
    _, more = await gate.enter("r/other", [Take(elsewhere, 1)])
    assert grant
    assert more
    grant.also.append(more)
    settling = asyncio.create_task(grant.settle(1, 5))
    await asyncio.sleep(0)
    settling.cancel()
    await asyncio.wait({settling})
    await grant.settle(0, 0)  # as its exit does
    assert len(gate) == 0, "it's renewed no more"
    limiter.goes_on.set()
    await gate.drain()
    assert (await gate.look([Take(PLACES, 0), Take(elsewhere, 0)])).levels == (0, 0)
