"""An issuer's keys over time: refreshed, shared, rationed, and used for a while in its silence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.identity import issuers as module
from gateway.identity.claims import TokenRefused, UnknownKey, verify
from gateway.identity.issuers import Issuers
from gateway.identity.key_source import KeysUnavailable
from tests.gateway.identity.clock import NOON_S, StillClock
from tests.gateway.identity.door import Published
from tests.gateway.identity.signing import (
    ISSUER,
    OTHER_RSA,
    RSA_KEY,
    claims,
    document,
    jwk,
    settings,
    token,
)

ONE = document(jwk(RSA_KEY))
TWO = document(jwk(OTHER_RSA, "two"))
BOTH = document(jwk(RSA_KEY), jwk(OTHER_RSA, "two"))
LONG = claims(exp=NOON_S + 80_000)
OLD = token(LONG)
NEW = token(LONG, key=OTHER_RSA, headers={"kid": "two"})


class Seen:
    """Issuers under a clock that we turn, and what their only one publishes."""

    def __init__(self, document: bytes | None = ONE) -> None:
        self.clock = StillClock()
        self.published = Published(document)
        self.issuers = Issuers(self.clock, self.published.fetch_of)
        self.issuers.keep([settings()], Path())

    async def ok(self, bearer: str = OLD) -> bool:
        try:
            return (await self.issuers.verified(bearer)).tenant == "acme"
        except TokenRefused:
            return False


async def test_keys_are_read_once_and_a_signature_is_checked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, checked = Seen(), 0

    def counted(*args: object) -> object:
        nonlocal checked
        checked += 1
        return verify(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "verify", counted)
    for _ in range(5):
        assert await seen.ok()
    assert (seen.published.read, checked) == (1, 1)


async def test_whoever_comes_at_once_shares_a_look() -> None:
    seen = Seen()
    assert all(await asyncio.gather(*(seen.ok() for _ in range(20))))
    assert seen.published.read == 1


async def test_one_who_leaves_takes_the_look_from_nobody() -> None:
    seen = Seen()
    first = asyncio.create_task(seen.ok())
    second = asyncio.create_task(seen.ok())
    await asyncio.sleep(0)
    first.cancel()
    assert await second


async def test_a_key_that_is_taken_out_stops_working_by_the_next_refresh() -> None:
    seen = Seen()
    assert await seen.ok()
    seen.published.document = TWO
    seen.clock.pass_s(299)
    assert await seen.ok()
    seen.clock.pass_s(1)
    assert not await seen.ok()
    assert await seen.ok(NEW)
    assert seen.published.read == 2


async def test_a_key_that_is_new_is_looked_for_but_not_more_often_than_every_10_s() -> None:
    seen = Seen()
    assert await seen.ok()
    for _ in range(20):
        assert not await seen.ok(NEW)
    assert seen.published.read == 1  # the last look was just now
    seen.published.document = BOTH
    seen.clock.pass_s(10)
    assert await seen.ok(NEW)
    assert await seen.ok()
    for i in range(20):
        with pytest.raises(UnknownKey):
            await seen.issuers.verified(token(headers={"kid": f"made up {i}"}))
    assert seen.published.read == 2


async def test_while_nobody_answers_known_keys_go_on_for_a_while() -> None:
    seen = Seen()
    assert await seen.ok()
    seen.published.document = None
    with capture_logs() as log:
        for _ in range(35):
            seen.clock.pass_s(100)
            assert await seen.ok()
            await asyncio.sleep(0)
        seen.clock.pass_s(100)
        with pytest.raises(KeysUnavailable):
            await seen.issuers.verified(OLD)
        seen.clock.pass_s(100)
        seen.published.document = ONE
        with pytest.raises(KeysUnavailable):  # it may wait for no look once looks have failed
            await seen.issuers.verified(OLD)
        await asyncio.sleep(0.01)
        assert await seen.ok()
    assert [line["event"] for line in log] == ["issuer_keys_not_read", "issuer_keys_read_again"]


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b'{"keys": []}', document(jwk(RSA_KEY, use="enc"))]
)
async def test_a_broken_key_set_is_as_none(text: bytes) -> None:
    seen = Seen(text)
    with pytest.raises(KeysUnavailable):
        await seen.ok()
    seen.published.document = ONE
    seen.clock.pass_s(10)
    assert await seen.ok()
    seen.published.document = text
    seen.clock.pass_s(300)
    assert await seen.ok()


async def test_at_the_start_failed_looks_are_rationed_too() -> None:
    seen = Seen(None)
    for _ in range(20):
        with pytest.raises(KeysUnavailable):
            await seen.ok()
    assert seen.published.read == 1


async def test_what_is_remembered_of_a_token_ends_with_it() -> None:
    seen = Seen()
    short = token()
    assert await seen.ok(short)
    seen.clock.pass_s(604)
    assert await seen.ok(short)
    seen.clock.pass_s(1)
    assert not await seen.ok(short)


async def test_the_hash_is_of_the_whole_token() -> None:
    """Another signature under the same claims isn't the token that was good."""
    seen = Seen()
    assert await seen.ok()
    assert not await seen.ok(OLD.rpartition(".")[0] + ".AAAA")
    assert not await seen.ok(OLD.rpartition(".")[0] + ".")


async def test_no_more_tokens_are_remembered_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    seen = Seen()
    for i in range(10):
        assert await seen.ok(token(claims(sub=f"u{i}")))
    (issuer,) = seen.issuers._by_name.values()
    assert len(issuer._good) == 3


async def test_a_clock_that_is_set_back_has_keys_read_again_and_nothing_else() -> None:
    seen = Seen()
    assert await seen.ok()
    seen.clock.pass_s(-3)
    assert await seen.ok()


async def test_a_deployment_keeps_what_it_doesn_t_change() -> None:
    seen = Seen()
    assert await seen.ok()
    seen.issuers.keep([settings(), settings(issuer="https://other")], Path())
    assert await seen.ok()
    assert seen.published.read == 1
    seen.issuers.keep([settings(audiences=("another",))], Path())
    assert not await seen.ok()
    assert seen.published.read == 2
    seen.issuers.keep([], Path())
    with pytest.raises(TokenRefused, match="no issuer is configured"):
        await seen.issuers.verified(OLD)


async def test_an_issuer_is_chosen_by_its_exact_name_and_answers_for_itself_alone() -> None:
    seen = Seen()
    other = settings(issuer=ISSUER + "/two", tenant="globex")
    seen.issuers.keep([settings(), other], Path())
    assert (await seen.issuers.verified(token(claims(iss=other.issuer)))).tenant == "globex"
    for name in (ISSUER + "/", ISSUER[:-1], ISSUER + "/three", ""):
        assert not await seen.ok(token(claims(iss=name)))
