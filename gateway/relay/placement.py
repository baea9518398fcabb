"""Where requests go: for each model its places, and a line of requests that wait for one.

A place is a host, or a server attached by URL. It takes so many requests at once; a request gets
the one with the fewest tokens in flight, by its weight, or the one that its session went to before,
unless that has far more to do. While no place has room, requests wait in the order in
which they came, so many and so long. Nobody is woken but who gets a place.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from gateway.errors import ModelFailed, QueueFull, Unavailable
from gateway.relay.affinity import SLACK_TOKENS, score
from gateway.relay.breaker import State
from gateway.relay.place import Place
from runtime.node_wire import ModelDemand

RETRY_S = 1.0  # a place that took no request is tried again


class Turn:
    """A request's place in the order in which they came, its own for as long as it lasts.

    It isn't given a place that it `tried`. One of a session prefers the session's place.
    """

    __slots__ = ("had_place", "number", "session", "tokens", "tried", "until")

    def __init__(self, number: int, tokens: int, session: str = "") -> None:
        self.number = number
        self.tokens = tokens
        self.session = session
        self.tried: tuple[Place, ...] = ()
        self.had_place = False
        self.until: float | None = None  # the loop's time; set when it first waits


class Waiter:
    """A turn that is waited for."""

    __slots__ = ("future", "turn")

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()


def _number(waiter: Waiter) -> int:
    return waiter.turn.number


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
        self._waiting: list[Waiter] = []  # by their numbers
        self._most_waiting = 0  # since that was told
        self._waiting_tokens = 0

    def turn(self, tokens: int, session: str = "") -> Turn:
        """The turn of a request that comes now. It takes or waits with it, as often as it must."""
        self._arrived += 1
        return Turn(self._arrived, tokens, session)

    def take(self, turn: Turn) -> Place | None:
        """The place with the least to do that has room, entered; None if one has to wait."""
        if self._waiting:
            return None
        place = self._best(turn)
        if place is not None:
            self._enter(place, turn)
        return place

    def leave(self, place: Place, tokens: int) -> None:
        """The request has ended there; who waits may come."""
        place.leave(tokens)
        if self._waiting:
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
            self._drop(waiter)

    def set_places(self, places: list[Place]) -> None:
        """Other places from now on."""
        for place in self.places:
            if place not in places:
                place.close()
        self.places = places
        self.serve()

    def serve(self) -> None:
        """Give places to those that wait, in order, while there are any with room."""
        while self._waiting and (place := self._best(self._waiting[0].turn)):
            waiter = self._waiting[0]
            self._drop(waiter)
            if not waiter.future.done():  # else it is just leaving
                self._enter(place, waiter.turn)
                waiter.future.set_result(place)

    def fail(self) -> None:
        """The model has failed: nobody needs to wait."""
        self.has_failed = True
        for waiter in self._waiting:
            if not waiter.future.done():
                waiter.future.set_exception(_failed())

    @property
    def num_waiting(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    def waiting_told(self) -> ModelDemand:
        """Those that wait: the most since the last time."""
        most, self._most_waiting = self._most_waiting, len(self._waiting)
        return ModelDemand(waiting=most, tokens=self._waiting_tokens)

    def takes_any(self) -> bool:
        """Whether any place takes requests at present, be it full or not."""
        return any(place.takes for place in self.places)

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
        turn.had_place = True
        place.enter(turn.tokens)

    def _refuse_at_once(self, turn: Turn, max_waiting: int) -> None:
        if self.has_failed:
            raise _failed()
        if len(self._waiting) >= max_waiting and not turn.had_place:
            if not self._most_waiting:  # where nobody may wait, a host has to start all the same
                self._most_waiting = 1
                self._on_wait()
            raise QueueFull(f"{self._crowd()}; try again later")

    def _join(self, turn: Turn) -> Waiter:
        waiter = Waiter(turn)
        insort(self._waiting, waiter, key=_number)
        self._waiting_tokens += turn.tokens
        if len(self._waiting) > self._most_waiting:
            self._most_waiting = len(self._waiting)
        if len(self._waiting) == 1:
            self._on_wait()
        self.serve()  # there may be room by now: a deploy may have made more of it
        return waiter

    def _drop(self, waiter: Waiter) -> None:
        at = bisect_left(self._waiting, waiter.turn.number, key=_number)
        if at < len(self._waiting) and self._waiting[at] is waiter:
            del self._waiting[at]
            self._waiting_tokens -= waiter.turn.tokens

    def _give_back(self, waiter: Waiter) -> None:
        """Who left in the moment in which a place was given to it doesn't keep it."""
        future = waiter.future
        if future.done() and not future.cancelled() and future.exception() is None:
            self.leave(future.result(), waiter.turn.tokens)

    def _crowd(self) -> str:
        if not self._waiting:
            return f"nobody may wait for this model, and {self._why()}"
        number = len(self._waiting)
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
        return place.is_silent or place.breaker.state is not State.CLOSED


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
