"""A gateway over real HTTP and a real store, a scripted upstream behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
from structlog.testing import capture_logs

from gateway import v1
from gateway.app import open_env
from gateway.env import Env
from gateway.identity.api_keys import create_key
from gateway.identity.tenants import create_tenant
from gateway.store.connection import DATABASE, open_for_reading, open_for_writing
from gateway.store.migrate import migrate
from gateway.store.sql import dicts
from runtime import keyring
from runtime.config.sections import FileSettings
from runtime.node.probe import client
from runtime.settings import Settings, parse
from tests.runtime.servers import serving
from tests.runtime.upstream import Answer, Exchange, Upstream, upstream

CHAT = "/v1/chat/completions"
MODEL = "@cf/there"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "canary-prompt"}]}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
DONE = b"data: [DONE]\n\n"
ONE_MODEL = '[[models]]\nid = "@cf/there"\nengine = "openai"\ncache = "salted"\nurl = "{url}"\n'


def text(content: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}


async def stream_ok(exchange: Exchange) -> None:
    await exchange.events(text("h"), text("o", "stop"), {"choices": [], "usage": USAGE}, DONE)


class Gateway:
    """A gateway, its tenants' keys, and a client with the key of `acme`."""

    def __init__(self, env: Env, http: httpx.AsyncClient, server: Upstream, socket: Path) -> None:
        self.env, self.http, self.server, self.socket = env, http, server, socket
        self.keys: dict[str, str] = {}
        self.log: list[MutableMapping[str, Any]] = []

    def rows(self) -> list[dict[str, Any]]:
        with closing(open_for_reading(self.env.database)) as db:
            return dicts(db.execute("SELECT * FROM usage_record ORDER BY id"))

    async def requests(self, count: int) -> list[MutableMapping[str, Any]]:
        """The log lines of requests, once there are so many; a line follows its answer."""
        async with asyncio.timeout(30):
            while len(found := [e for e in self.log if e["event"] == "request"]) < count:
                await asyncio.sleep(0.002)
        return found

    def bearer(self, tenant: str) -> dict[str, str]:
        """The header of another tenant's calls."""
        return {"authorization": f"Bearer {self.keys[tenant]}"}


@asynccontextmanager
async def gateway(
    folder: Path, answer: Answer, config: str = ONE_MODEL, tenants: tuple[str, ...] = ("acme",)
) -> AsyncIterator[Gateway]:
    """`config` is a config file's text, `{url}` in it the upstream's."""
    async with upstream(answer) as server:
        config_file: FileSettings = parse(config.replace("{url}", f"{server.url}/v1"), "test")[0]
        (folder / "bulkhead.toml").write_text(config)
        settings = Settings(
            file=config_file,
            config_path=str(folder / "bulkhead.toml"),
            state_dir=folder / "state",
        )
        settings.state_dir.mkdir()
        pepper = keyring.load(settings.state_dir).derive("key-pepper")
        migrate(settings.state_dir / DATABASE)
        keys = {}
        with closing(open_for_writing(settings.state_dir / DATABASE)) as db:
            for tenant in tenants:
                create_tenant(db, tenant)
                _, keys[tenant] = create_key(db, tenant, "laptop", pepper)
        path = folder / "g.sock"
        async with open_env(settings) as env, client(str(path), 60) as http:
            app = v1.V1()
            app.env = env
            found = Gateway(env, http, server, path)
            found.keys = keys
            http.headers.update(found.bearer(tenants[0]))
            with capture_logs() as found.log:
                async with serving(app, path):
                    yield found
