"""`bulkhead backend test --kind trtllm`: a good server passes, and each fault is told as one."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.conformance import backend
from gateway.conformance.backend import Target, Unusable
from gateway.conformance.run import TRIALS, trials
from gateway.conformance.verdict import Verdict
from tests.stack import BULKHEAD, REPO
from tests.trtllm.faults import FAULTS
from tests.trtllm.serving import Served, served

# What fails, for each fault that leaves a report; others leave none, see below.
FAILS = {
    "drops": {"usage", "characters", "stop texts"},
    "no_done": {"usage", "characters", "stop texts"},
    "no_tokens": {"no answer without a token"},
    "aborts": {"usage", "characters", "stop texts"},
    "no_usage": {
        "usage of an unstreamed answer", "usage of a stream", "no answer without a token",
        "streamed and unstreamed are counted alike",
        "prompts of token ids are answered as they are",
    },
    "no_salts": {"cross-tenant hits by cached tokens", "cross-tenant hits by token ids"},
    "no_token_ids": {"prompts of token ids are answered as they are"},
    "other_prompt": {"prompts of token ids are answered as they are"},
    "garbage": {"usage", "characters", "stop texts"},
    "misses_stops": {
        "stop texts end an answer, unstreamed", "stop texts end an answer, streamed",
    },
    "new_ids": set(), "quotes": set(), "slow_first": set(),  # the gateway makes these good
}  # fmt: skip
NONE = {  # and what is said instead of a report
    "is_down": "503",
    "hangs": "no answer in time",
    "internal_error": "400.*harmony",
    "cuda_error": "400.*CUDA",
    "refuses_all": "400.*no such thing",
}
BY_TIME = "cross-tenant hits by time"  # not where others take the cores


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("t")) as found:
        yield found


@pytest.fixture(autouse=True)
def well(fake: Served) -> None:
    fake.fail()


async def report(url: str) -> dict[str, tuple[Verdict, str]]:
    target = Target(url, kind="trtllm")
    return {line.name: (line.verdict, line.seen) async for line in trials(target)}


def failed(found: dict[str, tuple[Verdict, str]]) -> set[str]:
    return {name for name, (told, _) in found.items() if told is Verdict.FAIL} - {BY_TIME}


def test_every_fault_is_here() -> None:
    elsewhere = {"exits", "orphans"}  # below; lost blocks end in answers without tokens
    assert FAILS.keys() | NONE.keys() | elsewhere == FAULTS.keys()


def test_a_good_server_passes_as_a_command(fake: Served) -> None:
    command = [*BULKHEAD, "backend", "test", fake.url, "--kind", "trtllm", "--json"]
    done = subprocess.run(
        command, cwd=REPO, env=os.environ, capture_output=True, text=True, check=False
    )
    lines = {line["name"]: line for line in json.loads(done.stdout)["lines"]}
    wrong = {name for name, line in lines.items() if line["verdict"] == "fail"} - {BY_TIME}
    assert wrong == set(), lines
    for name in ("cross-tenant hits by cached tokens", "cross-tenant hits by token ids"):
        assert re.match("0 tokens of a's in b's usage; [1-9]", lines[name]["seen"]), lines[name]
    unseen = {name for name, line in lines.items() if line["verdict"] == "unknown"}
    assert all(name.startswith("cancelled") for name in unseen)


@pytest.mark.parametrize("name", FAILS)
async def test_each_fault_fails_its_own_lines(
    fake: Served, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "slow_first":  # for each of some dozens of requests
        fake.fail(slow_first={"seconds": 0.05})
    elif name == "aborts":
        fake.fail(aborts={"after": 5})  # a server whose first tokens are good
    else:
        fake.fail(name)
    if name != "no_salts":  # these take their time
        monkeypatch.delitem(TRIALS, "caches")
    found = await report(fake.url)
    assert failed(found) == FAILS[name], found


@pytest.mark.parametrize("name", NONE)
async def test_a_server_that_answers_nothing_is_no_report(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "PATIENCE_S", 3.0)
    with served(tmp_path) as fake:
        fake.fail(name)
        with pytest.raises(Unusable, match=NONE[name]):
            await report(fake.url)


async def test_one_that_ends_itself_fails_whatever_follows(tmp_path: Path) -> None:
    with served(tmp_path) as fake:
        fake.fail("exits")
        found = await report(fake.url)
        assert "usage" in failed(found)
        assert "refused" in found["caches"][1].lower()
