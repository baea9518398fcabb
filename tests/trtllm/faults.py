"""What the fake does wrong: switched while it runs, over a socket of its own.

Each is something that TensorRT-LLM has done, or may do by its source.
"""

from __future__ import annotations

import json

from msgspec import Struct

FAULTS = {
    "drops": "a stream breaks off after some tokens: no error event, no [DONE], a cut connection",
    "no_done": "a stream ends as it should, without [DONE]",
    "hangs": "no token comes any more, while /health and /v1/models answer 200",
    "slow_first": "the first token takes its time",
    "is_down": "503 for ever after a rank crashed, and the process goes on",
    "no_tokens": "200 with no token at all",
    "orphans": "blocks of requests that were given up are never free again",
    "internal_error": "400 for a fault of the server's own, as gpt-oss models' route writes it",
    "cuda_error": "400 for a fault of the server's own, as every other route writes it",
    "exits": "the executor failed: it interrupts itself, and ends",
    "aborts": "the post-processor hook stops an answer: stop_reason kv_integrity_abort",
    "new_ids": "another id and another time in each chunk, as older versions write them",
    "no_usage": "no usage is told",
    "no_salts": "salts mean nothing, as on gpt-oss models' route",
    "no_token_ids": "`prompt_token_ids` is no field yet",
    "other_prompt": "`prompt_token_ids` is taken and forgotten",
    "garbage": "a chunk that isn't JSON",
    "refuses_all": "400 for a fault in the body, quoting all of it",
    "misses_stops": "a stop text is run past, since the answer spells it with other tokens",
    "quotes": "an answer has fields that are the server's own business",
}


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """How one goes: after so many tokens, so many seconds long, for so many requests (0: all).

    A probe, which asks for one token, is none of those that are counted: it may come at any time.
    """

    after: int = 2
    seconds: float = 1.0
    times: int = 0


class Faults:
    """Those that are switched on."""

    def __init__(self) -> None:
        self._on: dict[str, Fault] = {}
        self._left: dict[str, int] = {}

    def set(self, faults: dict[str, Fault]) -> None:
        """These, and no others."""
        if unknown := faults.keys() - FAULTS.keys():
            raise ValueError(f"there are no such faults: {sorted(unknown)}")
        self._on = faults
        self._left = {name: fault.times for name, fault in faults.items() if fault.times}

    def has(self, name: str) -> bool:
        """Whether it is on, which counts as no request."""
        return name in self._on

    def take(self, body: bytes) -> dict[str, Fault]:
        """Those that the next request meets."""
        if _is_probe(body):
            return {name: fault for name, fault in self._on.items() if not fault.times}
        met = dict(self._on)
        for name in list(self._left):
            self._left[name] -= 1
            if not self._left[name]:
                del self._left[name]
                del self._on[name]
        return met


def _is_probe(body: bytes) -> bool:
    try:
        told = json.loads(body)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("max_tokens") == 1
