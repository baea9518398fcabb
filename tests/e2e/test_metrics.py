"""Prometheus' view of a real Bulkhead, beside its ledger."""

from __future__ import annotations

import json

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.asking import complete, eventually
from tests.e2e.test_operator import admin
from tests.stack import Stack


def test_what_is_counted_is_what_was_billed(fake_stack: Stack) -> None:
    """Of requests that went well and that were refused; and nothing that a caller wrote."""

    def told() -> tuple[float, float]:
        with admin(fake_stack) as http:
            text = http.get("/admin/v1/metrics").text
        assert "canary-4711" not in text
        assert fake_stack.key not in text
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        tokens = sum(s.value for s in samples if s.name == "bulkhead_tokens_total")
        refused = sum(
            s.value
            for s in samples
            if s.name == "bulkhead_requests_total" and s.labels["code"] == "model_not_found"
        )
        return tokens, refused

    tokens, refused = told()
    answers = [complete(fake_stack) for _ in range(3)]
    complete(fake_stack, model="none")
    tokens += sum(json.loads(answer.content)["usage"]["total_tokens"] for answer in answers)
    eventually(lambda: told() == (tokens, refused + 1), f"not {tokens} tokens, one more refusal")
