"""GET /v1/models, and of one model: /v1/models/{id}, its /schema and its /prices.

Answers differ by caller (contracted prices) and are told apart by their ETag: whoever asks again
with it is answered 304 while nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gateway.asgi import Call, encode
from gateway.caller import identify
from gateway.catalog.catalog import Deployment
from gateway.catalog.filters import FILTERS, LISTS, filters_of
from gateway.catalog.schema import endpoint_schemas
from gateway.catalog.views import Record, Shown, openai, openrouter, whole
from gateway.env import Env
from gateway.errors import BadRequest, ModelNotFound
from gateway.etags import send_if_changed
from gateway.health import health
from gateway.identity.scopes import MODELS_READ
from gateway.money.versions import told
from gateway.query import query_and_lists, query_of
from gateway.store.principal import Principal

PREFIX = "/v1/models/"
PRIVATE = [(b"cache-control", b"private, no-cache"), (b"vary", b"Authorization")]

VIEWS = ("openai", "openrouter", "full")


async def index(env: Env, call: Call) -> None:
    """The models that the caller may use, as `view` shows them; those that the filters leave."""
    principal = await identify(env, call, MODELS_READ)
    query, lists = query_and_lists(call, ("view", *FILTERS), LISTS)
    view, filters = _view(env, principal, query), filters_of(query, lists)
    models = env.catalog.served_at(env.clock.now_us(), principal.models)
    shown = [await _shown(env, principal, model, name) for model, name in _names(models)]
    data = [view(one) for one in shown if filters.fit(one)]
    await _send(call, {"object": "list", "data": data})


async def show(env: Env, call: Call) -> None:
    """One model, its schema or its prices. Its id may hold slashes."""
    principal = await identify(env, call, MODELS_READ)
    name = call.scope["path"].removeprefix(PREFIX)
    try:
        model = env.catalog.deployment(name, env.clock.now_us(), principal.models)
    except ModelNotFound:
        tell = next((tell for suffix, tell in PARTS.items() if name.endswith(suffix)), None)
        if tell is None:
            raise
        await tell(env, call, principal, name.rpartition("/")[0])
        return
    view = _view(env, principal, query_of(call, ("view",)))
    call.extra |= model.notices
    await _send(call, view(await _shown(env, principal, model, name)))


async def _schema(env: Env, call: Call, principal: Principal, name: str) -> None:
    """What its endpoints take and give, as JSON Schema."""
    model = env.catalog.deployment(name, env.clock.now_us(), principal.models)
    query_of(call, ())
    call.extra |= model.notices
    await _send(
        call, {"object": "model.schema", "model": model.id, "endpoints": endpoint_schemas()}
    )


async def _prices(env: Env, call: Call, principal: Principal, name: str) -> None:
    """What it has cost, costs and is going to: everybody, and this tenant."""
    model = env.catalog.deployment(name, env.clock.now_us(), principal.models)
    query_of(call, ())
    terms = await env.prices.terms(principal, model)
    in_force = {terms.agreed.version_id, terms.listed.version_id}
    versions = env.prices.history(principal, model)
    call.extra |= model.notices
    data = [told(version) | {"in_force": version.id in in_force} for version in versions]
    await _send(call, {"object": "list", "model": model.id, "data": data})


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


def _names(models: Iterable[Deployment]) -> Iterator[tuple[Deployment, str]]:
    """Each model by its id, and then by each alias."""
    for model in models:
        for name in (model.id, *model.aliases):
            yield model, name


async def _shown(env: Env, principal: Principal, model: Deployment, name: str) -> Shown:
    terms = await env.prices.terms(principal, model)
    return Shown(
        deployment=model,
        name=name,
        price=terms.agreed,
        list_price=terms.listed,
        limits=env.limits,
        now_us=env.clock.now_us(),
    )


PARTS = {"/schema": _schema, "/prices": _prices}


async def _send(call: Call, answer: dict[str, Any]) -> None:
    await send_if_changed(call, encode(answer), PRIVATE)
