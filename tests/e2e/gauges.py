"""How a gateway stands, as it tells Prometheus."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.test_operator import admin
from tests.stack import Stack


def gauge(stack: Stack, name: str, **labels: str) -> int:
    """The sum of all its samples with these labels."""
    with admin(stack) as http:
        told = http.get("/admin/v1/metrics").text
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(told)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def in_progress(stack: Stack) -> int:
    """Completions that run or wait."""
    return gauge(stack, "bulkhead_requests_in_progress")


def waiting(stack: Stack, model: str) -> int:
    """Those of them that wait for this model."""
    return gauge(stack, "bulkhead_waiting", model=model)
