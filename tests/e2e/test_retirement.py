"""A host whose engine asks to be replaced, under load: nobody notices but the operator."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.asking import complete, eventually
from tests.e2e.clients import Load
from tests.e2e.ledger import records
from tests.stack import fake_config, running

HOSTS = "\n[hosts]\nhealth_every_s = 0.5\n"


def test_a_retiring_host_costs_no_request(tmp_path: Path) -> None:
    with running(tmp_path, HOSTS + fake_config(step_s=0.002)) as stack:
        first = stack.host_pid()
        with Load(stack, 6) as load:
            load.wait_for_more(10)
            answer = complete(stack, prompt="retire", max_tokens=300)
            assert answer.json()["usage"]["completion_tokens"] == 300
            eventually(lambda: stack.children("runtime.host") not in ([], [first]), "no other")
            eventually(lambda: first not in stack.children("runtime.host"), "it stays")
            load.wait_for_more(20)
        assert load.failed == []
        listed = stack.cli("hosts", "list")
        assert "ago: told to retire" in listed
        rows = records(stack)
        assert len(rows) == len(load.ended) + 1
        assert {(row["state"], row["billable"]) for row in rows} == {("settled", 1)}
        assert "Traceback" not in stack.log.read_text()
