"""GET /v1/models, /v1/models/{id} and /v1/models/{id}/schema.

Answers differ by caller (contracted prices) and are told apart by their ETag: whoever asks again
with it is answered 304 while nothing has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from gateway.asgi import Call, Headers, encode
from gateway.caller import identify
from gateway.catalog.catalog import Deployment
from gateway.catalog.filters import FILTERS, filters_of
from gateway.catalog.schema import endpoint_schemas
from gateway.catalog.views import Record, Shown, openai, openrouter, whole
from gateway.env import Env
from gateway.errors import BadRequest, ModelNotFound
from gateway.health import health
from gateway.query import query_of
from gateway.store.directory import Principal

PREFIX = "/v1/models/"
SCHEMA = "/schema"
PRIVATE = [(b"cache-control", b"private, no-cache"), (b"vary", b"Authorization")]

VIEWS = ("openai", "openrouter", "full")


async def index(env: Env, call: Call) -> None:
    """The models that the caller may use, as `view` shows them; those that the filters leave."""
    principal = await identify(env, call)
    query = query_of(call, ("view", *FILTERS))
    view, filters = _view(env, principal, query), filters_of(query)
    models = env.catalog.served_at(env.clock.now_us())
    shown = [one for model in models for one in _names(env, principal, model)]
    data = [view(one) for one in shown if filters.fit(one)]
    await _send(call, {"object": "list", "data": data})


async def show(env: Env, call: Call) -> None:
    """One model, or its schema. Its id may hold slashes."""
    principal = await identify(env, call)
    name = call.scope["path"].removeprefix(PREFIX)
    try:
        model = env.catalog.deployment(name, env.clock.now_us())
    except ModelNotFound:
        if not name.endswith(SCHEMA):
            raise
        await _schema(env, call, name.removesuffix(SCHEMA))
        return
    view = _view(env, principal, query_of(call, ("view",)))
    call.extra |= model.notices
    await _send(call, view(_shown(env, principal, model, name)))


async def _schema(env: Env, call: Call, name: str) -> None:
    """What its endpoints take and give, as JSON Schema."""
    model = env.catalog.deployment(name, env.clock.now_us())
    query_of(call, ())
    call.extra |= model.notices
    await _send(
        call, {"object": "model.schema", "model": model.id, "endpoints": endpoint_schemas()}
    )


def _view(env: Env, principal: Principal, query: dict[str, str]) -> Callable[[Shown], Record]:
    name = query.get("view")
    if name == "openai":
        return openai
    if name == "openrouter":
        return openrouter
    if name == "full":
        tenant_id = principal.tenant_id
        return lambda shown: whole(shown) | {"health": health(env, tenant_id, shown.deployment)}
    if name is not None:
        raise BadRequest(f"view: {name[:64]!r} is none of {', '.join(VIEWS)}", param="view")
    return whole


def _names(env: Env, principal: Principal, model: Deployment) -> Iterator[Shown]:
    """A model by its id, and then by each alias."""
    for name in (model.id, *model.aliases):
        yield _shown(env, principal, model, name)


def _shown(env: Env, principal: Principal, model: Deployment, name: str) -> Shown:
    return Shown(
        deployment=model,
        name=name,
        prices=env.contracts.prices(principal.tenant_name, model),
        prices_since=env.contracts.since(principal.tenant_name, model),
        limits=env.limits,
        now_us=env.clock.now_us(),
    )


async def _send(call: Call, answer: dict[str, Any]) -> None:
    """The answer with its ETag, or 304 if the client has it already."""
    body = encode(answer)
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers: Headers = [(b"etag", etag.encode()), *PRIVATE]
    if has_already(call.header(b"if-none-match"), etag):
        await call.send_empty(304, headers)
    else:
        await call.send_json(200, body, headers)


def has_already(if_none_match: str, etag: str) -> bool:
    """Whether an If-None-Match names this ETag (RFC 9110: compared weakly)."""
    known = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in known or known == ["*"]
