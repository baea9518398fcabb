"""A pass that broke off, known by TensorRT-LLM not waiting for its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.trtllm.journal import Journal
from engines.trtllm.rows import Scheduled
from engines.trtllm.watch import Request, Watch

PROMPT = list(range(9))


def test_what_it_would_have_computed_is_no_hit(tmp_path: Path) -> None:
    watch = _watching(tmp_path)
    _begins(watch, 1, [1, 2, 3], 0)
    watch.passed()
    _begins(watch, 2, [1, 2, 4], 8)
    watch.passed()
    _begins(watch, 3, [5, 6, 7], 0, adapter=1)  # breaks off: all fail, and are stored
    _begins(watch, 4, [5, 6, 8], 8, adapter=1)
    watch.passed()
    told = Journal.follow(tmp_path).new_lines()
    assert {line["request"] for line in told} == {4}
    assert {line["kind"] for line in told} == {"spoiled", "unwritten"}


@pytest.mark.parametrize("passes", [0, 1])
def test_where_nobody_tells_of_passes_none_is_taken_for_broken(tmp_path: Path, passes: int) -> None:
    watch = _watching(tmp_path)
    for request, blocks, computed in ((1, [1, 2, 3], 0), (2, [1, 2, 4], 8), (3, [1, 2, 5], 8)):
        _begins(watch, request, blocks, computed)
        if passes:
            watch.passed()
    assert Journal.follow(tmp_path).new_lines() == []


def _watching(folder: Path) -> Watch:
    folder.chmod(0o700)
    watch = Watch(folder, 4)
    watch.pool_is(16)
    return watch


def _begins(watch: Watch, request: int, blocks: list[int], computed: int, adapter: int = 0) -> None:
    watch.allocated(Request(request, request, "salt", blocks, computed, PROMPT, adapter))
    watch.step([Scheduled(request, blocks, computed, len(PROMPT) - computed, PROMPT)])
