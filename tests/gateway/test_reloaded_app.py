"""An app whose settings change while it serves, with servers attached by URL behind it."""

from __future__ import annotations

import asyncio
import json
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
from gateway.identity.api_keys import create_key, revoke_key
from gateway.store.connection import DATABASE, open_for_reading, open_for_writing
from gateway.store.hold import held
from gateway.store.migrate import migrate
from runtime import keyring
from runtime.config.limits import LimitSettings
from runtime.config.models import ModelSettings, PriceSettings
from runtime.config.sections import FileSettings, ServerSettings
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
    monkeypatch.setenv("TMPDIR", str(tmp_path))
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


class HalfSent:
    """A completion whose body is being read, and has yet to come."""

    def __init__(self, http: httpx.AsyncClient, key: str) -> None:
        self._port, self._key = http.base_url.port, key

    async def __aenter__(self) -> HalfSent:
        body = json.dumps(BODY).encode()
        self._rest = body[10:]
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: {self._key}\r\n"
            f"expect: 100-continue\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
            "\r\n".encode()
        )
        go_on = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 30)
        assert b" 100 " in go_on, "the key was looked at, and the body is read from here on"
        self._writer.write(body[:10])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def answer(self) -> bytes:
        """Of the request, once it is sent whole."""
        self._writer.write(self._rest)
        return await asyncio.wait_for(self._reader.read(), 30)


async def test_a_key_that_is_revoked_while_a_request_is_sent_is_no_key(state_dir: Path) -> None:
    async with (
        upstream(answering("one", asyncio.Event())) as one,
        serving(settings_for(state_dir, one)) as (http, _),
    ):
        with closing(open_for_writing(state_dir / DATABASE)) as db:
            pepper = keyring.load(state_dir).derive("key-pepper")
            key, secret = create_key(db, "demo", "leaked", pepper)
            bearer = {"authorization": f"Bearer {secret}"}
            assert (await http.get("/whoami", headers=bearer)).status_code == 200
            async with HalfSent(http, bearer["authorization"]) as sent:
                revoke_key(db, key.id)
                async with asyncio.timeout(30):
                    while (await http.get("/whoami", headers=bearer)).status_code == 200:
                        await asyncio.sleep(0.05)
                assert b" 401 " in (await sent.answer()).splitlines()[0]
            rows = db.execute("SELECT count(*) FROM usage_record").fetchone()
        assert (rows, one.asked) == ((0,), [])


async def test_a_request_gets_what_is_deployed_when_it_has_been_sent_whole(
    state_dir: Path,
) -> None:
    go = asyncio.Event()
    async with upstream(answering("one", go)) as one, upstream(answering("two", go)) as two:
        first, second = settings_for(state_dir, one), settings_for(state_dir, two)
        other = structs.replace(first.file.models[0], id="other")
        third = structs.replace(first, file=structs.replace(first.file, models=(other,)))
        async with serving(first) as (http, apply):
            key = http.headers["authorization"]
            async with HalfSent(http, key) as sent, HalfSent(http, key) as sent_later:
                await apply(second, 2)
                assert b'"two"' in await sent.answer()
                await apply(third, 3)
                assert b" 404 " in (await sent_later.answer()).splitlines()[0]


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


async def test_a_price_is_fixed_when_a_request_is_admitted(state_dir: Path) -> None:
    """Also across a change in mid-stream; the catalog and its history tell of both."""
    go = asyncio.Event()

    def priced(settings: Settings, price: str) -> Settings:
        (model,) = settings.file.models
        model = structs.replace(model, price=PriceSettings(output=price))
        return structs.replace(settings, file=structs.replace(settings.file, models=(model,)))

    async with upstream(answering("one", go)) as one:
        settings = settings_for(state_dir, one)
        async with serving(priced(settings, "1")) as (http, apply):
            async with http.stream("POST", "/completions", json=BODY | {"stream": True}) as answer:
                chunks = answer.aiter_text()
                await anext(chunks)
                await apply(priced(settings, "2"), 2)
                assert await said(http) == "one"
                go.set()
                assert [chunk async for chunk in chunks]
            history = (await http.get("/models/m/prices")).json()
            now = (await http.get("/models/m")).json()
    with closing(open_for_reading(state_dir / DATABASE)) as db:
        rows = db.execute(
            "SELECT amount_pico, price_version_id, list_price_version_id FROM usage_record"
            " ORDER BY opened_at"
        ).fetchall()
    newer, older = history["data"]
    assert [(one["output"], one["in_force"], one["for"]) for one in (newer, older)] == [
        ("2", True, "everybody"),
        ("1", False, "everybody"),
    ]
    assert now["price_version_id"] == newer["id"]
    assert rows == [
        (2 * 1_000_000, older["id"], older["id"]),
        (2 * 2_000_000, newer["id"], newer["id"]),
    ]
