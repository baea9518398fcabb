"""What tokens cost on a machine that is paid by the hour. Pure."""

from __future__ import annotations

from decimal import Decimal

from gateway.evaluation.child import Rates, Speed

SECONDS = 3600
MILLION = 1_000_000


def per_million(price_per_hour: Decimal, speed: Speed) -> dict[str, Rates]:
    """Per 1,000,000 tokens of prompts and of answers, by requests at once.

    As if the machine did nothing else meanwhile: a bound, not a bill. A rate of 0 has no price.
    """
    return {
        "prefill": _costs(price_per_hour, speed.prefill),
        "decode": _costs(price_per_hour, speed.decode),
    }


def _costs(price_per_hour: Decimal, rates: Rates) -> Rates:
    hourly = float(price_per_hour)
    return {
        requests: hourly * MILLION / (rate * SECONDS) for requests, rate in rates.items() if rate
    }
