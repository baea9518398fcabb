"""`bulkhead backend test`, tried on a server that is right, and on one wrong in each way."""

from __future__ import annotations

import pytest

from gateway.conformance import caches, cancels
from gateway.conformance.backend import Said, Target, Unusable
from gateway.conformance.run import TRIALS, trials
from gateway.conformance.verdict import Verdict
from tests.gateway.conformance.model_server import ModelServer
from tests.runtime.upstream import Exchange, upstream

FAILS = {
    "shares its cache": {"cross-tenant hits by cached tokens", "cross-tenant hits by time"},
    "runs on": {
        "cancelled queued", "cancelled sent, no headers", "cancelled headers, no body",
        "cancelled in mid-stream", "cancelled unstreamed",
    },
    "counts streams otherwise": {
        "usage of a stream", "streamed and unstreamed are counted alike",
        "no more tokens than can be",
    },
    "tells no usage": {
        "usage of an unstreamed answer", "usage of a stream", "no answer without a token",
        "streamed and unstreamed are counted alike",
    },
    "claims too much": {"no more tokens than can be", "no answer without a token"},
    "answers with nothing": {"no answer without a token"},
    "splits characters": {"characters come whole", "stop texts end an answer, streamed"},
    "ignores stops": {"stop texts end an answer, streamed", "stop texts end an answer, unstreamed"},
    "takes any": {"a model that isn't there"},
    "cuts long prompts": {"a prompt that is too long"},
    "fails at fields": {"a field of the wrong type"},
    "ends without DONE": {"usage", "characters", "stop texts"},
}  # fmt: skip


async def report(wrong: str = "", **target: str) -> dict[str, tuple[Verdict, str]]:
    async with upstream(ModelServer(wrong)) as server:
        asked = Target(f"{server.url}/v1", **({"kind": "vllm"} | target))  # type: ignore[arg-type]
        return {line.name: (line.verdict, line.seen) async for line in trials(asked)}


def those(found: dict[str, tuple[Verdict, str]], verdict: Verdict) -> set[str]:
    return {name for name, (told, _) in found.items() if told is verdict}


async def test_a_server_that_does_as_it_must_passes_every_line() -> None:
    found = await report()
    assert those(found, Verdict.PASS) == found.keys(), found
    assert len([name for name in found if name.startswith("cancelled")]) == 6
    assert found["cross-tenant hits by cached tokens"][1].startswith("0 tokens of a's")


@pytest.mark.parametrize("wrong", FAILS)
async def test_what_is_wrong_fails_its_own_line(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancels, "PATIENCE_S", 1.0)  # a server that runs on does so for seconds
    for name, only in (("cancelling", "runs on"), ("caches", "shares its cache")):
        if wrong != only:  # these take their time
            monkeypatch.delitem(TRIALS, name)
    found = await report(wrong)
    failed = those(found, Verdict.FAIL)
    assert failed >= FAILS[wrong], found
    assert failed <= FAILS[wrong], found


async def test_f9_a_salt_that_is_dropped_on_the_way_is_seen() -> None:
    """Fault F9: without it, b is told that it hit what a has sent."""
    found = await report(cache="off")
    verdict, seen = found["cross-tenant hits by cached tokens"]
    assert verdict is Verdict.FAIL
    assert not seen.startswith("0 tokens")


async def test_what_can_t_be_seen_is_neither() -> None:
    found = await report("has no metrics")
    assert those(found, Verdict.UNKNOWN) == {name for name in found if name.startswith("cancelled")}
    found = await report("tells no cached tokens")
    assert those(found, Verdict.UNKNOWN) == {"cross-tenant hits by cached tokens"}


@pytest.mark.parametrize("status", [401, 500])
async def test_a_server_that_answers_nothing_is_no_report(status: int) -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.reply_json(status, {"error": {"message": "no"}})

    async with upstream(refuses) as server:
        with pytest.raises(Unusable, match=f'{status}.*: {{"error": {{"message": "no"}}}}$'):
            [line async for line in trials(Target(f"{server.url}/v1", model="m"))]
        with pytest.raises(Unusable, match=f"/models answers {status}.*--api-key-env"):
            [line async for line in trials(Target(f"{server.url}/v1"))]


async def test_a_url_without_its_v1_is_asked_about() -> None:
    async def nowhere(exchange: Exchange) -> None:
        await exchange.reply_json(404, {"detail": "Not Found"})

    async with upstream(nowhere) as server:
        with pytest.raises(Unusable, match="is that its /v1"):
            [line async for line in trials(Target(server.url))]


async def test_a_server_that_takes_no_salt_is_to_be_called_so() -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.reply_json(400, {"error": {"message": "cache_salt: unknown parameter"}})

    async with upstream(refuses) as server:
        with pytest.raises(Unusable, match="--cache off"):
            [line async for line in trials(Target(f"{server.url}/v1", model="m"))]


async def test_nobody_there() -> None:
    with pytest.raises(Unusable, match="refused"):
        [line async for line in trials(Target("http://127.0.0.1:9/v1", model="m"))]


@pytest.mark.parametrize(
    ("own", "seen", "new", "verdict"),
    [
        (480, 0, 0, Verdict.PASS),
        (480, 32, 0, Verdict.PASS),  # b's own earlier prompts began with the same few tokens
        (480, 480, 0, Verdict.FAIL),
        (480, 512, 32, Verdict.FAIL),
        (480, 160, 0, Verdict.FAIL),  # of one page in three
        (0, 32, 0, Verdict.FAIL),  # nothing else is ever hit
    ],
)
def test_a_beginning_that_is_alike_by_chance_is_no_hit(
    own: int, seen: int, new: int, verdict: Verdict
) -> None:
    def said(cached: int) -> list[Said]:
        return [Said("", {"prompt_tokens_details": {"cached_tokens": cached}}, "length", 0.1)]

    assert caches._by_tokens(said(own), said(seen), said(new)).verdict is verdict
