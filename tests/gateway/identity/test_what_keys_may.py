"""What a key may, over a real gateway: scopes, models, addresses, tokens; what is written down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import v1
from gateway.identity import scopes
from gateway.identity.api_keys import Key, KeyTerms, create_key, list_keys, revoke_key, rotate_key
from gateway.identity.projects import create_project
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.sql import Connection
from runtime import keyring
from tests.gateway.front import BODY, CHAT, MODEL, USAGE, Gateway, gateway
from tests.gateway.identity.signing import RSA_KEY, claims, document, jwk, token
from tests.runtime.upstream import Exchange

TWO_MODELS = """
[server]
trusted_proxies = ["unix", "10.0.0.0/8"]

[[models]]
id = "@cf/there"
aliases = ["there"]
engine = "openai"
url = "{url}"
cache = "salted"

[[models]]
id = "@cf/other"
engine = "openai"
url = "{url}"
cache = "salted"

[[tenants]]
name = "acme"
origins = ["https://app.example"]

[[issuers]]
issuer = "https://id.example.com/realm"
audiences = ["bulkhead"]
jwks_file = "keys.json"
tenant_claim = "org"
scopes = ["inference", "keys:write"]
scopes_claim = "scope"
"""


async def whole(exchange: Exchange) -> None:
    message = {"role": "assistant", "content": "ho"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    await exchange.reply_json(200, {"choices": choices, "usage": USAGE})


class Front:
    """A gateway with two models and an issuer, and keys made as they are needed."""

    def __init__(self, gate: Gateway, folder: Path) -> None:
        self.gate, self.folder = gate, folder
        self.pepper = keyring.load(folder / "state").derive("key-pepper")

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Connection]:
        """What is changed in here is known when it's left."""
        with closing(open_for_writing(self.gate.env.database)) as db:
            yield db
        await self.gate.env.directory.refresh_if_changed()

    async def key(self, **terms: Any) -> tuple[Key, dict[str, str]]:
        async with self.store() as db:
            key, secret = create_key(db, "acme", "made", self.pepper, KeyTerms(**terms))
        return key, bearer(secret)

    async def ask(self, headers: dict[str, str], model: str = MODEL) -> httpx.Response:
        return await self.gate.http.post(CHAT, json=BODY | {"model": model}, headers=headers)

    async def mint(self, headers: dict[str, str], **body: Any) -> httpx.Response:
        return await self.gate.http.post("/v1/tokens", json=body, headers=headers)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@asynccontextmanager
async def front(folder: Path) -> AsyncIterator[Front]:
    (folder / "keys.json").write_bytes(document(jwk(RSA_KEY)))
    async with gateway(folder, whole, TWO_MODELS) as gate:
        yield Front(gate, folder)


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


NEEDS = {
    "/v1/chat/completions": scopes.INFERENCE,
    "/v1/completions": scopes.INFERENCE,
    "/v1/models": scopes.MODELS_READ,
    f"/v1/models/{MODEL}": scopes.MODELS_READ,
    f"/v1/models/{MODEL}/schema": scopes.MODELS_READ,
    f"/v1/models/{MODEL}/prices": scopes.MODELS_READ,
    "/v1/budgets": scopes.USAGE_READ,
    "/v1/limits": scopes.USAGE_READ,
    "/v1/usage": scopes.USAGE_READ,
    "/v1/usage/export": scopes.USAGE_READ,
    "/v1/usage/export/manifest": scopes.USAGE_READ,
    "/v1/tokens": scopes.KEYS_WRITE,
    "/v1/whoami": None,
}


async def test_every_route_needs_its_scope_and_no_other(tmp_path: Path) -> None:
    assert NEEDS.keys() >= v1.ROUTES.keys() - {"/v1/openapi.json"}  # which is anybody's
    async with front(tmp_path) as door:
        for scope in sorted(scopes.ALL):
            _, headers = await door.key(scopes=[scope])
            for path, needed in NEEDS.items():
                method = v1.ROUTES.get(path, ("GET", None))[0]
                answer = await door.gate.http.request(method, path, headers=headers, content=b"{")
                may = scope == "admin" or needed in (scope, None)
                assert (answer.status_code == 403) == (not may), (scope, path)
                if not may:
                    error = answer.json()["error"]
                    assert (error["type"], error["code"]) == ("permission_error", "missing_scope")
                    assert repr(needed) in error["message"]
        assert door.gate.server.asked == []


