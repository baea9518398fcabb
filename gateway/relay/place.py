"""A place: a host, or a server attached by URL, and what is in flight there."""

from __future__ import annotations

from gateway.catalog.catalog import Server
from gateway.relay.breaker import Breaker, State
from gateway.relay.transport import Transport
from gateway.relay.trust import Trust


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
    """Where a request can go: a host's transport and the base of its URLs.

    `server` is what the configuration says of an attached one, and None for a host of ours, which
    its node looks after.
    """

    __slots__ = (
        "asked_at",
        "base_url",
        "breaker",
        "guard",
        "heard_at",
        "host_id",
        "in_flight",
        "is_silent",
        "rests",
        "server",
        "share",
        "tokens",
        "transport",
    )

    def __init__(
        self,
        host_id: str,
        base_url: str,
        transport: Transport,
        share: Share | None = None,
        server: Server | None = None,
    ) -> None:
        self.host_id = host_id
        self.base_url = base_url
        self.transport = transport
        self.in_flight = 0
        self.tokens = 0
        self.share = share or Share()
        self.is_silent = False  # it took no request when it was last sent one
        self.rests = False  # so it is sent none for a while
        self.server = server
        self.breaker = Breaker()
        self.heard_at = 0.0  # the loop's time: when the last bytes came
        self.asked_at = 0.0  # when the last request was sent that it has begun to answer
        self.guard: Trust | None = None  # where the server has one that is heard

    @property
    def takes(self) -> bool:
        """Whether requests are sent there at present, if there is room."""
        if self.guard is not None and self.guard.fault:
            return False
        return not self.rests and self.breaker.state is State.CLOSED

    @property
    def weight(self) -> int:
        """How much of the load it gets, beside the other places."""
        return self.server.weight if self.server else 1

    @property
    def load(self) -> float:
        """Tokens in flight, by its weight."""
        return self.tokens / self.server.weight if self.server else self.tokens

    def has_room(self, most: int) -> bool:
        """Whether one more may be in flight, where nothing else is said `most` of them."""
        return self.in_flight < (self.server.max_in_flight if self.server else most)

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
