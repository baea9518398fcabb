"""Attached servers: which share a way, and what happens to a way that is no longer wanted."""

from __future__ import annotations

from typing import Any

from gateway.catalog.catalog import Deployment, catalog_of
from gateway.relay.attached import AttachedServers
from runtime.config.models import ModelSettings
from tests.runtime.upstream import Exchange, upstream


def model(url: str, **more: Any) -> Deployment:
    settings = ModelSettings(id="m", engine="openai", url=url, **more)
    return catalog_of([settings], {}).deployment("m", 0)


def test_one_server_has_one_way_whatever_its_models_cost() -> None:
    attached = AttachedServers()
    (one,) = attached.places(model("http://a.test/v1"), 5)
    (same,) = attached.places(model("http://a.test/v1/", default_max_tokens=7), 5)
    assert same is one
    assert attached.places(model("http://b.test/v1"), 5)[0].transport is not one.transport
    assert attached.places(model("http://a.test/v1"), 1)[0].transport is not one.transport


async def test_a_way_that_is_kept_stays_and_another_goes_after_its_answer() -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.events({"n": 1}, end=False)
        await exchange.event({"n": 2})
        await exchange.send(b"0\r\n\r\n")

    async with upstream(slow) as server:
        attached = AttachedServers()
        kept, gone = model("http://kept.test/v1"), model(server.url)
        (stays,), (goes,) = attached.places(kept, 5), attached.places(gone, 5)
        async with goes.transport.send("POST", f"{goes.base_url}/", {}, b"") as reply:
            await attached.keep([kept], 5)
            assert b'"n": 2' in await reply.read(1000)
        assert attached.places(kept, 5)[0].transport is stays.transport
        (again,) = attached.places(gone, 5)
        assert again.transport is not goes.transport, "wanted again: a new one"
        await attached.aclose()
