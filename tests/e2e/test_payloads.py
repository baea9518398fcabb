"""What named tenants say is kept in files; nobody else's is, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.asking import complete, eventually
from tests.stack import Stack, fake_config, running

KEPT = '[observability.payloads]\ntenants = ["demo"]\n'


def lines_of(stack: Stack) -> list[dict[str, Any]]:
    found = sorted((stack.state / "payloads").glob("*.jsonl"))
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


def test_what_a_named_tenant_says_is_kept_until_it_is_named_no_more(tmp_path: Path) -> None:
    with running(tmp_path, fake_config(more=KEPT)) as stack:
        stack.cli("tenants", "create", "other")
        key, stack.key = stack.key, stack.cli("keys", "create", "other").strip()
        eventually(lambda: complete(stack, prompt="of-another").status_code == 200, "no key")
        stack.key = key
        whole = complete(stack)
        body = {"model": "echo", "messages": [{"role": "user", "content": "streamed-prompt"}]}
        with stack.client() as client:
            streamed = client.post("/v1/chat/completions", json=body | {"stream": True})
            refused = client.post("/v1/completions", json={"model": "none", "prompt": "x"})
        assert refused.status_code == 404
        lines = eventually(lambda: found if len(found := lines_of(stack)) == 2 else None, "none")
        first, second = lines
        assert first["request"]["prompt"] == "canary-4711"
        assert first["answer"] == whole.json()["choices"][0]["text"] != ""
        assert first["request_id"] == whole.headers["x-request-id"]
        assert second["request"]["messages"][0]["content"] == "streamed-prompt"
        assert second["request_id"] == streamed.headers["x-request-id"]
        assert (second["answer"] != "", second["outcome"]) == (True, "length")

        (tmp_path / "bulkhead.toml").write_text(fake_config())
        stack.cli("deploy")
        complete(stack)
        assert stack.stop() == 0
        assert len(lines_of(stack)) == 2
        kept = "".join(path.read_text() for path in (stack.state / "payloads").iterdir())
        for secret in ("of-another", stack.key):
            assert secret not in kept
        for text in ("canary-4711", "streamed-prompt"):
            assert text not in stack.log.read_text()
