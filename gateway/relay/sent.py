"""One errand's way there and back, as a context: its turn in the line, its place, its exchange."""

from __future__ import annotations

from types import TracebackType

from gateway.relay.answer import Answer
from gateway.relay.errand import Errand
from gateway.relay.place import Place
from gateway.relay.placement import Line
from gateway.relay.sending import Sender, leave


class Sent:
    """Entering gives the engine's answer, its status 200, and raises Refusal.

    A class and no generator, which would cost each request several times as much.
    """

    __slots__ = ("_answer", "_errand", "_exchange", "_line", "_sender", "_turn")

    def __init__(self, sender: Sender, errand: Errand) -> None:
        self._sender = sender
        self._errand = errand

    async def __aenter__(self) -> Answer:
        errand = self._errand
        if errand.deployment.tokenizer:
            await self._sender.encode(errand)
        line = self._line = self._sender.line(errand.deployment)
        turn = line.turn(errand.tokens, errand.domain, errand.weight, ahead=errand.ahead)
        turn.session, errand.turn, self._turn = errand.session, turn, turn
        if errand.is_cold:
            turn.tried = _stopped_at(line, errand.host_id)
        try:
            self._exchange, self._answer = await self._sender.first(line, turn, errand)
        except BaseException:
            line.end(turn)
            raise
        return self._answer

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None
    ) -> None:
        place, flight = self._answer.place, self._answer.flight
        try:
            self._sender.judge(self._errand, place, fault)
            await self._exchange.aclose()
        finally:
            leave(self._line, self._turn, place, flight)
            self._line.end(self._turn)


def _stopped_at(line: Line, host_id: str | None) -> tuple[Place, ...]:
    """The place at which a request was stopped, if another one may answer it."""
    here = tuple(place for place in line.places if place.host_id == host_id)
    return here if any(place.takes for place in line.places if place not in here) else ()
