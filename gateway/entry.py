"""A request's record in the ledger: opened on the way in, settled exactly once on the way out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

import structlog

from gateway.billing import Outcome
from gateway.budgets.bounds import within
from gateway.budgets.holds import OtherCurrency, OverBudget
from gateway.budgets.refusals import other_currency, over_budget
from gateway.catalog.catalog import Deployment
from gateway.errors import (
    BadRequest,
    IntegrityAbort,
    Internal,
    Refusal,
    Stopping,
    StoreDown,
    TookTooLong,
    Unauthorized,
    UpstreamTimeout,
)
from gateway.ledger import CLIENT_CLOSED_REQUEST, Ledger
from gateway.limits.admission import settle as settle_limits
from gateway.limits.gate import Grant
from gateway.meter import FINISHED, Meter
from gateway.record import Opening, OpenRecord, Settlement
from gateway.relay.errand import Errand
from gateway.stopper import ClientGone
from gateway.store.errors import ReferenceViolated, StoreUnavailable

log = structlog.get_logger()

OpeningFor = Callable[[Deployment], Awaitable[Opening]]

FALLBACK = b"x-bulkhead-fallback"  # the model that answered instead
MAX_TOKENS = b"x-bulkhead-max-tokens"  # a budget allowed this answer no more tokens


class Entry:
    """A request's record: opened on the way in, settled exactly once on the way out."""

    def __init__(
        self,
        ledger: Ledger,
        opening: Opening,
        meter: Meter,
        errand: Errand,
        grant: Grant,
        opening_for: OpeningFor | None = None,
    ) -> None:
        self._ledger = ledger
        self._opening = opening
        self._opening_for = opening_for
        self._asked_tokens = errand.ask.max_tokens  # before any budget cuts them
        self._record: OpenRecord | None = None
        self._end: Settlement | None = None  # set when settling begins
        self.meter = meter
        self.errand = errand
        self._grant = grant  # of its limits, which hear what it used when the ledger does

    @property
    def tenant_id(self) -> str:
        """Whose request it is."""
        return self._opening.tenant_id

    async def __aenter__(self) -> Entry:
        try:
            self._record = await self._ledger.open(self._opening)
        except StoreUnavailable:
            raise StoreDown(
                "usage can't be recorded just now, so nothing is served; try again"
            ) from None
        except ReferenceViolated:  # the store was restored since the key was checked
            raise Unauthorized("the API key is not valid any more; ask for another one") from None
        except OverBudget as fault:
            raise over_budget(fault) from None
        except OtherCurrency as fault:
            raise other_currency(fault) from None
        if self._record.output_cut is not None:
            self.errand.ask.max_tokens = self._record.output_cut
        return self

    async def move(self, other: Deployment) -> bool:
        """The record is another model's from now on, at its price; durable when this returns.

        False, and nothing changed, if that doesn't fit into a budget, or under a limit of that
        model, or is in another currency.
        Raises StoreDown.
        """
        assert self._record is not None
        if self._opening_for is None:
            return False
        ask, cut = self.errand.ask, self.errand.ask.max_tokens
        ask.max_tokens = self._asked_tokens
        more: Grant | None = None
        try:
            opening = await self._opening_for(other)
            if opening.prices.currency != self._opening.prices.currency:
                return False
            more = await self._grant.at(other, opening.bound)
            if more is None:
                return False
            moved = await self._ledger.move(self._record, opening)
            if moved is None:
                raise StoreDown("this request was given up for lost by another process; try again")
            self._record = moved
            self._grant.also.append(more)
            cut = self._asked_tokens if moved.output_cut is None else moved.output_cut
        except (OverBudget, OtherCurrency):
            return False
        except StoreUnavailable:
            raise StoreDown("usage can't be recorded just now; try again") from None
        finally:
            ask.max_tokens = cut
            if more is not None and more not in self._grant.also:
                await more.settle(0, 0)
        return True

    @property
    def notices(self) -> dict[bytes, bytes]:
        """Headers that say what became of the request: of its tokens, and of its model."""
        cut = self._record.output_cut if self._record is not None else None
        told = {} if cut is None else {MAX_TOKENS: b"%d" % cut}
        if self.errand.has_fallen_back:
            told[FALLBACK] = self.errand.deployment.id.encode()
        return told

    async def settle(self) -> None:
        """Settle a finished answer; durable when this returns. Raises StoreDown."""
        outcome = FINISHED.get(self.meter.finish_reason or "", Outcome.COMPLETED)
        try:
            first = await self._close(outcome, 200)
        except StoreUnavailable:
            raise StoreDown("the usage of this answer could not be recorded; try again") from None
        if not first:
            raise StoreDown("this request was given up for lost by another process; try again")

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None
    ) -> None:
        if fault is None or self._end is not None:
            return
        outcome, status = ending(fault)
        closing = asyncio.ensure_future(self._close(outcome, status))
        try:
            await asyncio.shield(closing)
        except StoreUnavailable:
            return  # the record stays open, and is reaped unbilled at the next start

    def summary(self) -> dict[str, object]:
        """What the request's log line says of it."""
        if (end := self._end) is None:
            return {"outcome": None}
        usage, claimed = end.usage, end.claimed
        told: dict[str, object] = {
            "outcome": end.outcome.value,
            "model": self.errand.deployment.id,
            "host": self.errand.host_id,
            "attempts": self.errand.attempts,
            "ttft_ms": self._ttft_ms(),
            "usage_source": end.usage_source.value,
            "input_tokens": usage.input_tokens if usage else None,
            "cached_input_tokens": usage.cached_input_tokens if usage else None,
            "output_tokens": usage.output_tokens if usage else None,
        }
        if claimed is not None:
            told["claimed_input_tokens"] = claimed.input_tokens
            told["claimed_output_tokens"] = claimed.output_tokens
        return told

    def _ttft_ms(self) -> float | None:
        """From admission to the first token handed over. An unstreamed answer has none."""
        first = self.meter.first_token_at
        if first is None or self._record is None:
            return None
        return round((first - self._record.opened_at) / 1000, 1)

    async def _close(self, outcome: Outcome, status: int) -> bool:
        assert self._record is not None
        end = self._end = self._ended(self._record, outcome, status)
        try:
            return await self._ledger.settle(self._record, end)
        finally:  # before the end of the answer leaves, so that the next request has room
            await settle_limits(self._grant, end)

    def _ended(self, record: OpenRecord, outcome: Outcome, status: int) -> Settlement:
        """More than the request could have used isn't billed, whatever its engine claims."""
        claimed, source = self.meter.usage(outcome)
        bound = record.opening.bound
        if record.output_cut is not None:
            bound = bound._replace(output_tokens=record.output_cut)
        usage = None if claimed is None else within(claimed, bound)
        if claimed is not None and usage is not claimed:
            log.warning(
                "usage_over_bound",
                request_id=record.opening.request_id,
                model=record.opening.model_id,
                host=self.errand.host_id,
                claimed=[claimed.input_tokens, claimed.output_tokens],
                most=[bound.input_tokens, bound.output_tokens],
            )
        return Settlement(
            outcome=outcome,
            usage=usage,
            usage_source=source,
            status_code=status,
            finish_reason=self.meter.finish_reason,
            host_id=self.errand.host_id,
            first_token_at=self.meter.first_token_at,
            attempts=self.errand.attempts,
            claimed=None if usage is claimed else claimed,
        )


def ending(fault: BaseException) -> tuple[Outcome, int]:
    """The outcome and status to write down for a request that ended in `fault`."""
    if isinstance(fault, asyncio.CancelledError | ClientGone):
        return Outcome.CLIENT_CANCELLED, CLIENT_CLOSED_REQUEST
    if not isinstance(fault, Refusal):
        return Outcome.CRASHED, 500
    for kind, outcome in OUTCOMES:
        if isinstance(fault, kind):
            return outcome, fault.row.status
    return Outcome.UPSTREAM_ERROR, fault.row.status


OUTCOMES: tuple[tuple[type[Refusal], Outcome], ...] = (
    (IntegrityAbort, Outcome.INTEGRITY_ABORT),
    (UpstreamTimeout, Outcome.TIMEOUT),
    (TookTooLong, Outcome.TIMEOUT),
    (BadRequest, Outcome.REFUSED),
    (StoreDown, Outcome.CRASHED),
    (Internal, Outcome.CRASHED),
    (Stopping, Outcome.CRASHED),
)
