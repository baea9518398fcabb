"""The limits on a request's way: reserved before anything is written or asked, settled at its end.

What is given back at the end, and what isn't:

| the request | counts as a request | tokens |
|---|---|---|
| is answered | yes | the ledger's; what was reserved if the engine told none |
| is left by its client | yes | the ledger's; if nobody could tell, all once an engine had it |
| is refused by the engine (4xx), or stopped for its pages' integrity | no | none |
| fails before its first token was handed over | no | none |
| fails after that | yes | the ledger's |
| is refused by us after it was let in (a budget, a full line) | no | none |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from gateway.asgi import Call
from gateway.billing import Outcome
from gateway.budgets.bounds import Bound
from gateway.catalog.catalog import Deployment
from gateway.errors import LimitExceeded, LimitsUnavailable, RequestOverLimit
from gateway.limits import told
from gateway.limits.gate import Gate, Grant
from gateway.limits.limit import Kind, Limit, Take, wait_us
from gateway.limits.limiter import LimiterDown
from gateway.limits.rules import Caller, Rules, caller_of
from gateway.record import Settlement
from gateway.store.directory import KeyDirectory
from gateway.store.principal import Principal

ANSWERED = (Outcome.COMPLETED, Outcome.LENGTH)
NOT_COUNTED = (Outcome.INTEGRITY_ABORT, Outcome.REFUSED)


class Admission:
    """One deployment's rules, at the process's gate."""

    def __init__(self, rules: Rules, gate: Gate, directory: KeyDirectory) -> None:
        self._rules = rules
        self._gate = gate
        self._directory = directory  # has the store's rules

    async def admit(
        self, call: Call, principal: Principal, deployment: Deployment, bound: Bound
    ) -> Grant:
        """Let a request in; its answer's headers say what is left.

        Raises LimitExceeded, RequestOverLimit, or LimitsUnavailable.
        """
        stored = self._directory.limit_rules
        caller = caller_of(principal)
        limits = self._rules.limits(caller, deployment.id, stored)
        further = partial(self._further, caller)
        if not limits:
            return Grant(self._gate, call.id, (), further)
        tokens = _most_tokens(deployment, bound)
        takes = _takes(limits, tokens)
        for take in takes:
            if not take.can_ever_be:
                raise _too_large(take)
        try:
            verdict, grant = await self._gate.enter(call.id, takes, further)
        except LimiterDown:
            raise LimitsUnavailable("limits can't be counted just now; try again") from None
        call.extra |= told.headers(verdict.takes, verdict.levels)
        if grant is None:
            raise _refusal(call, verdict.takes, verdict.levels)
        return grant

    async def _further(
        self, caller: Caller, grant: Grant, other: Deployment, bound: Bound
    ) -> Grant | None:
        """Under the limits that it meets at another model alone; None if one has no room."""
        met = {take.limit.key for one in (grant, *grant.also) for take in one.takes}
        limits = self._rules.limits(caller, other.id, self._directory.limit_rules)
        tokens = _most_tokens(other, bound)
        takes = _takes([one for one in limits if one.key not in met], tokens)
        if not all(take.can_ever_be for take in takes):
            return None
        try:
            _, more = await self._gate.enter(f"{grant.id}/{other.id}", takes)
        except LimiterDown:
            return None
        return more

    async def look(self, principal: Principal, models: Iterable[str]) -> list[tuple[Limit, int]]:
        """The caller's own limits, those at these models too, each with its level.

        Raises LimitsUnavailable.
        """
        stored = self._directory.limit_rules
        limits = self._rules.of_caller(caller_of(principal), models, stored)
        try:
            verdict = await self._gate.look([Take(limit, 0) for limit in limits])
        except LimiterDown:
            raise LimitsUnavailable("limits can't be counted just now; try again") from None
        return [(take.limit, at) for take, at in zip(verdict.takes, verdict.levels, strict=True)]


async def settle(grant: Grant, end: Settlement) -> None:
    """Correct a grant to what became of its request, as the table above has it."""
    usage, outcome = end.usage, end.outcome
    is_left = outcome is Outcome.CLIENT_CANCELLED
    if outcome in NOT_COUNTED or not (outcome in ANSWERED or is_left or end.first_token_at):
        await grant.settle(0, 0)
    elif usage is not None:
        await grant.settle(1, usage.input_tokens + usage.output_tokens)
    elif is_left and end.host_id is None:  # no engine had it
        await grant.settle(1, 0)
    else:
        await grant.settle(1, None)


def _most_tokens(deployment: Deployment, bound: Bound) -> int:
    """What a request may take. Our own engines' context holds its input and its answer."""
    most = bound.input_tokens + bound.output_tokens
    context = None if deployment.is_attached else deployment.facts.context_length
    return most if context is None else min(most, context)


def _takes(limits: Sequence[Limit], tokens: int) -> list[Take]:
    counted = Kind.TOKENS
    return [Take(limit, tokens) if limit.kind is counted else limit.one for limit in limits]


def _too_large(take: Take) -> RequestOverLimit:
    return RequestOverLimit(
        f"the request may take {take.amount} tokens (its text, and max_tokens), which is over "
        f"{told.described(take.limit)}; send less, or ask for fewer with max_tokens",
        param="max_tokens",
    )


def _refusal(call: Call, takes: Sequence[Take], levels: Sequence[int]) -> LimitExceeded:
    """Names the limit that has the longest to wait."""
    waits = [wait_us(take, level) for take, level in zip(takes, levels, strict=True)]
    longest = max(waits)
    limit = takes[waits.index(longest)].limit
    call.notes["limit"] = f"{limit.scope} {limit.kind.value}"
    seconds = told.seconds(longest)
    return LimitExceeded(
        f"{told.described(limit)} is reached; try again in {seconds} s", retry_after_s=seconds
    )
