"""What our engine answers to the faults of `benchmarks.stale_page`. vLLM: tests/e2e."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.stale_page import LOST, NONE, OURS, STALE, UNCHECKED, of_bulkhead, targets


@pytest.mark.slow
def test_a_stale_page_and_a_lost_salt(model_dir: Path) -> None:
    """A reads nothing of B's, B is answered as it is alone; and it's the check that does it."""
    found = {(one.engine, one.fault): one for one in of_bulkhead(model_dir)}
    assert [name for name, bar in targets(list(found.values())).items() if not bar["ok"]] == []
    stale = found[OURS, STALE]
    assert stale.a.end == "kv_integrity_abort"
    assert found[OURS, NONE].a.text.startswith(stale.a.text)
    assert "4711" in found[UNCHECKED, STALE].leaked
    for fault in (NONE, STALE, LOST):
        b = found[OURS, fault].b
        assert (b.is_answered, b.text, b.cached) == (True, found[OURS, fault].b_alone, 0)
