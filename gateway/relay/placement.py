"""Where requests go: for each model its places, and a line of requests that wait for one.

A place is a host, or a server attached by URL. It takes so many requests at once; a request gets
the one with the fewest tokens in flight. While no place has room, requests wait in the order in
which they came, so many and so long. Nobody is woken but who gets a place.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

from gateway.errors import ModelFailed, QueueFull, Unavailable
from gateway.relay.transport import Transport
from runtime.node_wire import ModelDemand


class Share:
    """What one node's hosts of one model have in flight, and the most since that was told."""

    __slots__ = ("in_flight", "most_in_flight", "most_tokens", "tokens")

    def __init__(self) -> None:
        self.in_flight = self.tokens = 0
        self.most_in_flight = self.most_tokens = 0

    def told(self) -> tuple[int, int]:
        """The most in flight since the last time: requests and tokens."""
        most = (self.most_in_flight, self.most_tokens)
        self.most_in_flight, self.most_tokens = self.in_flight, self.tokens
        return most


class Place:
    """Where a request can go: a host's transport and the base of its URLs."""

    __slots__ = ("base_url", "host_id", "in_flight", "share", "tokens", "transport")

    def __init__(
        self, host_id: str, base_url: str, transport: Transport, share: Share | None = None
    ) -> None:
        self.host_id = host_id
        self.base_url = base_url
        self.transport = transport
        self.in_flight = 0
        self.tokens = 0
        self.share = share or Share()

    def enter(self, tokens: int) -> None:
        """One more request is here."""
        self.in_flight += 1
        self.tokens += tokens
        share = self.share
        share.in_flight += 1
        share.tokens += tokens
        if share.in_flight > share.most_in_flight:
            share.most_in_flight = share.in_flight
        if share.tokens > share.most_tokens:
            share.most_tokens = share.tokens

    def leave(self, tokens: int) -> None:
        """It has ended, however that was."""
        self.in_flight -= 1
        self.tokens -= tokens
        self.share.in_flight -= 1
        self.share.tokens -= tokens

    def close(self) -> None:
        """It gets no more. What runs here still doesn't ask for a host to run on."""
        self.share.in_flight -= self.in_flight
        self.share.tokens -= self.tokens
        self.share.told()
        self.share = Share()
        self.share.in_flight, self.share.tokens = self.in_flight, self.tokens


class Waiter:
    """A request in a line."""

    __slots__ = ("avoid", "future", "tokens")

    def __init__(self, tokens: int, avoid: tuple[str, ...]) -> None:
        self.tokens = tokens
        self.avoid = avoid
        self.future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()


class Line:
    """One model's places, and its requests that wait. `on_wait` is called when one begins to."""

    def __init__(self, model: str, on_wait: Callable[[], None]) -> None:
        self.model = model
        self.places: list[Place] = []
        self.has_failed = False  # all nodes say so; `state` is what they say
        self.state = "unknown to the node"
        self.max_in_flight = 1
        self._on_wait = on_wait
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()
        self._most_waiting = 0  # since that was told
        self._waiting_tokens = 0

    def take(self, tokens: int, avoid: tuple[str, ...] = ()) -> Place | None:
        """The place with the least to do that has room, entered; None if one has to wait."""
        if self._waiting and not avoid:
            return None
        place = self._best(avoid)
        if place is not None:
            place.enter(tokens)
        return place

    def leave(self, place: Place, tokens: int) -> None:
        """The request has ended there; who waits may come."""
        place.leave(tokens)
        if self._waiting:
            self.serve()

    async def wait(
        self, tokens: int, max_waiting: int, timeout_s: float, avoid: tuple[str, ...] = ()
    ) -> Place:
        """A place, entered, once there is one with room and it is this request's turn.

        One that has somewhere to avoid has had its turn already, and is the next. Raises
        ModelFailed, QueueFull, or Unavailable when the time is up.
        """
        self._refuse_at_once(max_waiting)
        waiter = self._join(tokens, avoid)
        try:
            async with asyncio.timeout(timeout_s):
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
        while self._waiting and (found := self._next()):
            waiter, place = found
            place.enter(waiter.tokens)
            waiter.future.set_result(place)
            self._drop(waiter)

    def _next(self) -> tuple[Waiter, Place] | None:
        """Who is next, and where; who has somewhere to avoid may have to be passed over."""
        for waiter in self._waiting:
            if waiter.future.done():  # it is just leaving
                continue
            if place := self._best(waiter.avoid):
                return waiter, place
            if not waiter.avoid:
                return None
        return None

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

    def _best(self, avoid: tuple[str, ...]) -> Place | None:
        best = None
        for place in self.places:
            has_room = place.in_flight < self.max_in_flight and place.host_id not in avoid
            if has_room and (best is None or place.tokens < best.tokens):
                best = place
        return best

    def _refuse_at_once(self, max_waiting: int) -> None:
        if self.has_failed:
            raise _failed()
        if len(self._waiting) >= max_waiting:
            if not self._most_waiting:  # where nobody may wait, a host has to start all the same
                self._most_waiting = 1
                self._on_wait()
            raise QueueFull(f"{self._crowd()}; try again later")

    def _join(self, tokens: int, avoid: tuple[str, ...]) -> Waiter:
        waiter = Waiter(tokens, avoid)
        self._waiting[waiter] = None
        self._waiting_tokens += tokens
        if avoid:
            self._waiting.move_to_end(waiter, last=False)
        if len(self._waiting) > self._most_waiting:
            self._most_waiting = len(self._waiting)
        if len(self._waiting) == 1:
            self._on_wait()
        return waiter

    def _drop(self, waiter: Waiter) -> None:
        if waiter in self._waiting:
            del self._waiting[waiter]
            self._waiting_tokens -= waiter.tokens

    def _give_back(self, waiter: Waiter) -> None:
        """Who left in the moment in which a place was given to it doesn't keep it."""
        future = waiter.future
        if future.done() and not future.cancelled() and future.exception() is None:
            self.leave(future.result(), waiter.tokens)

    def _crowd(self) -> str:
        if not self._waiting:
            return f"{self._why()}, and nobody may wait for the model"
        number = len(self._waiting)
        wait = "request waits" if number == 1 else "requests wait"
        return f"{number} {wait} for this model already"

    def _why(self) -> str:
        return f"all {len(self.places)} are full" if self.places else f"it is {self.state}"


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
