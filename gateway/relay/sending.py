"""A request is given a place and sent there, and elsewhere if that failed before its first byte.

One that a host of ours didn't take (gone, draining) goes to the next, however often. An attached
server's failure is made good by another of the model's servers, a few times at most, and only where
one has room at once: what waits would be late, and an outage must not be multiplied.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto

import msgspec
import structlog

from gateway.catalog.catalog import Deployment
from gateway.errors import IntegrityAbort, Refusal, Unavailable, UpstreamFailed, UpstreamTimeout
from gateway.relay.answer import Answer
from gateway.relay.attached import AttachedServers
from gateway.relay.deadline import Deadline
from gateway.relay.errand import Errand
from gateway.relay.extra_fields import as_chat, extra_fields, salt_of
from gateway.relay.place import Place
from gateway.relay.placement import Line, Placement
from gateway.relay.queue import Turn
from gateway.relay.refused import judged, read_refusal
from gateway.relay.retries import MAX_ATTEMPTS, MAX_SENT
from gateway.relay.sse import BadFrame
from gateway.relay.transport import Broken, ConnectFailed, Exchange, Reply
from gateway.relay.trust import SILENT_S, Flight
from gateway.relay.upstream_errors import refusal_of
from runtime.capability import Signer
from runtime.config.sections import RelaySettings
from runtime.wire import REQUEST_ID

log = structlog.get_logger()

DRAINING = "draining"
FULL = 429  # no fault of the server's
ELSEWHERE = (FULL, 502, 503, 504)  # statuses after which another server is asked
PATHS = {"chat": "/chat/completions", "completion": "/completions"}


class How(Enum):
    """What became of a request that another place may still answer."""

    UNSENT = auto()  # there was no connection, or the host drains
    REFUSED = auto()  # by its status
    BROKEN = auto()  # it was sent, and the connection ended without a byte of an answer
    STOPPED = auto()  # the server's guard saw a page that may not be its own


class Failed(Exception):
    """Nothing of an answer came from a place. `refusal` is what the client is told at last."""

    def __init__(self, how: How, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.how = how
        self.refusal = refusal


class Sender:
    """Sends errands to hosts of our nodes, and to servers attached by URL."""

    def __init__(
        self,
        placement: Placement,
        attached: AttachedServers,
        signer: Signer,
        salt_key: bytes,
        settings: RelaySettings,
    ) -> None:
        self._placement = placement
        self._attached = attached
        self._signer = signer
        self._salt_key = salt_key
        self._settings = settings

    async def encode(self, errand: Errand) -> None:
        """Look up a plain prompt's token ids, for a server that is sent these. Raises Refusal."""
        if errand.ask.prompt is not None:
            encoders = self._attached.encoders
            errand.prompt_ids = await encoders.ids(errand.deployment.tokenizer, errand.ask.prompt)

    async def first(self, line: Line, turn: Turn, errand: Errand) -> tuple[Exchange, Answer]:
        """From the first place that gives one, where it has its place still. Raises Refusal."""
        self._attached.budget(errand.deployment.id).asked()
        failures: list[Failed] = []
        while True:
            place = line.take(turn) or await self._wait(line, errand, turn, failures)
            errand.host_id = place.host_id
            errand.attempts += 1
            flight = place.guard.board(self._salt(errand)) if place.guard else None
            is_answered = False
            try:
                exchange = place.transport.send(*self._request(errand, place))
                try:
                    answer = await self._sent(exchange, errand, place, flight)
                    is_answered = True
                except Failed as fault:
                    failures.append(fault)
                finally:
                    if not is_answered:
                        await exchange.aclose()
                if is_answered:
                    place.is_silent = False
                    return exchange, answer
                if errand.deployment.is_attached and not self._again(line, turn, place, failures):
                    raise failures[-1].refusal
                if failures[-1].how is How.UNSENT:
                    line.lose(place)  # before it is left, or it would be given to who is the next
            finally:
                if not is_answered:
                    leave(line, turn, place, flight)

    def _again(self, line: Line, turn: Turn, place: Place, failures: list[Failed]) -> bool:
        """Whether another server may be asked, or the same once more; if so, that is paid for."""
        how, is_alone = failures[-1].how, len(line.places) == 1
        num_sent = sum(failed.how in (How.BROKEN, How.STOPPED) for failed in failures)
        if len(failures) >= MAX_ATTEMPTS or num_sent >= MAX_SENT:
            return False
        if is_alone and how not in (How.BROKEN, How.STOPPED):
            return False
        if not is_alone and how is not How.UNSENT:
            turn.tried = (*turn.tried, place)
        return self._attached.budget(line.model).take()

    async def _wait(self, line: Line, errand: Errand, turn: Turn, failures: list[Failed]) -> Place:
        most_s = self._settings.start_s
        if errand.deployment.is_attached:
            if failures and (failures[-1].how is not How.UNSENT or not line.takes_any()):
                raise failures[-1].refusal  # no other place has room just now
            if not line.takes_any():
                if not line.begins():
                    raise _unreachable(errand, line.doubt() or "its circuit breaker is open")
                most_s = min(most_s, SILENT_S)  # by then something is known of its guard
        return await line.wait(turn, errand.deployment.max_waiting, most_s)

    async def _sent(
        self, exchange: Exchange, errand: Errand, place: Place, flight: Flight | None
    ) -> Answer:
        """The answer of this place. Raises Failed if another may be asked, or Refusal."""
        settings, sent_at = self._settings, asyncio.get_running_loop().time()
        try:
            async with Deadline(settings.first_byte_s, flight):
                reply = await exchange.begin()
                first = await reply.chunk() if reply.status == 200 else None
            if reply.status != 200:
                async with Deadline(settings.idle_s):
                    await self._refused(errand, place, reply)
            if first is None:
                raise Broken("it ended before its first byte")
        except ConnectFailed as fault:
            if errand.deployment.is_attached:
                self._attached.unreachable(errand.deployment.id, place, str(fault))
            raise Failed(How.UNSENT, _unreachable(errand, str(fault))) from None
        except Broken as fault:
            self._note(errand, place, f"an answer broke off: {fault}")
            refusal = broken(errand, str(fault))
            if not errand.deployment.is_attached:
                raise refusal from None
            raise Failed(How.BROKEN, refusal) from None
        except UpstreamTimeout as fault:
            self._note(errand, place, f"an answer broke off: {fault}")
            raise
        except IntegrityAbort as fault:
            if flight is None or fault is not flight.fault:
                raise
            errand.is_cold = True  # once more, with a salt under which nothing is cached
            raise Failed(How.STOPPED, fault) from None
        self._reached(errand, place)
        place.asked_at = max(place.asked_at, sent_at)
        return Answer(place, first, reply, settings.idle_s, flight)

    async def _refused(self, errand: Errand, place: Place, reply: Reply) -> None:
        """Raises Failed or Refusal, as the status and what comes with it say."""
        code, message = await read_refusal(errand, reply)
        is_attached, status = errand.deployment.is_attached, reply.status
        self._reached(errand, place)
        if code == DRAINING and not is_attached:
            raise Failed(How.UNSENT, refusal_of(code, message, status))
        fault = judged(errand, status, code, message)
        if fault.is_fault:
            self._note(errand, place, fault.reason)
        elif fault.reason:
            self._tell(errand, place, fault.reason)
        if fault.is_doubtful:
            self._attached.suspects.add(place)
        if is_attached and status in ELSEWHERE:
            raise Failed(How.REFUSED, fault.refusal)
        raise fault.refusal

    def judge(self, errand: Errand, place: Place, fault: BaseException | None) -> None:
        """Remember how an answer ended. A server that breaks off, or is silent, is at fault.

        A client that leaves says nothing of the server, nor does what it asked for.
        """
        if isinstance(fault, Broken | BadFrame | UpstreamTimeout):
            self._note(errand, place, f"an answer broke off: {fault}")
        elif isinstance(fault, UpstreamFailed):
            self._note(errand, place, "an answer ended in an error event")
        elif isinstance(fault, IntegrityAbort) and errand.deployment.is_attached:
            if place.guard is None:  # nobody tells of it: if it has failed it stops every answer
                self._tell(errand, place, "its guard stopped an answer")
                self._attached.suspects.add(place)
        elif fault is None and errand.deployment.is_attached:
            self._attached.succeeded(place)

    def _reached(self, errand: Errand, place: Place) -> None:
        if errand.deployment.is_attached:
            self._attached.troubles.answered(place.base_url)

    def _note(self, errand: Errand, place: Place, reason: str) -> None:
        """Remember a failure of a server that we reached; it counts against it."""
        if errand.deployment.is_attached:
            self._attached.failed(errand.deployment.id, place, reason)

    def _tell(self, errand: Errand, place: Place, reason: str) -> None:
        """Remember what went wrong with a server, which doesn't count against it."""
        if errand.deployment.is_attached:
            self._attached.troubles.failed(errand.deployment.id, place.base_url, reason)

    def line(self, deployment: Deployment) -> Line:
        """A model's line, with the places that there are now."""
        line = self._placement.line(deployment.id)
        line.max_in_flight = deployment.max_in_flight
        if deployment.is_attached:
            places = self._attached.places(deployment, self._settings.connect_s)
            if line.places is not places:
                line.set_places(places)
        return line

    def _salt(self, errand: Errand) -> str:
        return salt_of(self._salt_key, errand.cache_domain)

    def _request(self, errand: Errand, place: Place) -> tuple[str, str, dict[str, str], bytes]:
        deployment, body = errand.deployment, errand.ask.engine_body()
        headers = {"content-type": "application/json", REQUEST_ID: errand.request_id}
        if place.server is not None:
            body |= extra_fields(deployment, errand.ask, self._salt(errand))
            if errand.prompt_ids is not None:
                as_chat(body, errand.prompt_ids)
            if place.server.api_key:
                headers["authorization"] = f"Bearer {place.server.api_key}"
        else:
            token = self._signer.mint(errand.domain, deployment.id)
            headers["authorization"] = f"Bearer {token}"
        url = place.base_url + PATHS[errand.sent_as]
        return "POST", url, headers, msgspec.json.encode(body)


def leave(line: Line, turn: Turn, place: Place, flight: Flight | None) -> None:
    """A request isn't there any more, however that came."""
    if flight is not None:
        flight.end()
    line.leave(place, turn.tokens)


def broken(errand: Errand, reason: str) -> UpstreamFailed:
    """What a client is told of an answer that broke off."""
    log.warning("upstream_broke", request_id=errand.request_id, host=errand.host_id, reason=reason)
    return UpstreamFailed("the engine's answer broke off; try again")


def _unreachable(errand: Errand, reason: str) -> Unavailable:
    log.debug(  # for each request; `troubles` warns once
        "upstream_unreachable", request_id=errand.request_id, host=errand.host_id, reason=reason
    )
    return Unavailable("the model's engine can't be reached just now; try again")
