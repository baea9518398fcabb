"""TensorRT-LLM behind the gateway: each of its faults ends in a right answer or a clear error.

The client is the real one of openai, and the ledger is looked at after each request.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.e2e.trtllm import TOKENS, Front, Said
from tests.trtllm.faults import FAULTS

PROMPT = "Grüße, <|end|> and so on"


class End(NamedTuple):
    """How a request ends: its status (200 for a stream that fails later), code, and outcome."""

    status: int = 200
    code: str | None = None
    outcome: str = "length"
    reason: str = "full_answer"

    @property
    def is_billed(self) -> bool:
        return self.reason == "full_answer"


RIGHT = End()
FREE = End(reason="usage_missing")
FAILED = End(502, "upstream_error", "upstream_error", "upstream_error")
CUT = FAILED._replace(status=200)
SILENT = End(504, "upstream_timeout", "timeout", "timeout")
STOPPED = End(503, "kv_integrity_abort", "integrity_abort", "integrity_abort")
DOWN = End(503, "model_unavailable", "upstream_error", "upstream_error")


class Case(NamedTuple):
    """A fault, and how requests end: whole, streamed; a plain prompt may end otherwise."""

    faults: dict[str, dict[str, Any]]
    whole: End
    stream: End
    plain: End | None = None


CASES = {
    "well": Case({}, RIGHT, RIGHT),
    "drops": Case({"drops": {}}, FAILED, CUT),
    "drops at once": Case({"drops": {"after": 0}}, FAILED, FAILED),
    "no_done": Case({"no_done": {}}, RIGHT, CUT),
    "hangs": Case({"hangs": {}}, SILENT, SILENT),
    "hangs midway": Case({"hangs": {"times": 1}}, SILENT, SILENT._replace(status=200)),
    "slow_first": Case({"slow_first": {"seconds": 0.5}}, RIGHT, RIGHT),
    "is_down": Case({"is_down": {}}, DOWN, DOWN),
    "no_tokens": Case({"no_tokens": {}}, FAILED, FAILED),
    "internal_error": Case({"internal_error": {}}, FAILED, FAILED),
    "cuda_error": Case({"cuda_error": {}}, FAILED, FAILED),
    "aborts": Case({"aborts": {}}, STOPPED, STOPPED._replace(status=200)),
    "aborts at once": Case({"aborts": {"after": 0}}, STOPPED, STOPPED),
    "aborts once": Case({"aborts": {"after": 0, "times": 1}}, RIGHT, RIGHT),
    "new_ids": Case({"new_ids": {}}, RIGHT, RIGHT),
    "no_usage": Case({"no_usage": {}}, FREE, FREE),
    "no_token_ids": Case({"no_token_ids": {}}, RIGHT, RIGHT, FAILED),
    "other_prompt": Case({"other_prompt": {}}, RIGHT, RIGHT, FAILED),
    "garbage": Case({"garbage": {}}, RIGHT, CUT),
    "refuses_all": Case({"refuses_all": {}}, FAILED, FAILED),
    "quotes": Case({"quotes": {}}, RIGHT, RIGHT),
}
ELSEWHERE = {"exits", "orphans", "no_salts", "misses_stops"}  # in test_trtllm_*.py
EACH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
BOTH = pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])


def test_no_fault_is_left_out() -> None:
    assert {name for case in CASES.values() for name in case.faults} == FAULTS.keys() - ELSEWHERE


@EACH
@BOTH
@pytest.mark.parametrize("name", CASES)
def test_each_fault_has_its_end(front: Front, name: str, chat: bool, stream: bool) -> None:
    case = CASES[name]
    front.fake.fail(**case.faults)
    end = case.stream if stream else case.whole
    said = front.ask(PROMPT, chat=chat, stream=stream)
    _holds(front, said, end if chat else case.plain or end, chat=chat)


def _holds(front: Front, said: Said, end: End, *, chat: bool) -> None:
    assert (said.status, said.code) == (end.status, end.code), said.error
    row = front.row(said)
    assert (row["outcome"], row["bill_reason"]) == (end.outcome, end.reason)
    assert (row["billable"], row["attempts"]) == (end.is_billed, row["attempts"])
    whole = front.answer(PROMPT, chat=chat)
    if end.code is None:
        assert (said.text, said.finish) == (whole, "length")
        assert len(said.ids) == 1
        assert len({chunk.created for chunk in said.chunks}) == 1
        assert said.ids == {("chatcmpl-" if chat else "cmpl-") + said.request_id[4:]}
    else:
        assert whole.startswith(said.text)
        assert said.error
        assert "fake" not in str(said.error.body)
    if end.is_billed:
        counts = (said.usage.prompt_tokens, said.usage.completion_tokens)
        assert (row["input_tokens"], row["output_tokens"]) == counts
        assert counts == (len(front.ids(PROMPT, chat=chat)), TOKENS)
    else:
        assert row["amount"] in (None, "0"), row
