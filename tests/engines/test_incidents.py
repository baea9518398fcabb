"""What is told of a mismatch: once, with all that is needed to look into it, and no content."""

from __future__ import annotations

from structlog.testing import capture_logs

from engines.embedded.faults import plant
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import ask, drive, random_prompt

ON_BOTH_BACKENDS = True


def test_a_row_of_several_wrong_pages_is_one_event(make_faulty: EngineFactory) -> None:
    engine = make_faulty()
    prompt = random_prompt(17, 3)
    plant(engine, "drop-domain-from-key")
    drive(engine, ask("first", prompt, 2, domain="a"))
    with capture_logs() as logs:
        drive(engine, ask("thief", prompt, 2, domain="b"))
    assert engine.stats().mismatches["before/domain"] > 1
    (event,) = [line for line in logs if line["event"] == "kv_tag_mismatch"]
    assert (event["log_level"], event["kind"], event["request"]) == ("error", "domain", "thief")
    assert event["history"]
    (retires,) = [line for line in logs if line["event"] == "engine_retires"]
    assert "another domain" in retires["reason"]
    assert not {"tokens", "prompt", "text"} & set(event)
