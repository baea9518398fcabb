"""The figures of `bulkhead eval` as they are shown, and what tokens cost, worked out by hand."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from gateway.cli.evaluated import Price, document, tables
from gateway.evaluation.child import Choice, Result, Skipped, Speed
from gateway.evaluation.costs import per_million

SPEED = Speed({"1": 1000.0, "8": 2000.0}, {"1": 50.0, "8": 0.0})


def choice(**changes: Any) -> Choice:
    made = Choice(
        weights="bf16",
        kv="bf16",
        folder="/m",
        weight_bytes=269_000_000,
        backend="torch",
        activations="bfloat16",
        lm_head="bfloat16",
        kv_bytes_per_token=23_040,
        kl_mean=0.0,
        kl_p99=0.0,
        top1_agreement=1.0,
        perplexity_prompts=23.591,
        perplexity_answers=None,
        tokens_per_s=SPEED,
    )
    return msgspec.structs.replace(made, **changes)


NATIVE = {"backend": "native", "activations": "int8", "lm_head": "int8"}
RESULT = Result(
    2,
    90,
    [
        choice(),
        choice(**NATIVE, weights="int4 g64", kl_mean=0.12345, kl_p99=1.5, top1_agreement=0.7512),
    ],
    [Skipped("int4 g64", "fp8", "no such kernels")],
)


def cells(line: str) -> str:
    """Of a table, whose columns are two spaces apart."""
    return re.sub(r" {2,}", "|", line)


def test_costs_are_those_worked_out_by_hand() -> None:
    """1,000 a second are 3.6 million an hour; what wasn't fast at all has no price."""
    found = per_million(Decimal("0.72"), SPEED)
    assert found["prefill"] == pytest.approx({"1": 0.2, "8": 0.1})
    assert found["decode"] == pytest.approx({"1": 4.0})


def test_tables_have_a_line_for_each_choice() -> None:
    """Quality, speed, cost, and what was left out."""
    told = tables(RESULT, Price(Decimal("0.72"), "EUR")).split("\n\n")
    assert told[0] == ("2 texts, 90 tokens; KL in nats a token from bf16 weights over bf16 KV")
    quality, speed, cost = (part.splitlines() for part in (told[1], told[3], told[5]))
    computed = "native, int8 activations, int8 head"
    assert cells(quality[1]) == "bf16|bf16|269 MB|22.5 KiB|0.0000|0.0000|100.0%|23.59|-|torch"
    assert (
        cells(quality[2]) == f"int4 g64|bf16|269 MB|22.5 KiB|0.1235|1.5000|75.1%|23.59|-|{computed}"
    )
    assert cells(speed[0]) == "WEIGHTS|KV|READ x1|READ x8|WRITTEN x1|WRITTEN x8"
    assert cells(speed[1]) == "bf16|bf16|1000.0|2000.0|50.0|0.0"
    assert told[4] == "EUR per 1,000,000 tokens, at 0.72 an hour"
    assert cells(cost[1]) == "bf16|bf16|0.2|0.1|4.00|-"
    assert told[6] == "Left out: int4 g64 weights, fp8 KV: no such kernels"


def test_without_timing_there_are_no_speeds_and_no_costs() -> None:
    """Neither in the tables nor in the document."""
    plain = Result(1, 9, [choice(tokens_per_s=None)], [])
    price = Price(Decimal(1), "USD")
    assert "READ" not in tables(plain, price)
    (record,) = document("m", plain, price)["choices"]
    assert (record["tokens_per_s"], record["cost_per_million"]) == (None, None)


def test_without_a_price_there_are_no_costs() -> None:
    """But speeds."""
    assert "per 1,000,000" not in tables(RESULT, None)
    told = document("m", RESULT, None)
    assert told["price_per_hour"] is None
    assert told["choices"][0]["cost_per_million"] is None
    assert told["choices"][0]["tokens_per_s"]["prefill"] == {"1": 1000.0, "8": 2000.0}


def test_the_document_has_everything() -> None:
    """With the price as it was given."""
    told = document("m", RESULT, Price(Decimal("0.72"), "EUR"))
    assert told["price_per_hour"] == {"amount": "0.72", "currency": "EUR"}
    assert (told["model"], told["texts"], told["tokens"]) == ("m", 2, 90)
    assert told["choices"][1]["cost_per_million"]["decode"] == pytest.approx({"1": 4.0})
    assert told["skipped"] == [{"weights": "int4 g64", "kv": "fp8", "reason": "no such kernels"}]
