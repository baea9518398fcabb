"""Who is calling: a key, a token of a key's, or one of an issuer's; or one and the same refusal."""

from __future__ import annotations

import asyncio
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from structlog.testing import capture_logs

from gateway.errors import StoreDown, Unauthorized
from gateway.identity import keys
from gateway.identity.projects import archive_project, create_project
from gateway.identity.scopes import ALL
from gateway.identity.tenants import disable_tenant, enable_tenant, set_tenant
from gateway.identity.tokens import Grant
from gateway.store.directory import BLIND_AFTER_US
from gateway.store.principal import Principal
from tests.gateway.identity import signing
from tests.gateway.identity.clock import NOON_S
from tests.gateway.identity.door import PEPPER, Door
from tests.gateway.identity.signing import RSA_KEY, document, jwk, settings


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_a_live_key_is_its_principal(door: Door, scheme: str) -> None:
    found = await door.auth.principal(f"{scheme} {door.secret}")
    assert found == Principal(door.key.tenant_id, "acme", door.key.id)
    assert await door.auth.principal(f"{scheme}  {door.secret} ") == found


def bad_headers(secret: str) -> dict[str, str]:
    flipped = secret[:-1] + ("a" if secret[-1] != "a" else "b")
    return {
        "no secret": "Bearer",
        "an empty one": "Bearer ",
        "no scheme": secret,
        "another scheme": f"Basic {secret}",
        "another case": f"Bearer {secret.swapcase()}",
        "a changed character": f"Bearer {flipped}",
        "a character less": f"Bearer {secret[:-1]}",
        "a character more": f"Bearer {secret}a",
        "two keys": f"Bearer {secret} {secret}",
        "a comma": f"Bearer {secret},",
        "quotes": f'Bearer "{secret}"',
        "SQL": "Bearer ' OR 1=1--",
        "a NUL": f"Bearer {secret}\0",
        "latin-1": "Bearer bh_live_é",
        "other digits": f"Bearer {secret[:8]}" + "\uff11" * 38,
        "well-formed, of nobody": f"Bearer {keys.mint()}",
        "long": "Bearer " + "a" * 100_000,
        "a JWT": "Bearer eyJhbGciOiJub25lIn0.e30.",
    }


@pytest.mark.parametrize("name", bad_headers("x" * 46))
async def test_every_bad_key_gets_the_same_answer(door: Door, name: str) -> None:
    header = bad_headers(door.secret)[name]
    with pytest.raises(Unauthorized) as told:
        await door.auth.principal(header)
    with pytest.raises(Unauthorized) as usual:
        await door.auth.principal("Bearer x")
    assert told.value.body() == usual.value.body()
    assert told.value.code == "invalid_api_key"
    assert told.value.row.status == 401


async def test_no_key_at_all_is_told_as_such(door: Door) -> None:
    with pytest.raises(Unauthorized, match="no API key was sent") as told:
        await door.auth.principal("")
    assert told.value.code == "missing_api_key"


async def test_a_key_under_another_pepper_is_nobody_s(door: Door) -> None:
    other = door.other(pepper=b"other")
    with pytest.raises(Unauthorized):
        await other.principal(f"Bearer {door.secret}")


async def test_a_revoked_key_is_refused_once_the_directory_has_looked(door: Door) -> None:
    door.revoke(door.key)
    await door.directory.refresh_if_changed()
    with pytest.raises(Unauthorized):
        await door.auth.principal(f"Bearer {door.secret}")


async def test_a_blind_gateway_says_503_to_every_well_formed_key(door: Door) -> None:
    """A key may have been revoked meanwhile; and a wrong key must not learn that it is wrong."""
    door.lose_store()
    door.clock.us += BLIND_AFTER_US
    await door.auth.principal(f"Bearer {door.secret}")
    door.clock.us += 1
    for secret in (door.secret, keys.mint()):
        with pytest.raises(StoreDown) as told:
            await door.auth.principal(f"Bearer {secret}")
        assert told.value.row.status == 503
    with pytest.raises(Unauthorized):
        await door.auth.principal("Bearer nonsense")