async def test_a_model_that_isn_t_the_key_s_is_as_one_that_there_isn_t(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        _, headers = await door.key(models=["@cf/other"])
        listed = (await door.gate.http.get("/v1/models", headers=headers)).json()["data"]
        assert [model["id"] for model in listed] == ["@cf/other"]
        for name in (MODEL, "there", "@cf/nowhere"):
            for answer in (
                await door.ask(headers, name),
                await door.gate.http.get(f"/v1/models/{name}", headers=headers),
                await door.gate.http.get(f"/v1/models/{name}/schema", headers=headers),
                await door.gate.http.get(f"/v1/models/{name}/prices", headers=headers),
            ):
                error = answer.json()["error"]
                told = (
                    error["message"]
                    .replace(repr(name), "NAME")
                    .replace(repr(f"{name}/schema"), "NAME")
                )
                assert answer.status_code == 404
                assert told.startswith("there is no model NAME for this key")
        assert (await door.ask(headers, "@cf/other")).status_code == 200
        assert [row["model_id"] for row in door.gate.rows()] == ["@cf/other"]


async def test_a_model_may_be_listed_by_any_of_its_names(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        _, headers = await door.key(models=["there", "not there"])
        for name in (MODEL, "there"):
            assert (await door.ask(headers, name)).status_code == 200


@pytest.mark.parametrize(
    ("forwarded", "status"),
    [
        ("203.0.113.7", 200),
        ("1.1.1.1, 203.0.113.7, 10.0.0.9", 200),
        ("::ffff:203.0.113.7", 200),
        ("203.0.113.7, 198.51.100.1", 403),
        ("203.0.113.7, junk", 403),
        ("198.51.100.1", 403),
        ("", 403),
    ],
)
async def test_a_key_is_for_its_networks(tmp_path: Path, forwarded: str, status: int) -> None:
    """The test's connection is a unix socket's, which is trusted as a proxy here."""
    async with front(tmp_path) as door:
        _, headers = await door.key(networks=["203.0.113.0/24"])
        answer = await door.ask(headers | {"x-forwarded-for": forwarded})
        assert answer.status_code == status
        if status == 403:
            assert code_of(answer) == (403, "network_not_allowed")
            assert (await door.gate.requests(1))[0]["code"] == "network_not_allowed"


async def test_one_who_sends_two_keys_is_nobody(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        good = door.gate.http.headers["authorization"]
        for pair in ((good, good), (good, "Bearer x"), ("Bearer x", good)):
            headers = [("authorization", value) for value in pair]
            request = httpx.Request("GET", "http://gate/v1/whoami", headers=headers)
            assert code_of(await door.gate.http.send(request)) == (401, "invalid_api_key")
        lines = await door.gate.requests(3)
        assert {line["refused"] for line in lines} == {"sent twice"}


async def test_why_a_key_is_refused_stands_in_the_log_alone(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        key, headers = await door.key()
        async with door.store() as db:
            revoke_key(db, key.id)
        revoked = await door.ask(headers)
        nonsense = await door.ask(bearer("nonsense"))
        foreign = await door.ask(bearer(token(claims(org="acme", aud="other"))))
        assert revoked.json() == nonsense.json() == foreign.json()
        reasons = [line["refused"] for line in await door.gate.requests(3)]
        assert reasons == ["no live key", "not a key", "InvalidAudienceError"]
        for secret in (headers["authorization"][-40:], token()[-40:]):
            assert secret not in str(door.gate.log)


async def test_a_rotated_key_is_one_key_in_the_ledger_and_to_itself(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        key, old = await door.key()
        async with door.store() as db:
            _, secret = rotate_key(db, key.id, door.pepper, 3_600_000_000)
        for headers in (old, bearer(secret)):
            assert (await door.ask(headers)).status_code == 200
        assert [row["api_key_id"] for row in door.gate.rows()] == [key.id, key.id]
        told = (await door.gate.http.get("/v1/whoami", headers=old)).json()
        assert told["expires"] is not None
        told = (await door.gate.http.get("/v1/whoami", headers=bearer(secret))).json()
        assert told["expires"] is None
        assert told["key"]["hint"].endswith(secret[-4:])


async def test_when_a_key_was_last_used_is_written_once_a_minute(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        key, headers = await door.key()
        version = await door.gate.env.directory.refresh_if_changed()
        assert not version
        for address in ("203.0.113.7", "203.0.113.8", "203.0.113.9"):
            await door.ask(headers | {"x-forwarded-for": address})
        await door.gate.env.last_used.flush()
        (told,) = [one for one in keys_of(door) if one.id == key.id]
        assert told.last_used_from == "203.0.113.7"
        assert told.last_used_at is not None
        assert not await door.gate.env.directory.refresh_if_changed()  # all keys aren't read again


def keys_of(door: Front) -> list[Key]:
    with closing(open_for_reading(door.gate.env.database)) as db:
        return list_keys(db, "acme")


async def test_whoami_tells_all_that_a_key_may_and_nothing_secret(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        async with door.store() as db:
            project = create_project(db, "acme", "search")
        end = (door.gate.env.clock.now_us() // 1_000_000 + 3600) * 1_000_000
        key, headers = await door.key(
            scopes=["inference", "admin"],
            models=["@cf/other"],
            networks=["::/0", "203.0.113.7"],
            expires_at=end,
            project="search",
        )
        headers |= {"x-forwarded-for": "203.0.113.7"}
        answer = await door.gate.http.get("/v1/whoami", headers=headers)
        told = answer.json()
        assert told["key"]["id"] == key.id
        assert told["scopes"] == sorted(scopes.ALL)
        assert told["models"] == ["@cf/other"]
        assert told["networks"] == ["203.0.113.7/32", "::/0"]
        assert told["project"] == {"id": project.id, "name": "search"}
        assert told["expires"] == end // 1_000_000
        assert told["subject"] is None
        assert headers["authorization"][20:-4] not in answer.text


async def test_a_key_mints_tokens_that_may_less_and_are_recorded_as_its_own(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        key, headers = await door.key(scopes=["keys:write", "inference", "models:read"])
        answer = await door.mint(headers, ttl=60, models=["there"])
        minted = answer.json()
        assert answer.status_code == 200
        assert (minted["scopes"], minted["models"]) == (["inference"], ["there"])
        headers = bearer(minted["token"])
        assert (await door.ask(headers)).status_code == 200
        assert code_of(await door.ask(headers, "@cf/other")) == (404, "model_not_found")
        assert code_of(await door.gate.http.get("/v1/models", headers=headers))[0] == 403
        assert code_of(await door.mint(headers)) == (403, "missing_scope")
        told = (await door.gate.http.get("/v1/whoami", headers=headers)).json()
        assert told["token"] == {"id": minted["id"]}
        assert told["expires"] == minted["expires_at"]
        assert [row["api_key_id"] for row in door.gate.rows()] == [key.id]
        async with door.store() as db:
            revoke_key(db, key.id)
        assert code_of(await door.ask(headers)) == (401, "invalid_api_key")
        assert minted["token"][-40:] not in str(door.gate.log)
        assert minted["id"] in str(door.gate.log)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": 3601}, "ttl"),
        ({"ttl": 60.5}, "ttl"),
        ({"ttl": "60"}, "ttl"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["keys:write"]}, "scopes"),
        ({"scopes": ["admin"]}, "scopes"),
        ({"scopes": ["usage:read"]}, "scopes"),  # it isn't the key's
        ({"scopes": ["all"]}, "scopes"),
        ({"models": []}, "models"),
        ({"models": ["@cf/nowhere"]}, "model"),
        ({"models": ["@cf/there"]}, "model"),  # it isn't the key's
        ({"origin": "https://app.example/"}, "origin"),
        ({"origin": "https://app.example:443"}, "origin"),
        ({"origin": "*"}, "origin"),
        ({"tenant": "other"}, "tenant"),
    ],
)
async def test_a_token_may_not_be_what_its_key_may_not(
    tmp_path: Path, body: dict[str, Any], param: str
) -> None:
    async with front(tmp_path) as door:
        _, headers = await door.key(scopes=["keys:write", "inference"], models=["@cf/other"])
        answer = await door.mint(headers, **body)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["param"].startswith(param)


async def test_a_token_never_outlives_its_key(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        end = door.gate.env.clock.now_us() + 30_000_000
        _, headers = await door.key(scopes=["admin"], expires_at=end)
        minted = (await door.mint(headers, ttl=3600)).json()
        assert minted["expires_at"] == end // 1_000_000


async def test_a_token_for_one_page_is_for_no_other(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        _, headers = await door.key(scopes=["admin"])
        minted = (await door.mint(headers, origin="https://app.example")).json()
        headers = bearer(minted["token"])
        answer = await door.ask(headers | {"origin": "https://app.example"})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        for origin in ({}, {"origin": "https://evil.example"}, {"origin": "null"}):
            assert code_of(await door.ask(headers | origin)) == (403, "origin_not_allowed")


async def test_an_issuer_s_token_is_served_and_recorded_by_its_subject(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        now = door.gate.env.clock.now_us() // 1_000_000
        good = claims(iat=now, exp=now + 600, org="acme", scope="inference profile")
        headers = bearer(token(good))
        assert (await door.ask(headers)).status_code == 200
        (row,) = door.gate.rows()
        assert row["api_key_id"] is None
        assert row["subject"] == "https://id.example.com/realm|u1"
        assert row["billable"] == 1
        told = (await door.gate.http.get("/v1/whoami", headers=headers)).json()
        assert (told["key"], told["subject"]) == (None, row["subject"])
        assert told["tenant"]["name"] == "acme"
        assert code_of(await door.gate.http.get("/v1/usage", headers=headers))[0] == 403
        other = bearer(token(good | {"org": "globex"}))
        assert code_of(await door.ask(other)) == (401, "invalid_api_key")
        line = next(one for one in await door.gate.requests(2) if one.get("outcome"))
        assert line["subject"] == row["subject"]


async def test_only_a_key_mints_tokens(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        now = door.gate.env.clock.now_us() // 1_000_000
        said = claims(iat=now, exp=now + 600, org="acme", scope="inference keys:write")
        answer = await door.mint(bearer(token(said)))
        assert code_of(answer) == (403, "missing_scope")
        assert "only an API key" in answer.json()["error"]["message"]


async def test_an_answer_that_was_admitted_outlives_its_key(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        key, headers = await door.key()

        async def revoked_meanwhile(exchange: Exchange) -> None:
            async with door.store() as db:
                revoke_key(db, key.id)
            await whole(exchange)

        door.gate.server.answer = revoked_meanwhile
        assert (await door.ask(headers)).status_code == 200
        assert code_of(await door.ask(headers)) == (401, "invalid_api_key")
        (row,) = door.gate.rows()
        assert row["outcome"] == "completed"


async def test_many_callers_of_all_kinds_at_once(tmp_path: Path) -> None:
    async with front(tmp_path) as door:
        now = door.gate.env.clock.now_us() // 1_000_000
        _, admin = await door.key(scopes=["admin"])
        minted = bearer((await door.mint(admin)).json()["token"])
        foreign = bearer(token(claims(iat=now, exp=now + 600, org="acme", scope="inference")))
        bad = bearer("bh_tok_x.y")
        answers = await asyncio.gather(
            *(door.ask(headers) for headers in (admin, minted, foreign, bad) * 8)
        )
        statuses = [answer.status_code for answer in answers]
        assert statuses == [200, 200, 200, 401] * 8
        assert json.dumps(door.gate.rows()).count('"completed"') == 24
