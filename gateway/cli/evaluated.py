"""The figures of `bulkhead eval`, as tables for people and as one document for scripts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from gateway.cli.columns import table
from gateway.evaluation.child import Choice, Rates, Result
from gateway.evaluation.costs import per_million
from gateway.live.words import amount, count

NOTHING = "-"
QUALITY = (
    *("WEIGHTS", "KV", "SIZE", "KV/TOKEN", "KL", "KL P99", "SAME TOP TOKEN"),
    *("PPL PROMPTS", "PPL ANSWERS", "COMPUTED BY"),
)
PHASES = {"prefill": "READ", "decode": "WRITTEN"}


@dataclass(frozen=True, slots=True)
class Price:
    """Of the machine, an hour."""

    amount: Decimal
    currency: str


def document(model: str, result: Result, price: Price | None) -> dict[str, Any]:
    """Everything. Divergences are nats a token, speeds tokens a second over all requests."""
    told: dict[str, Any] = msgspec.to_builtins(result)
    for record, choice in zip(told["choices"], result.choices, strict=True):
        record["cost_per_million"] = _costs(choice, price)
    hourly = {"amount": str(price.amount), "currency": price.currency} if price else None
    return {"model": model, "price_per_hour": hourly} | told


def tables(result: Result, price: Price | None) -> str:
    """What a person compares: how good each choice is, and how fast."""
    base = result.choices[0]
    parts = [
        f"{count(result.texts, 'text')}, {count(result.tokens, 'token')}; "
        f"KL in nats a token from {base.weights} weights over {base.kv} KV",
        table([_quality(choice) for choice in result.choices], QUALITY),
    ]
    if base.tokens_per_s is not None:
        requests = list(base.tokens_per_s.prefill)
        parts += [
            "Tokens a second over all requests, of prompts (READ) and of answers (WRITTEN)",
            table([_speed(choice) for choice in result.choices], _heading(requests)),
        ]
        if price is not None:
            parts += [
                f"{price.currency} per 1,000,000 tokens, at {price.amount} an hour",
                table([_cost(choice, price) for choice in result.choices], _heading(requests)),
            ]
    parts += [
        f"Left out: {one.weights} weights, {one.kv} KV: {one.reason}" for one in result.skipped
    ]
    return "\n\n".join(parts)


def _quality(choice: Choice) -> tuple[str, ...]:
    return (
        choice.weights,
        choice.kv,
        amount(choice.weight_bytes),
        f"{choice.kv_bytes_per_token / 1024:.1f} KiB",
        f"{choice.kl_mean:.4f}",
        f"{choice.kl_p99:.4f}",
        f"{choice.top1_agreement:.1%}",
        _number(choice.perplexity_prompts),
        _number(choice.perplexity_answers),
        _computed_by(choice),
    )


def _computed_by(choice: Choice) -> str:
    """The backend, and where it rounds to fewer bits."""
    rounded = {"activations": choice.activations, "head": choice.lm_head}
    return ", ".join(
        [choice.backend, *(f"{kind} {n}" for n, kind in rounded.items() if kind != "bfloat16")]
    )


def _heading(requests: list[str]) -> tuple[str, ...]:
    columns = (f"{name} x{n}" for name in PHASES.values() for n in requests)
    return ("WEIGHTS", "KV", *columns)


def _speed(choice: Choice) -> tuple[str, ...]:
    speed = choice.tokens_per_s
    rates = [*speed.prefill.values(), *speed.decode.values()] if speed else []
    return (choice.weights, choice.kv, *(f"{rate:.1f}" for rate in rates))


def _cost(choice: Choice, price: Price) -> tuple[str, ...]:
    costs, speed = _costs(choice, price) or {}, choice.tokens_per_s
    cells = [
        _number(costs[phase].get(n)) for phase in PHASES for n in (speed.prefill if speed else ())
    ]
    return (choice.weights, choice.kv, *cells)


def _costs(choice: Choice, price: Price | None) -> dict[str, Rates] | None:
    if price is None or choice.tokens_per_s is None:
        return None
    return per_million(price.amount, choice.tokens_per_s)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}" if value < 1 else f"{value:.2f}"
