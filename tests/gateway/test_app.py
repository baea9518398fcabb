"""The app as a whole: what it loads, whose store it is, when it is ready, and another server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from msgspec import structs

from gateway import owning
from gateway.app import create_app, open_env, readiness
from gateway.demo import demo_key
from gateway.env import Env
from gateway.prices import Terms, TokenPrices
from gateway.record import Opening
from gateway.store.connection import DATABASE, open_for_writing
from gateway.store.migrate import migrate
from runtime import keyring
from runtime.config.models import ModelSettings
from runtime.config.sections import FileSettings
from runtime.host.process import HostServer
from runtime.settings import Settings
from runtime.state import StateInUse, own
from tests.gateway.accounts import add_key, add_tenant
from tests.runtime.servers import running_node
from tests.stack import free_port

ECHO = ModelSettings(id="echo", engine="fake", min_hosts=1)
THERE = ModelSettings(id="there", engine="openai", url="http://127.0.0.1:1/v1")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    file = FileSettings(models=(ECHO, THERE))
    return Settings(file=file, config_path="", state_dir=tmp_path / "state", dev=True)


def body_of(env: Env | None) -> tuple[int, Any]:
    answer = readiness(env)
    return answer.status_code, json.loads(bytes(answer.body))


@pytest.mark.parametrize(
    "name", ["gateway.app", "gateway.cli", "runtime.node.node", "runtime.host"]
)
def test_importing_it_loads_no_engine_and_no_torch(name: str) -> None:
    code = (
        f"import {name}, sys; heavy = ('torch', 'numpy', 'tokenizers', 'safetensors', 'gguf',"
        "'engines.embedded', 'engines.fake'); print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


async def test_a_second_gateway_on_one_store_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owning, "LOCK_WAIT_S", 0.1)
    async with open_env(settings):
        with pytest.raises(StateInUse, match="gateway"):
            async with open_env(settings):
                pass
    async with open_env(settings):
        pass


async def test_a_gateway_waits_a_moment_for_one_that_is_going(settings: Settings) -> None:
    held = own(settings.state_dir, "gateway")

    async def start() -> None:
        async with open_env(settings):
            pass

    starting = asyncio.ensure_future(start())
    await asyncio.sleep(0.05)
    assert not starting.done()
    held.close()
    await starting


async def test_readyz_says_what_is_missing(settings: Settings) -> None:
    assert body_of(None) == (503, {"status": "not ready", "missing": ["starting"]})
    async with open_env(settings) as env:
        assert body_of(env) == (503, {"status": "not ready", "missing": ["node", "echo"]})
        async with running_node(settings), asyncio.timeout(30):
            while not env.hosts.is_heard():
                await asyncio.sleep(0.005)
            assert body_of(env)[1]["missing"] in (["echo"], [])
            while not env.hosts.ready("echo"):
                await asyncio.sleep(0.005)
            assert body_of(env) == (200, {"status": "ready", "missing": []})
            env.directory._seen_at_us = None
            assert body_of(env) == (503, {"status": "not ready", "missing": ["store"]})


async def test_a_cold_model_is_ready_for_its_first_request(settings: Settings) -> None:
    """What is kept warm must be warm; the rest starts when it is asked for."""
    cold = ModelSettings(id="cold", engine="fake")
    file = structs.replace(settings.file, models=(cold, THERE))
    given = structs.replace(settings, file=file)
    async with open_env(given) as env, running_node(given), asyncio.timeout(30):
        while body_of(env)[0] != 200:
            assert body_of(env)[1]["missing"] == ["node"]
            await asyncio.sleep(0.005)
        assert not env.hosts.ready("cold")


async def test_a_gateway_of_attached_servers_alone_needs_no_node(settings: Settings) -> None:
    file = structs.replace(settings.file, models=(THERE,))
    async with open_env(structs.replace(settings, file=file)) as env:
        assert body_of(env) == (200, {"status": "ready", "missing": []})


async def test_what_another_process_left_open_is_closed_at_the_start(settings: Settings) -> None:
    async with open_env(settings) as env:
        with closing(open_for_writing(env.database)) as db:
            add_tenant(db)
            add_key(db, "k", "tn_1", b"\x01")
        terms = Terms.of(TokenPrices("USD", 0, 0, 0))
        opening = Opening("req_1", "tn_1", "k", "chat", "echo", "", terms, streamed=False)
        await env.ledger.open(opening)
    async with open_env(settings) as env:
        with closing(open_for_writing(env.database)) as db:
            assert db.execute("SELECT state FROM usage_record").fetchall() == [("orphaned",)]


@asynccontextmanager
async def under_uvicorn(settings: Settings) -> AsyncIterator[str]:
    port = free_port()
    server = HostServer(
        uvicorn.Config(create_app(settings), port=port, log_config=None, lifespan="on")
    )
    running = asyncio.ensure_future(server.serve())
    while not server.started:
        assert not running.done()
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


async def test_it_works_under_uvicorn_too(settings: Settings) -> None:
    """From health to a streamed and a plain answer, the lifespan included."""
    settings.state_dir.mkdir()
    migrate(settings.state_dir / DATABASE)
    pepper = keyring.load(settings.state_dir).derive("key-pepper")
    with closing(open_for_writing(settings.state_dir / DATABASE)) as db:
        key = demo_key(db, settings.state_dir, pepper)
    async with running_node(settings), under_uvicorn(settings) as url:
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as http:
            assert (await http.get("/healthz")).json() == {"status": "ok"}
            body = {"model": "echo", "prompt": "abc", "max_tokens": 6}
            plain = await http.post("/v1/completions", json=body)
            assert plain.status_code == 200
            assert plain.json()["choices"][0]["text"] == "abcabc"
            assert (await http.get("/readyz")).status_code == 200
            streamed = await http.post("/v1/completions", json=body | {"stream": True})
            assert streamed.content.endswith(b"data: [DONE]\n\n")
            assert b"t=" not in streamed.content
            chunks = [json.loads(e[6:]) for e in streamed.content.split(b"\n\n")[:-2]]
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcabc"
            usage = (await http.get("/v1/usage")).json()
            assert "echo" in json.dumps(usage)
            assert (await http.get("/nowhere")).json()["error"]["code"] == "route_not_found"
