"""GET /v1/usage: what the caller's tenant used, by bucket and by what else it's to be grouped."""

from __future__ import annotations

from functools import partial
from typing import cast, get_args

import msgspec
from anyio import to_thread

from gateway.asgi import Call, encode
from gateway.caller import identify, project_seen
from gateway.cursors import BadCursor, Cursors
from gateway.env import Env
from gateway.errors import BadRequest
from gateway.identity.scopes import USAGE_READ
from gateway.query import Lists, Query, query_and_lists
from gateway.store.principal import Principal
from gateway.usage.page import MOST_BUCKETS, BucketWidth, Question, UsagePage, usage_page
from gateway.usage.sums import MOST_VALUES, Filters, Grouped
from gateway.usage_period import is_of, period_of

KNOWN = {"start_time", "end_time", "bucket_width", "limit", "page"}
LISTS = {"group_by", "models", "project_ids", "api_key_ids"}


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A period, and where in it a page begins; microseconds UTC."""

    start_us: int
    end_us: int
    from_us: int


async def usage(env: Env, call: Call) -> None:
    """A page of buckets. Parameters as OpenAI's; grouped by model if nothing else is said."""
    principal = await identify(env, call, USAGE_READ)
    query, lists = query_and_lists(call, KNOWN, LISTS)
    width = _width(query)
    group_by, filters = _group_by(lists), _filters(principal, lists)
    asked = [width, sorted(group_by), msgspec.to_builtins(filters)]
    place = _place(query, env.clock.now_us(), env.cursors, asked)
    limit = _limit(query, width)
    question = Question(filters, place.from_us, place.end_us, width, group_by, limit)
    async with call.watched():
        ask = partial(usage_page, env.database, question)
        buckets, next_us = await to_thread.run_sync(ask, limiter=env.report_threads)
    page = UsagePage(buckets)
    if next_us is not None:
        place = Place(place.start_us, place.end_us, next_us)
        page = UsagePage(buckets, has_more=True, next_page=env.cursors.seal(place, asked))
    await call.send_json(200, encode(page))


def _width(query: Query) -> BucketWidth:
    width = query.get("bucket_width", "1d")
    if width not in MOST_BUCKETS:
        raise BadRequest("bucket_width: expected 1h or 1d", param="bucket_width")
    return width


def _limit(query: Query, width: BucketWidth) -> int:
    """How many buckets a page may have; by default as many as it can."""
    most = MOST_BUCKETS[width]
    text = query.get("limit", str(most))
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= most):
        raise BadRequest(f"limit: expected 1 to {most} buckets of {width}", param="limit")
    return int(text)


def _group_by(lists: Lists) -> frozenset[Grouped]:
    names = tuple(filter(None, lists.get("group_by", ("model",))))  # `group_by=`: by nothing
    known = get_args(Grouped)
    for name in names:
        if name not in known:
            raise BadRequest(f"group_by: expected some of {', '.join(known)}", param="group_by")
    return frozenset(cast("tuple[Grouped, ...]", names))


def _filters(principal: Principal, lists: Lists) -> Filters:
    return Filters(
        principal.tenant_id,
        models=_filter(lists, "models"),
        project_ids=_filter(lists, "project_ids"),
        api_key_ids=_filter(lists, "api_key_ids"),
        project_id=project_seen(principal),
    )


def _filter(lists: Lists, name: str) -> tuple[str, ...]:
    """Its values, each once. An empty one would be none, and no filter lets all through."""
    values = lists.get(name, ())
    if len(values) > MOST_VALUES:
        raise BadRequest(f"{name}: at most {MOST_VALUES} values", param=name)
    if "" in values:
        raise BadRequest(f"{name}: a value is empty; leave it out, or name one", param=name)
    return tuple(dict.fromkeys(values))


def _place(query: Query, now_us: int, cursors: Cursors, asked: object) -> Place:
    """The period and where to begin: where the page before has ended, if one is named."""
    text = query.get("page")
    if text is None:
        start_us, end_us = period_of(query, now_us)
        return Place(start_us, end_us, start_us)
    try:
        place = cursors.open(text, asked, Place)
    except BadCursor:
        raise _not_the_next() from None
    if not is_of(query, (place.start_us, place.end_us)):
        raise _not_the_next()
    return place


def _not_the_next() -> BadRequest:
    return BadRequest("page: not the next page of this question", param="page")
