"""The calibration text that ships: mixed, of a fair size, and nothing of the evaluation sets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.kv_texts import DATA
from engines.build.calibration import SHIPPED
from tests.conftest import NO_SKIP

GRAM = 13  # words in a row that two texts may not share
FOLDER = Path(os.environ.get("BULKHEAD_EVALUATION_DATA", DATA))
SETS = sorted([*FOLDER.glob("*.jsonl"), *FOLDER.glob("*.txt")])


def grams(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return zip(*(words[i:] for i in range(GRAM)), strict=False)


def shipped_text() -> str:
    items = [json.loads(line) for line in SHIPPED.read_text("utf-8").splitlines()]
    turns = (item.get("messages", [{"content": item.get("text", "")}]) for item in items)
    return "\n\n".join(turn["content"] for chat in turns for turn in chat)


def test_the_shipped_text_is_mixed_and_of_a_fair_size() -> None:
    """Chats, prose and code; large enough to calibrate, small enough to ship."""
    items = [json.loads(line) for line in SHIPPED.read_text("utf-8").splitlines()]
    assert sum("messages" in item for item in items) >= 20
    assert sum("text" in item for item in items) >= 40
    assert 80_000 < SHIPPED.stat().st_size < 250_000
    for sign in ("def ", "SELECT", "día", "Zug", "图书馆"):
        assert sign in shipped_text()


# CI has no evaluation sets and allows no skip: there the test isn't asked for.
if SETS or not NO_SKIP:

    @pytest.mark.skipif(
        not SETS, reason=f"no evaluation sets in {FOLDER}; BULKHEAD_EVALUATION_DATA names them"
    )
    def test_the_shipped_text_shares_nothing_with_the_evaluation_sets() -> None:
        """No 13 words in a row: what is measured on was not fitted to."""
        ours = set(grams(shipped_text()))
        for path in SETS:
            shared = ours.intersection(grams(path.read_text("utf-8")))
            assert not shared, f"{path.name}: {' '.join(min(shared))}"
