"""One request on its way: what is asked, of which model, and where it has been sent so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gateway.catalog.catalog import Deployment
from gateway.prices import Usage
from gateway.relay.fairness import cost_of
from gateway.relay.queue import Turn
from gateway.schema import Ask

CHARS_A_TOKEN = 4  # about, in English
TURN_TOKENS = 16  # a chat template's, at most, around each message
ID_PREFIX = {"chat": "chatcmpl", "completion": "cmpl"}


@dataclass(slots=True)
class Errand:
    """One request for the relay.

    `deployment` is the model that answers, another once it has fallen back to it; `host_id` is set
    once it has a place; `attempts` counts the places that it was sent to. Places keep the requests
    of one `session` (a hash, "" for none) together as well as they can.
    """

    ask: Ask
    deployment: Deployment
    domain: str
    request_id: str
    host_id: str | None = None
    fallbacks: tuple[Deployment, ...] = ()
    session: str = ""
    weight: int = 1  # of the tenant's share of the model
    turn: Turn | None = None  # in the model's line
    attempts: int = 0
    prompt_ids: list[int] | None = None  # of a plain prompt that is sent as a chat
    is_cold: bool = False  # what its tenant's other requests left isn't read
    has_fallen_back: bool = field(default=False, init=False)

    @property
    def tokens(self) -> int:
        """No fewer than it takes, known without a tokenizer: characters, and what it may answer."""
        ask = self.ask
        size = ask.max_tokens or self.deployment.default_max_tokens
        for turn in ask.messages or ():
            size += len(turn.content) + TURN_TOKENS
        return size + len(ask.prompt or ())

    @property
    def ahead(self) -> int:
        """What the tenant's share is charged for until the tokens are counted.

        An unstreamed answer tells nothing while it runs, so all that it may be is paid first.
        """
        ask = self.ask
        length = sum(len(turn.content) for turn in ask.messages or ()) + len(ask.prompt or ())
        output = 0 if ask.stream else ask.max_tokens or self.deployment.default_max_tokens
        return cost_of(length // CHARS_A_TOKEN, output)

    def count(self, usage: Usage | None) -> None:
        """What was computed for it by now, as far as it's known."""
        if self.turn and usage:
            uncached = usage.input_tokens - usage.cached_input_tokens
            self.turn.count(uncached, usage.output_tokens)

    @property
    def cache_domain(self) -> str:
        """Whose cached prefixes it may read: its tenant's, or only its own."""
        return f"{self.domain} {self.request_id}" if self.is_cold else self.domain

    @property
    def param(self) -> str:
        """The field that a refusal of the engine's is about."""
        return "messages" if self.ask.operation == "chat" else "prompt"

    @property
    def sent_as(self) -> Literal["chat", "completion"]:
        """What the engine is asked for."""
        return self.ask.operation if self.prompt_ids is None else "chat"

    @property
    def prompt_tokens(self) -> int | None:
        """How many a plain prompt has that was sent as a chat."""
        return None if self.prompt_ids is None else len(self.prompt_ids)

    @property
    def answer_id(self) -> str:
        """The id that the client sees in the answer."""
        return f"{ID_PREFIX[self.ask.operation]}-{self.request_id.removeprefix('req_')}"

    @property
    def names(self) -> dict[str, str]:
        """What another server's answer must say: our id, and our name of the model."""
        return {"id": self.answer_id, "model": self.deployment.id}

    @property
    def tells_hits(self) -> bool:
        """Whether prefixes that the engine had cached can only be the caller's own."""
        return not self.deployment.is_attached or self.deployment.is_salted

    def fall_back(self, other: Deployment) -> None:
        """Another model answers from here on."""
        self.deployment = other
        self.prompt_ids = None
        self.ask.model = other.id
        self.has_fallen_back = True
