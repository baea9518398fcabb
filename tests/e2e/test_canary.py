"""Canaries: a key, a prompt and an answer that nobody may find in whatever Bulkhead tells or keeps.

Everything is on: traces, alerts, exports by the clock, an audit log, a server that quotes what it
is sent in its errors. Then all of it is searched, the state folder's files too.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.usage.export import FORMATS
from runtime.rundir import events_socket
from tests.e2e.asking import PATIENCE_S
from tests.gateway.budgets.receiver import receiving
from tests.gateway.telemetry.collector import collector
from tests.runtime.upstream import Exchange, upstream
from tests.stack import BULKHEAD, REPO, Stack, fake_config, running

PROMPT, ANSWER = "canary-prompt-58f1", "canary-answer-c07d"
THEIR_KEY, HOOK_SECRET = "sk-canary-upstream-91e2", "canary-hook-secret-7d20-of-32-bytes"
CONFIG = """
[observability.otel]
endpoint = "{otel}"
metrics_every_s = 1
[alerts]
url = "http://127.0.0.1:{port}/hook"
secret = "HOOK_SECRET"
[[tenants]]
name = "acme"
origins = ["https://app.example"]
[[models]]
id = "theirs"
engine = "openai"
cache = "salted"
url = "{url}/v1"
api_key_secret = "THEIR_KEY"
price = {{ input = "1", output = "1" }}
[[triggers.crons]]
cron = "* * * * *"
run = "usage-export"
to = "exports"
"""
PERIOD = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2099-01-01T00:00:00Z"}
COMMANDS = (
    ("usage", "export"), ("usage", "export", "--format", "focus"), ("usage", "public-key"),
    ("ledger", "reconcile"), ("ledger", "verify"), ("ledger", "list"), ("ledger", "checkpoint"),
    ("budgets", "list", "--json"), ("limits", "show", "acme"), ("keys", "list", "acme", "--json"),
    ("tenants", "list"), ("projects", "list", "acme"), ("audit",), ("models", "list"),
    ("prices", "list"), ("hosts", "list"), ("deployments", "list"), ("triggers", "list"),
    ("secret", "list"), ("doctor",), ("check",),
)  # fmt: skip
ADMIN = (
    "status", "hosts", "metrics", "models", "requests", "tenants", "audit", "usage/export",
    "usage/export?format=jsonl", "usage/export/manifest", "tenants/acme", "tenants/acme/keys",
    "tenants/acme/budgets", "tenants/acme/limits", "tenants/acme/projects", "nothing",
)  # fmt: skip


async def quoting(exchange: Exchange) -> None:
    """Answers; or fails as told by the temperature, and quotes all that it was sent."""
    sent = exchange.json()
    quote = f"{sent} {exchange.headers} {ANSWER}"
    error = {"error": {"message": quote, "type": quote, "code": "x"}}
    how = sent.get("temperature")
    statuses = {0.1: 400, 0.2: 500, 0.3: 429, 0.4: 401, 0.5: 302}
    if how in statuses:
        await exchange.reply_json(statuses[how], error)
        return
    usage = {"prompt_tokens": 90, "completion_tokens": 2, "total_tokens": 92}
    choice = {"index": 0, "message": {"content": ANSWER}, "finish_reason": "stop"}
    if not sent.get("stream"):
        broken = {"choices": quote} if how == 0.6 else {"choices": [choice], "usage": usage}
        await exchange.reply_json(200, broken)
        return
    chunk = {"choices": [{"index": 0, "delta": {"content": ANSWER}, "finish_reason": "stop"}]}
    ends: dict[float, Any] = {
        0.6: error,
        0.7: b"data: {" + quote.encode() + b"\n\n",
        0.8: {"usage": quote},
    }
    await exchange.events(
        chunk, ends.get(how, {"choices": [], "usage": usage}), b"data: [DONE]\n\n"
    )


class Found:
    """Whatever was told or kept, by where it was found."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}

    def add(self, where: str, content: bytes | str) -> None:
        content = content.encode() if isinstance(content, str) else content
        self.texts[where] = self.texts.get(where, b"") + content

    def holding(self, canary: str) -> list[str]:
        return sorted(where for where, text in self.texts.items() if canary.encode() in text)