async def test_after_a_pause_whoever_comes_waits_for_one_look(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process or its machine: nobody could look, and nothing is wrong with the store."""
    key, revoked = door.add()
    await door.directory.refresh_if_changed()
    token, looks = await minted(door, door.secret), 0
    refresh = door.directory.refresh_if_changed

    async def counted() -> bool:
        nonlocal looks
        looks += 1
        return await refresh()

    monkeypatch.setattr(door.directory, "refresh_if_changed", counted)
    door.clock.us += BLIND_AFTER_US + 1
    door.revoke(key)
    bearers = [door.secret, token, revoked] * 20
    answers = await asyncio.gather(
        *(door.auth.principal(f"Bearer {bearer}") for bearer in bearers), return_exceptions=True
    )
    known = [isinstance(answer, Principal) for answer in answers]
    assert known == [True, True, False] * 20
    assert looks <= 2, "one for the pause, one for the key that is gone"
    assert all(isinstance(answer, Unauthorized) for answer in answers[2::3])


async def test_before_the_first_look_nobody_is_believed(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.lose_store()
    with pytest.raises(StoreDown):
        await door.auth.principal(f"Bearer {door.secret}")


async def test_a_domain_is_a_stable_pseudonym_of_the_tenant(door: Door) -> None:
    """The same for each key and on each replica; another for each tenant; it names nobody."""
    acme = Principal("tn_acme", "acme", "key_1")
    again = Principal("tn_acme", "renamed", "key_2")
    other = Principal("tn_other", "acme", "key_3")
    replica = door.other(pepper=b"x")
    domain = door.auth.domain(acme)
    assert domain == door.auth.domain(again) == door.auth.domain(acme) == replica.domain(acme)
    assert domain != door.auth.domain(other)
    assert domain != door.other(domain=b"y").domain(acme)
    assert "acme" not in domain
    assert "tn_" not in domain
    assert len(domain) == 24
    assert domain.isalnum()
    assert domain == domain.lower()


async def refused(door: Door, bearer: str) -> str:
    """The reason of a refusal that looks like any other."""
    with pytest.raises(Unauthorized) as told:
        await door.auth.principal(f"Bearer {bearer}")
    with pytest.raises(Unauthorized) as usual:
        await door.auth.principal("Bearer x")
    assert told.value.body() == usual.value.body()
    return told.value.reason


async def test_a_principal_has_all_that_a_key_may(door: Door) -> None:
    with door.store() as db:
        set_tenant(db, "acme", timezone="Europe/Paris", weight=3)
        project = create_project(db, "acme", "search")
    end = door.clock.us + 10
    key, secret = door.add(
        scopes=["inference", "keys:write"],
        models=["m", "@cf/n"],
        networks=["::ffff:10.0.0.0/104", "2001:db8::/32"],
        expires_at=end,
        project="search",
    )
    found = await door.auth.principal(f"Bearer {secret}")
    assert found == Principal(
        door.key.tenant_id,
        "acme",
        key.id,
        project_id=project.id,
        scopes=frozenset({"inference", "keys:write"}),
        models=frozenset({"m", "@cf/n"}),
        networks=(ip_network("10.0.0.0/8"), ip_network("2001:db8::/32")),
        expires_at=end,
        weight=3,
        timezone="Europe/Paris",
    )
    assert keys.digest(PEPPER, secret).startswith(found.secret)
    assert str(found.secret) not in repr(found)


async def test_a_key_ends_at_its_very_microsecond(door: Door) -> None:
    _, secret = door.add(expires_at=door.clock.us + 10)
    door.clock.us += 9
    await door.auth.principal(f"Bearer {secret}")
    door.clock.us += 1
    assert await refused(door, secret) == "expired"


async def test_both_secrets_of_a_rotated_key_are_one_key_until_the_grace_is_over(
    door: Door,
) -> None:
    new = door.rotate(door.key, grace_s=60)
    await door.directory.refresh_if_changed()
    for secret in (door.secret, new):
        assert (await door.auth.principal(f"Bearer {secret}")).key_id == door.key.id
    await door.pass_s(60)
    assert await refused(door, door.secret) == "expired"
    assert (await door.auth.principal(f"Bearer {new}")).key_id == door.key.id
    door.revoke(door.key)
    await door.directory.refresh_if_changed()
    assert await refused(door, new) == "no live key"


async def test_without_grace_every_secret_from_before_ends(door: Door) -> None:
    second = door.rotate(door.key, grace_s=3600)
    third = door.rotate(door.key, grace_s=0)
    await door.directory.refresh_if_changed()
    for secret in (door.secret, second):
        assert await refused(door, secret) == "no live key"
    assert (await door.auth.principal(f"Bearer {third}")).key_id == door.key.id


async def test_grace_outlives_no_key(door: Door) -> None:
    key, old = door.add(expires_at=door.clock.us + 5_000_000)
    door.rotate(key, grace_s=3600)
    await door.directory.refresh_if_changed()
    await door.pass_s(5)
    assert await refused(door, old) == "expired"


@pytest.mark.parametrize("how", ["disabled", "archived"])
async def test_a_disabled_tenant_s_keys_and_an_archived_project_s_are_nobody_s(
    door: Door, how: str
) -> None:
    with door.store() as db:
        create_project(db, "acme", "search")
    _, secret = door.add(project="search")
    await door.auth.principal(f"Bearer {secret}")
    with door.store() as db:
        if how == "disabled":
            disable_tenant(db, "acme")
        else:
            archive_project(db, "acme", "search")
    await door.directory.refresh_if_changed()
    assert await refused(door, secret) == "no live key"
    with door.store() as db:
        enable_tenant(db, "acme")
    await door.directory.refresh_if_changed()
    if how == "disabled":
        await door.auth.principal(f"Bearer {secret}")


@pytest.mark.parametrize("column", ["models", "networks"])
async def test_a_key_whose_row_can_t_be_read_is_refused_and_no_other(
    door: Door, column: str
) -> None:
    _, secret = door.add()
    with door.store() as db:
        db.execute(f"UPDATE api_key SET {column} = '[1]' WHERE name = 'more'")
    with capture_logs() as log:
        assert await refused(door, secret) == "no live key"
    assert [line["event"] for line in log] == ["key_unreadable"]
    await door.auth.principal(f"Bearer {door.secret}")


async def test_an_admin_key_may_do_all(door: Door) -> None:
    _, secret = door.add(scopes=["admin"])
    assert (await door.auth.principal(f"Bearer {secret}")).scopes == ALL


async def minted(door: Door, secret: str, ttl: int = 60, **narrower: Any) -> str:
    key = await door.auth.principal(f"Bearer {secret}")
    grant = {"scopes": frozenset({"inference"})} | narrower
    return door.auth.mint(Grant("tk_1", key.secret, door.clock.us // 1_000_000 + ttl, **grant))


async def test_a_minted_token_is_its_key_s_with_less(door: Door) -> None:
    found = await door.auth.principal(f"Bearer {await minted(door, door.secret)}")
    assert (found.key_id, found.token_id) == (door.key.id, "tk_1")
    assert found.scopes == {"inference"}
    await door.pass_s(59.999999)
    token = await minted(door, door.secret, ttl=1)
    await door.auth.principal(f"Bearer {token}")
    await door.pass_s(1)
    assert await refused(door, token) == "expired"


async def test_a_token_ends_with_the_secret_that_minted_it(door: Door) -> None:
    token = await minted(door, door.secret, ttl=3600)
    new = door.rotate(door.key, grace_s=60)
    await door.directory.refresh_if_changed()
    fresh = await minted(door, new, ttl=3600)
    await door.auth.principal(f"Bearer {token}")
    await door.pass_s(60)
    assert await refused(door, token) == "expired"
    await door.auth.principal(f"Bearer {fresh}")
    door.revoke(door.key)
    await door.directory.refresh_if_changed()
    assert await refused(door, fresh) == "the token's key is not live"


async def test_another_installation_s_token_is_nobody_s(door: Door) -> None:
    token = await minted(door, door.secret)
    with pytest.raises(Unauthorized):
        await door.other(tokens=b"other").principal(f"Bearer {token}")
    for changed in (token[:-1], token + "A", token.upper(), "bh_tok_", "bh_tok_.", token[7:]):
        await refused(door, changed)


async def test_a_blind_gateway_says_503_to_tokens_too(door: Door) -> None:
    token = await minted(door, door.secret)
    door.published.document = document(jwk(RSA_KEY))
    door.issuers.keep([settings()], Path())
    foreign = signing.token()
    door.lose_store()
    door.clock.us += BLIND_AFTER_US + 1
    for bearer in (token, foreign):
        with pytest.raises(StoreDown):
            await door.auth.principal(f"Bearer {bearer}")


async def test_an_issuer_s_token_speaks_for_its_tenant(door: Door) -> None:
    door.published.document = document(jwk(RSA_KEY))
    door.issuers.keep([settings(scopes=("inference",))], Path())
    found = await door.auth.principal(f"Bearer {signing.token()}")
    assert (found.tenant_id, found.key_id) == (door.key.tenant_id, None)
    assert found.subject == f"{signing.ISSUER}|u1"
    assert found.scopes == {"inference"}
    assert found.expires_at == (NOON_S + 605) * 1_000_000
    await door.pass_s(605)
    assert await refused(door, signing.token()) == "it has expired"


async def test_an_issuer_s_token_for_no_live_tenant_is_refused(door: Door) -> None:
    door.published.document = document(jwk(RSA_KEY))
    door.issuers.keep([settings(tenant="globex")], Path())
    told = "the issuer's token is for no live tenant"
    assert await refused(door, signing.token()) == told
    door.issuers.keep([settings()], Path())
    await door.auth.principal(f"Bearer {signing.token()}")
    with door.store() as db:
        disable_tenant(db, "acme")
    await door.directory.refresh_if_changed()
    assert await refused(door, signing.token()) == told


async def test_an_issuer_whose_keys_can_t_be_had_is_503(door: Door) -> None:
    """Its tokens may be good."""
    door.issuers.keep([settings()], Path())
    with pytest.raises(StoreDown) as told:
        await door.auth.principal(f"Bearer {signing.token()}")
    assert "canary" not in told.value.message
    assert await refused(door, signing.token(signing.claims(iss="https://other"))) == (
        "iss is no issuer of ours"
    )


async def test_a_principal_is_still_who_it_was_until_anything_of_it_changes(door: Door) -> None:
    _, secret = door.add(expires_at=door.clock.us + 60_000_000)
    found = await door.auth.principal(f"Bearer {secret}")
    assert door.auth.is_still(found)
    door.clock.us += BLIND_AFTER_US + 1
    assert not door.auth.is_still(found)  # nobody knows
    await door.pass_s(0)
    assert door.auth.is_still(found)
    await door.pass_s(60)
    assert not door.auth.is_still(found)
    found = await door.auth.principal(f"Bearer {door.secret}")
    token = await door.auth.principal(f"Bearer {await minted(door, door.secret)}")
    door.published.document = document(jwk(RSA_KEY))
    door.issuers.keep([settings()], Path())
    with_issuer = signing.token(signing.claims(exp=NOON_S + 300))
    foreign = await door.auth.principal(f"Bearer {with_issuer}")
    assert all(map(door.auth.is_still, (found, token, foreign)))
    door.revoke(door.key)
    await door.directory.refresh_if_changed()
    assert not any(map(door.auth.is_still, (found, token)))
    foreign = await door.auth.principal(f"Bearer {with_issuer}")
    assert door.auth.is_still(foreign)
    await door.pass_s(300)
    assert not door.auth.is_still(foreign)
    with door.store() as db:
        disable_tenant(db, "acme")
    await door.directory.refresh_if_changed()
    assert not door.auth.is_still(foreign)


@pytest.mark.parametrize(
    "scheme", ["", "Bearer ", "Bearer bh_live_", "Bearer bh_tok_", "Bearer e."]
)
def test_no_header_raises_anything_but_a_refusal(tmp_path: Path, scheme: str) -> None:
    """What arrives as bytes is latin-1 here."""
    door = Door(tmp_path)
    door.published.document = document(jwk(RSA_KEY))
    door.issuers.keep([settings()], Path())
    with asyncio.Runner() as runner:
        runner.run(door.directory.refresh_if_changed())

        @given(st.text(st.characters(max_codepoint=255), max_size=80))
        def refused_whatever_it_is(text: str) -> None:
            with pytest.raises(Unauthorized):
                runner.run(door.auth.principal(scheme + text))

        refused_whatever_it_is()
