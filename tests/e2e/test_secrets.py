"""Secrets of a running Bulkhead: from the vault to the attached server, and nowhere else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx

from tests.runtime.upstream import Exchange, upstream
from tests.stack import BULKHEAD, REPO, running

CONFIG = """
name = "gate"
[[models]]
id = "theirs"
engine = "openai"
cache = "salted"
url = "${UPSTREAM}/v1"
api_key_secret = "UP_KEY"
"""
ANSWER = {
    "id": "x", "object": "text_completion", "created": 1, "model": "theirs",
    "choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip


def put(folder: Path, value: str) -> None:
    places = ["--config", str(folder / "bulkhead.toml"), "--state", str(folder / "state")]
    subprocess.run(
        [*BULKHEAD, "secret", "put", "UP_KEY", *places],
        input=value,
        text=True,
        cwd=REPO,
        check=True,
        capture_output=True,
        timeout=120,
    )


async def test_a_stored_secret_is_used_and_a_new_one_at_once(tmp_path: Path) -> None:
    """And `${NAME}` of .dev.vars reaches the gateway's worker."""
    seen: list[str | None] = []

    async def answer(call: Exchange) -> None:
        seen.append(call.header("authorization"))
        await call.reply_json(200, ANSWER)

    async with upstream(answer) as server:
        (tmp_path / "bulkhead.toml").write_text(CONFIG)
        (tmp_path / ".dev.vars").write_text(f'UPSTREAM="{server.url}"\n')
        put(tmp_path, "canary-one")
        with running(tmp_path, CONFIG) as stack:
            headers = {"authorization": f"Bearer {stack.key}"}
            async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=30) as client:
                body = {"model": "theirs", "prompt": "hi"}
                assert (await client.post("/v1/completions", json=body)).status_code == 200
                put(tmp_path, "canary-two")
                assert (await client.post("/v1/completions", json=body)).status_code == 200
                models = (await client.get("/v1/models")).text
            told = [stack.log.read_text(), "\n".join(stack.lines), models]
            told += [stack.cli("secret", "list"), stack.cli("secret", "list", "--json")]
            kept = [p.read_bytes() for p in stack.state.rglob("*") if p.is_file()]
        assert seen == ["Bearer canary-one", "Bearer canary-two"]
        assert not any("canary" in text for text in told)
        assert not any(b"canary" in data for data in kept), "not in the state folder either"