async def use(stack: Stack, secret: str, found: Found) -> None:
    """Requests of all kinds, with canaries wherever a client may write."""
    names = ("x-session-affinity", "user-agent", "x-request-id", "traceparent", "x-forwarded-for")
    headers = dict.fromkeys((*names, "referer", "cookie", "x-cache-salt", "baggage"), PROMPT)
    headers["authorization"] = f"Bearer {secret}"
    turns = [{"role": "system", "content": PROMPT}, {"role": "user", "content": PROMPT}]
    chat: dict[str, Any] = {"model": "theirs", "messages": turns, "max_tokens": 5, "stop": [PROMPT]}
    chat |= {"user": PROMPT, "metadata": {PROMPT: PROMPT}, "prompt_cache_key": PROMPT}
    temperatures = [1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    wrong: list[dict[str, Any]] = [
        chat | {PROMPT: PROMPT}, chat | {"tools": [PROMPT]}, chat | {"messages": PROMPT},
        chat | {"temperature": PROMPT}, chat | {"messages": [{"role": PROMPT, "content": "x"}]},
    ]  # fmt: skip
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=PATIENCE_S) as http:
        for stream in (False, True):
            for temperature in temperatures:
                body = chat | {"stream": stream, "temperature": temperature}
                answer = await http.post("/v1/chat/completions", json=body)
                if answer.status_code > 400:  # what is its own fault is told in full
                    found.add("errors of the server's", answer.text)
            echo = {"model": "echo", "prompt": PROMPT, "max_tokens": 5, "stream": stream}
            assert (await http.post("/v1/completions", json=echo)).status_code == 200
        for body in wrong:
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 400
        async with http.stream(
            "POST", "/v1/completions", json=echo | {"max_tokens": 4000}
        ) as answer:
            await anext(answer.aiter_raw())  # and it leaves
        for path in ("models", "whoami", "limits", "budgets", "usage"):
            found.add("told to the tenant", (await http.get(f"/v1/{path}")).text)
        for fmt in FORMATS:
            for path in ("usage/export", "usage/export/manifest"):
                answer = await http.get(f"/v1/{path}", params=PERIOD | {"format": fmt})
                assert answer.status_code == 200
                found.add(f"{path} as {fmt}", answer.content)
    async with httpx.AsyncClient(base_url=stack.url, timeout=PATIENCE_S) as http:
        for scheme in ("Bearer", "Basic", "Bearer x"):  # a key that was sent wrongly
            answer = await http.get("/v1/models", headers={"authorization": f"{scheme} {secret}x"})
            found.add("refusals", answer.text)


def operate(stack: Stack, admin: httpx.Client, found: Found, folder: Path) -> None:
    """All that the operator can be told."""
    for path in ADMIN:
        found.add(f"admin {path}", admin.get(f"/admin/v1/{path}").content)
    for words in COMMANDS:
        done = subprocess.run(
            [*BULKHEAD, *words, "--config", stack.config, "--state", stack.state],
            capture_output=True, cwd=REPO, check=False,
        )  # fmt: skip
        assert b"No such" not in done.stderr, done.stderr
        found.add(" ".join(words), done.stdout + done.stderr)
    stack.cli("backup", str(folder / "backup.tar.gz"))


def kept(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file, those in archives too."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        name, content = str(path.relative_to(folder)), path.read_bytes()
        yield name, content
        if name.endswith(".tar.gz"):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                for member in archive:
                    if (file := archive.extractfile(member)) is not None:
                        yield f"{name}:{member.name}", file.read()
        elif content[:2] == b"\x1f\x8b":
            yield f"{name} unpacked", zlib.decompress(content, 31)


def make(stack: Stack, admin: httpx.Client) -> list[str]:
    """A key by command and one over HTTP, once by its Idempotency-Key, and a rotated one."""
    made = json.loads(stack.cli("keys", "create", "acme", "--json"))
    secrets = [made["secret"]]
    rotated = stack.cli("keys", "rotate", made["id"], "--grace", "1h", "--json")
    secrets.append(json.loads(rotated)["secret"])
    for _ in range(2):
        answer = admin.post(
            "/admin/v1/tenants/acme/keys",
            json={"name": "console"},
            headers={"idempotency-key": "k1"},
        )
        assert answer.status_code in (200, 201), answer.text
        secrets.append(answer.json()["secret"])
    assert secrets[-1] == secrets[-2]
    stack.cli("budgets", "create", "acme", "--limit", "0.01", "--alerts", "1")
    return sorted(set(secrets))


async def exercise(stack: Stack, found: Found, home: Path) -> list[str]:
    """Use it and operate it, somebody watching; the secrets of all keys."""
    key = (stack.state / "admin-key").read_text().strip()
    headers = {"authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{stack.admin_port}"
    places = ["--config", str(stack.config), "--state", str(stack.state)]
    with (
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as admin,
        subprocess.Popen([*BULKHEAD, "tail", *places], stdout=subprocess.PIPE, cwd=REPO) as tail,
    ):
        try:
            secrets = await asyncio.to_thread(make, stack, admin)
            async with asyncio.timeout(PATIENCE_S):
                while not events_socket(stack.state).exists():
                    await asyncio.sleep(0.05)
            await use(stack, secrets[0], found)
            await asyncio.to_thread(operate, stack, admin, found, home)
            tail.send_signal(signal.SIGINT)
            told, _ = await asyncio.to_thread(tail.communicate)
            assert told.count(b"\n") > 20
            found.add("tail", told)
        finally:
            tail.kill()
    return secrets


async def test_no_canary_is_in_anything_told_or_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", THEIR_KEY)
    monkeypatch.setenv("HOOK_SECRET", HOOK_SECRET)
    found, home = Found(), tmp_path / "home"
    home.mkdir()
    with collector() as otel, receiving() as hook:
        async with upstream(quoting) as server:
            config = CONFIG.format(otel=otel.url, port=hook.port, url=server.url)
            with running(home, fake_config(step_s=0.002, more=config), "serve") as stack:
                await asyncio.to_thread(stack.cli, "tenants", "create", "acme")
                secrets = await exercise(stack, found, home)
                async with asyncio.timeout(PATIENCE_S):
                    while not hook.got:
                        await asyncio.sleep(0.05)
        found.add("collector", b"".join(otel.raw))
        found.add("webhook", b"".join(got.body + repr(got.headers).encode() for got in hook.got))
    assert otel.raw
    for name, content in kept(home):
        found.add(name, content)
    assert len(found.texts) > 50
    for canary in (PROMPT, ANSWER, THEIR_KEY, HOOK_SECRET, *secrets):
        assert found.holding(canary) == [], canary
