"""`bulkhead backend test` as a command: its table, its JSON, its exit code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import backend
from gateway.cli.commands import main
from gateway.cli.options import Exit
from gateway.conformance.backend import Target, Unusable
from gateway.conformance.verdict import Line, Verdict

URL = "http://x.test/v1"
GOOD = Line("usage of a stream", Verdict.PASS, "7 + 3 = 10")
BAD = Line("cancelled queued", Verdict.FAIL, "it goes on for more than 10 s")
UNSEEN = Line("cancelled connecting", Verdict.UNKNOWN, "it tells nobody")


def run(monkeypatch: pytest.MonkeyPatch, lines: list[Line], *more: str) -> tuple[Any, list[Target]]:
    asked: list[Target] = []

    async def trials(target: Target) -> AsyncIterator[Line]:
        asked.append(target)
        for line in lines:
            yield line

    monkeypatch.setattr(backend, "trials", trials)
    return CliRunner().invoke(main, ["backend", "test", URL, *more]), asked


def test_a_table_and_a_code_that_says_whether_it_may_be_attached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, _ = run(monkeypatch, [GOOD, UNSEEN])
    assert done.exit_code == 0
    assert "✓" in done.output
    assert "?" in done.output
    done, _ = run(monkeypatch, [GOOD, BAD])
    assert done.exit_code == 1
    assert "✗" in done.output
    assert BAD.seen in done.output


def test_json_has_the_same_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    done, _ = run(monkeypatch, [GOOD, BAD], "--json")
    told = json.loads(done.output)
    assert (told["url"], done.exit_code) == (URL, 1)
    assert told["lines"][1] == {"name": BAD.name, "verdict": "fail", "seen": BAD.seen}


def test_keys_come_from_variables_and_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "canary-1")
    monkeypatch.setenv("TWO", "canary-2")
    more = ("--api-key-env", "ONE", "--second-key-env", "TWO", "--kind", "sglang", "--cache", "off")
    done, (target,) = run(monkeypatch, [GOOD], *more)
    assert (target.key, target.second_key, target.kind, target.cache) == (
        "canary-1", "canary-2", "sglang", "off",
    )  # fmt: skip
    assert "canary" not in done.output + repr(target)
    done, _ = run(monkeypatch, [GOOD], "--api-key-env", "NOT_SET")
    assert done.exit_code == 2
    assert "NOT_SET" in done.output


def test_what_is_no_url_is_a_wrong_command_line() -> None:
    done = CliRunner().invoke(main, ["backend", "test", "localhost:8000"])
    assert done.exit_code == 2


def test_a_server_that_can_t_be_asked_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def trials(_: Target) -> AsyncIterator[Line]:
        raise Unusable("it answers 401")
        yield GOOD

    monkeypatch.setattr(backend, "trials", trials)
    done = CliRunner().invoke(main, ["backend", "test", URL])
    assert done.exit_code == Exit.UNREACHABLE
    assert done.output == "Error: it answers 401\n"
