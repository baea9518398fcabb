"""Where requests go: for each model its places, and a line of requests that wait for one.

A place is a host, or a server attached by URL. It takes so many requests at once; a request gets
the one with the fewest tokens in flight, by its weight, or the one that its session went to before,
unless that has far more to do. While no place has room, requests wait, so many and so long: next is
the tenant that has had the least of the model (`fairness`), and of its requests the one that came
first. Nobody is woken but who gets a place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from gateway.errors import ModelFailed, QueueFull, Unavailable
from gateway.relay.affinity import SLACK_TOKENS, score
from gateway.relay.breaker import State
from gateway.relay.fairness import Shares
from gateway.relay.place import Place
from gateway.relay.queue import Queue, Turn, Waiter
from runtime.node_wire import ModelDemand

RETRY_S = 1.0  # a place that took no request is tried again


class Line:
    """One model's places, and its requests that wait. `on_wait` is called when one begins to."""

    def __init__(self, model: str, on_wait: Callable[[], None]) -> None:
        self.model = model
        self.places: list[Place] = []
        self.has_failed = False  # all nodes say so; `state` is what they say
        self.state = "unknown to the node"
        self.max_in_flight = 1
        self._on_wait = on_wait
        self._arrived = 0
        self._shares = Shares()
        self._queue = Queue(self._shares)
        self._most_waiting = 0  # since that was told

    def turn(self, tokens: int, tenant: str = "", weight: int = 1, *, ahead: int = 0) -> Turn:
        """The turn of a request that comes now. It takes or waits with it, as often as it must.

        `end` is called for it once, whatever becomes of it.
        """
        self._arrived += 1
        self._shares.join(tenant)
        return Turn(self._shares, self._arrived, tokens, tenant, weight, ahead)

    def end(self, turn: Turn) -> None:
        """The request is over, or was refused."""
        self._shares.leave(turn.tenant)

    def take(self, turn: Turn) -> Place | None:
        """The place with the least to do that has room, entered; None if one has to wait."""
        if self._queue:
            return None
        place = self._best(turn)
        if place is not None:
            self._enter(place, turn)
        return place

    def leave(self, place: Place, tokens: int) -> None:
        """The request has ended there; who waits may come."""
        place.leave(tokens)
        if self._queue:
            self.serve()

    def lose(self, place: Place) -> None:
        """It took no request just now: nobody is sent there, until RETRY_S from now.

        A host that is gone is told of by its node, but maybe later; and what failed may also have
        been here, for want of a descriptor, say. So it isn't given up for good.
        """
        place.is_silent = True
        if not place.rests:
            place.rests = True
            asyncio.get_running_loop().call_later(RETRY_S, self.retry, place)

    def retry(self, place: Place) -> None:
        """Requests may be sent there once more."""
        place.rests = False
        self.serve()

    async def wait(self, turn: Turn, max_waiting: int, timeout_s: float) -> Place:
        """A place, entered, once there is one with room and it is this request's turn.

        One that had a place, which it lost, waits where it would stand by now, in what is left of
        its time. Raises ModelFailed, QueueFull, or Unavailable when the time is up.
        """
        self._refuse_at_once(turn, max_waiting)
        if turn.until is None:
            turn.until = asyncio.get_running_loop().time() + timeout_s
        waiter = self._join(turn)
        try:
            async with asyncio.timeout_at(turn.until):
                return await waiter.future
        except TimeoutError:
            self._give_back(waiter)
            raise Unavailable(
                f"the model has no engine ready after {timeout_s:g} s ({self._why()}); try again"
            ) from None
        except BaseException:
            self._give_back(waiter)
            raise
        finally:
            self._queue.drop(waiter)

    def set_places(self, places: list[Place]) -> None:
        """Other places from now on."""
        for place in self.places:
            if place not in places:
                place.close()
        self.places = places
        self.serve()

    def serve(self) -> None:
        """Give places to those that wait, in order, while there are any with room."""
        while self._queue and (place := self._best((waiter := self._queue.next()).turn)):
            self._queue.drop(waiter)
            if not waiter.future.done():  # else it is just leaving
                self._enter(place, waiter.turn)
                waiter.future.set_result(place)

    def fail(self) -> None:
        """The model has failed: nobody needs to wait."""
        self.has_failed = True
        for waiter in self._queue:
            if not waiter.future.done():
                waiter.future.set_exception(_failed())

    @property
    def num_waiting(self) -> int:
        """Requests that wait now."""
        return len(self._queue)

    def waiting_told(self) -> ModelDemand:
        """Those that wait: the most since the last time."""
        most, self._most_waiting = self._most_waiting, len(self._queue)
        return ModelDemand(waiting=most, tokens=self._queue.tokens)

    def takes_any(self) -> bool:
        """Whether any place takes requests at present, be it full or not."""
        return any(place.takes for place in self.places)

    def begins(self) -> bool:
        """Whether a place may take requests in a moment: its guard has yet to be heard of."""
        return any(place.guard is not None and place.guard.is_new for place in self.places)

    def doubt(self) -> str:
        """What is wrong with a guard of a place, if there is anything."""
        guards = (place.guard for place in self.places)
        return next((guard.fault for guard in guards if guard and guard.fault), "")

    def _best(self, turn: Turn) -> Place | None:
        best, most = None, self.max_in_flight
        for place in self.places:
            fits = place.takes and place.has_room(most) and place not in turn.tried
            if fits and (best is None or place.load < best.load):
                best = place
        if best is not None and turn.session and len(self.places) > 1:
            return self._of_session(turn, best)
        return best

    def _of_session(self, turn: Turn, best: Place) -> Place:
        """The session's own place if it can take one more, else the next in its order."""
        session, limit = turn.session, best.load + SLACK_TOKENS
        fit = [
            place
            for place in self.places
            if place.takes
            and place.has_room(self.max_in_flight)
            and place not in turn.tried
            and place.load <= limit
        ]
        return max(fit, key=lambda place: score(session, place.host_id, place.weight))

    def _enter(self, place: Place, turn: Turn) -> None:
        turn.enter()
        place.enter(turn.tokens)

    def _refuse_at_once(self, turn: Turn, max_waiting: int) -> None:
        if self.has_failed:
            raise _failed()
        if len(self._queue) >= max_waiting and not turn.had_place:
            if not self._most_waiting:  # where nobody may wait, a host has to start all the same
                self._most_waiting = 1
                self._on_wait()
            full, last = self._full(), self._queue.longer_than(turn)
            if last is None:
                raise full
            self._queue.drop(last)
            last.future.set_exception(full)

    def _join(self, turn: Turn) -> Waiter:
        waiter = Waiter(turn)
        self._queue.join(waiter)
        if len(self._queue) > self._most_waiting:
            self._most_waiting = len(self._queue)
        if len(self._queue) == 1:
            self._on_wait()
        self.serve()  # there may be room by now: a deploy may have made more of it
        return waiter

    def _give_back(self, waiter: Waiter) -> None:
        """Who left in the moment in which a place was given to it doesn't keep it."""
        future = waiter.future
        if future.done() and not future.cancelled() and future.exception() is None:
            self.leave(future.result(), waiter.turn.tokens)

    def _full(self) -> QueueFull:
        return QueueFull(f"{self._crowd()}; try again later")

    def _crowd(self) -> str:
        if not self._queue:
            return f"nobody may wait for this model, and {self._why()}"
        number = len(self._queue)
        wait = "request waits" if number == 1 else "requests wait"
        return f"{number} {wait} for this model already"

    def _why(self) -> str:
        count, silent = len(self.places), sum(self._is_silent(p) for p in self.places)
        if not count:
            return f"it is {self.state}"
        engines = "its engine" if count == 1 else f"its {count} engines"
        if silent == count:
            return f"{engines} can't be reached"
        if silent:
            return f"of {engines} {silent} can't be reached, and no other has room"
        return f"{engines} {'is' if count == 1 else 'are'} full"

    @staticmethod
    def _is_silent(place: Place) -> bool:
        is_doubted = place.guard is not None and place.guard.fault
        return bool(place.is_silent or place.breaker.state is not State.CLOSED or is_doubted)


def _failed() -> ModelFailed:
    return ModelFailed("the model's engine fails to start; it is tried again later")


class Placement:
    """The lines of all models. `on_wait` is called when a request of any begins to wait."""

    def __init__(self) -> None:
        self.on_wait: Callable[[], None] = _nothing
        self._lines: dict[str, Line] = {}

    def line(self, model: str) -> Line:
        """A model's line."""
        line = self._lines.get(model)
        if line is None:
            line = self._lines[model] = Line(model, self._on_wait)
        return line

    def lines(self) -> Iterable[Line]:
        """All lines there are."""
        return self._lines.values()

    def _on_wait(self) -> None:
        self.on_wait()


def _nothing() -> None:
    """Nobody needs to know."""
