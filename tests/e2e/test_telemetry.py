"""A real Bulkhead that tells a collector of its requests."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.asking import eventually
from tests.gateway.telemetry.collector import collector
from tests.stack import fake_config, running

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_collector_hears_of_requests_and_nothing_of_what_they_say(tmp_path: Path) -> None:
    with collector() as found:
        config = fake_config() + f'\n[observability.otel]\nendpoint = "{found.url}"\n'
        with running(tmp_path, config) as stack, stack.client() as client:
            body = {"model": "echo", "prompt": "canary-4711", "max_tokens": 3}
            headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
            answer = client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200
            eventually(lambda: found.spans, "no span came")
            key = stack.key
        (span,) = [one for one in found.spans if one.name == "text_completion echo"]
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
        told = {attribute.key: attribute.value for attribute in span.attributes}
        assert told["bulkhead.request.id"].string_value == answer.headers["x-request-id"]
        assert told["gen_ai.usage.output_tokens"].int_value == 3
        assert "gen_ai.server.request.duration" in found.metrics  # sent at the end, if not before
        everything = b"".join(found.raw)
        assert b"canary-4711" not in everything
        assert answer.json()["choices"][0]["text"].encode() not in everything
        assert key.encode() not in everything
