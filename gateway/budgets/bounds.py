"""The most that a request can cost, known before it runs and without a tokenizer.

No tokenizer makes more tokens of a text than it has bytes. A chat template puts words of its own
around messages, and some put a system prompt before them.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.catalog.catalog import Deployment
from gateway.prices import TokenPrices, Usage
from gateway.schema import Ask

TURN_TOKENS = 16  # what a chat template puts around a message, at most
TEMPLATE_TOKENS = 256  # what it puts before them all
LEAST_OUTPUT = 16  # an answer isn't cut to fewer tokens than these: it's refused instead
PICO_PER_NANO = 1000


class Bound(NamedTuple):
    """No request of these tokens uses more of them."""

    input_tokens: int
    output_tokens: int
    is_default: bool  # the client named no limit of its own, so a lower one is no breach


UNBOUND = Bound(0, 0, is_default=False)  # nothing is held for it


def bound_of(ask: Ask, deployment: Deployment) -> Bound:
    """The most tokens that a request can use of a model."""
    given = _bytes_of(ask.prompt) if ask.prompt is not None else 0
    turns = ask.messages or ()
    given += sum(_bytes_of(turn.content) + TURN_TOKENS for turn in turns) + TEMPLATE_TOKENS
    forced = _forced(deployment)
    output = max([ask.max_tokens or deployment.default_max_tokens, *forced])
    context = None if deployment.is_attached else deployment.facts.context_length
    if context is not None:  # our own engines hold more of neither
        given, output = min(given, context), min(output, context)
    return Bound(given, output, is_default=ask.max_tokens is None and not forced)


def within(usage: Usage, bound: Bound) -> Usage:
    """What of a usage a request of this bound can have had: all of it, unless it's too much."""
    most_input, most_output = bound.input_tokens, bound.output_tokens
    is_within = usage.input_tokens <= most_input and usage.output_tokens <= most_output
    if is_within or bound is UNBOUND:
        return usage
    return Usage(
        min(usage.input_tokens, most_input),
        min(usage.cached_input_tokens, most_input),
        min(usage.output_tokens, most_output),
    )


def most_pico(prices: TokenPrices, bound: Bound) -> int:
    """What it costs at most, in pico-units."""
    return _input_pico(prices, bound) + bound.output_tokens * prices.output


def nano_of(pico: int) -> int:
    """An amount that isn't negative in nano-units, rounded up: how budgets count."""
    return -(-pico // PICO_PER_NANO)


def output_within(left_nano: int, prices: TokenPrices, bound: Bound) -> int:
    """How many output tokens can be paid of what is left, the input paid; negative: not even it."""
    left_pico = left_nano * PICO_PER_NANO - _input_pico(prices, bound)
    if left_pico < 0:
        return -1
    return left_pico // prices.output if prices.output else bound.output_tokens


def _input_pico(prices: TokenPrices, bound: Bound) -> int:
    return bound.input_tokens * max(prices.input, prices.cached_input)


def _bytes_of(text: str | list[int]) -> int:
    if isinstance(text, list) or text.isascii():
        return len(text)
    return len(text.encode("utf-8", "surrogatepass"))


def _forced(deployment: Deployment) -> list[int]:
    """Limits that an operator's `extra_body` puts in place of the client's."""
    if not deployment.extra_body:
        return []
    fields = ("max_tokens", "max_completion_tokens")
    found = (deployment.extra_body.get(field) for field in fields)
    return [limit for limit in found if type(limit) is int]
