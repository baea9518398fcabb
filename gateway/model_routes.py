"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from gateway.asgi import Call, encode
from gateway.auth import identify
from gateway.env import Env

PREFIX = "/v1/models/"


async def index(env: Env, call: Call) -> None:
    """The models that the caller may use."""
    identify(env.auth, call)
    await call.send_json(200, encode({"object": "list", "data": env.catalog.listing()}))


async def show(env: Env, call: Call) -> None:
    """One model. Its id may hold slashes."""
    identify(env.auth, call)
    model = call.scope["path"].removeprefix(PREFIX)
    await call.send_json(200, encode(env.catalog.deployment(model).listing()))
