"""An app whose settings change while it serves, with servers attached by URL behind it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from msgspec import structs

from gateway import parts
from gateway.app import create_app
from gateway.demo import demo_key
from gateway.store.connection import DATABASE, open_for_writing
from gateway.store.hold import held
from gateway.store.migrate import migrate
from runtime import keyring
from runtime.config.models import ModelSettings
from runtime.config.sections import FileSettings, LimitSettings, ServerSettings
from runtime.deploy.reload import Apply
from runtime.host.process import HostServer
from runtime.settings import Settings
from tests.runtime.upstream import Exchange, Upstream, upstream
from tests.stack import free_port

BODY = {"model": "m", "prompt": "x", "max_tokens": 5}


def answering(text: str, go: asyncio.Event) -> Any:
    """A server that says who it is; a stream of it waits for `go` in its middle."""

    def choice(text: str, finish: str | None) -> dict[str, Any]:
        choices = [{"index": 0, "text": text, "finish_reason": finish}]
        return {"id": "x", "object": "text_completion", "created": 1, "model": "x"} | {
            "choices": choices
        }

    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}

    async def answer(exchange: Exchange) -> None:
        if not json.loads(exchange.body).get("stream"):
            await exchange.reply_json(200, choice(text, "stop") | usage)
            return
        await exchange.events(choice(text, None), end=False)
        await go.wait()
        await exchange.event(choice(" ends", "stop"))
        await exchange.event(choice("", None) | {"choices": []} | usage)
        await exchange.event(b"data: [DONE]\n\n")
        await exchange.send(b"0\r\n\r\n")

    return answer


def settings_for(state_dir: Path, served: Upstream, **changes: Any) -> Settings:
    model = ModelSettings(id="m", engine="openai", url=f"{served.url}/v1")
    file = FileSettings(models=(model,), **changes)
    return Settings(file=file, config_path="", state_dir=state_dir, dev=True)


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[httpx.AsyncClient, Apply]]:
    """A client of the app, and what gives the app other settings."""
    found: list[Apply] = []

    @asynccontextmanager
    async def following(apply: Apply) -> AsyncIterator[None]:
        found.append(apply)
        yield

    settings.state_dir.mkdir()
    migrate(settings.state_dir / DATABASE)
    pepper = keyring.load(settings.state_dir).derive("key-pepper")
    with closing(open_for_writing(settings.state_dir / DATABASE)) as db:
        key = demo_key(db, settings.state_dir, pepper)
    port = free_port()
    app = create_app(settings, following)
    server = HostServer(uvicorn.Config(app, port=port, log_config=None, lifespan="on"))
    running = asyncio.ensure_future(server.serve())
    while not server.started:
        assert not running.done()
        await asyncio.sleep(0.005)
    headers = {"authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{port}/v1"
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as http:
            yield http, found[0]
    finally:
        server.should_exit = True
        await running


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "state"


@asynccontextmanager
async def restoring(database: Path) -> AsyncIterator[None]:
    """The store is another's meanwhile, as during a restore."""
    holding = held(database, 30)
    await asyncio.to_thread(holding.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(holding.__exit__, None, None, None)


async def said(http: httpx.AsyncClient) -> str:
    answer = await http.post("/completions", json=BODY)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


async def test_who_runs_keeps_the_server_and_who_comes_gets_the_next(state_dir: Path) -> None:
    go = asyncio.Event()
    async with upstream(answering("one", go)) as one, upstream(answering("two", go)) as two:
        first, second = settings_for(state_dir, one), settings_for(state_dir, two)
        async with serving(first) as (http, apply):
            assert await said(http) == "one"
            async with http.stream("POST", "/completions", json=BODY | {"stream": True}) as answer:
                chunks = answer.aiter_text()
                text = await anext(chunks)
                await apply(second, 2)
                assert await said(http) == "two"
                go.set()
                text += "".join([chunk async for chunk in chunks])
            assert "one" in text
            assert " ends" in text
            assert text.endswith("data: [DONE]\n\n")
            assert await said(http) == "two"
            await apply(first, 3)
            assert await said(http) == "one"


async def test_the_connections_of_a_server_that_stays_are_kept(state_dir: Path) -> None:
    async with upstream(answering("one", asyncio.Event())) as one:
        settings = settings_for(state_dir, one)
        async with serving(settings) as (http, apply):
            assert await said(http) == "one"
            await apply(settings_for(state_dir, one, limits=LimitSettings(wall_s=60)), 2)
            assert await said(http) == "one"
            assert one.connections == 1


async def test_requests_wait_for_a_restore_as_long_as_the_settings_in_force_say(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain and what a restore takes beyond; of the deployment that counts by then."""
    monkeypatch.setattr(parts, "RESTORE_S", 0.01)
    async with upstream(answering("one", asyncio.Event())) as one:
        patient = settings_for(state_dir, one, server=ServerSettings(drain_s=600))
        hasty = settings_for(state_dir, one, server=ServerSettings(drain_s=0.01))
        async with serving(patient) as (http, apply):
            assert await said(http) == "one"
            await apply(hasty, 2)
            async with restoring(state_dir / DATABASE):
                answer = await http.post("/completions", json=BODY)
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                503,
                "store_unavailable",
            )
            await apply(patient, 3)
            assert await said(http) == "one", "it waits until the gateway has its share again"


async def test_settings_that_can_t_be_applied_change_nothing(state_dir: Path) -> None:
    async with upstream(answering("one", asyncio.Event())) as one:
        settings = settings_for(state_dir, one)
        async with serving(settings) as (http, apply):
            model = structs.replace(settings.file.models[0], id="other")
            price = structs.replace(model.price, input="no price")
            file = structs.replace(settings.file, models=(structs.replace(model, price=price),))
            with pytest.raises(ValueError, match="no price"):
                await apply(structs.replace(settings, file=file), 2)
            assert await said(http) == "one"
