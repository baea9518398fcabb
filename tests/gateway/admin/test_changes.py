"""What the admin API changes: each once, in one piece, with its line in the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin.changes.changing import MAX_BODY_BYTES
from gateway.identity import keys
from gateway.identity.api_keys import create_key
from gateway.identity.keys import PEPPER_LABEL
from gateway.root import keyring_of
from gateway.store.connection import DATABASE, open_for_reading, open_for_writing, transaction
from runtime import keyring
from tests.gateway.admin.console import Console, console, is_problem

TENANTS, KEYS = "/admin/v1/tenants", "/admin/v1/tenants/shop/keys"


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Console]:
    async with console(tmp_path) as found:
        keyring.load(found.settings.state_dir)
        yield found


@pytest.fixture
async def http(desk: Console) -> AsyncIterator[httpx.AsyncClient]:
    async with desk.client() as client:
        answer = await client.post(TENANTS, json={"name": "shop", "timezone": "Europe/Paris"})
        assert answer.status_code == 201
        yield client


async def entries(http: httpx.AsyncClient, **query: str) -> list[dict[str, Any]]:
    answer = await http.get("/admin/v1/audit", params=query)
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def test_a_tenant_from_its_making_to_its_pause(http: httpx.AsyncClient) -> None:
    told = (await http.get(f"{TENANTS}/shop")).json()
    assert (told["name"], told["timezone"], told["weight"]) == ("shop", "Europe/Paris", 1)
    told = (await http.patch(f"{TENANTS}/shop", json={"weight": 3, "disabled": True})).json()
    assert (told["weight"], told["timezone"]) == (3, "Europe/Paris")
    assert told["disabled_at"] is not None
    assert (await http.patch(f"{TENANTS}/shop", json={"disabled": False})).json()[
        "disabled_at"
    ] is None
    listed = (await http.get(TENANTS, params={"limit": "1"})).json()
    assert listed["has_more"] is True
    rest = (await http.get(TENANTS, params={"after": listed["last_id"]})).json()["data"]
    assert "shop" in {one["name"] for one in listed["data"] + rest}
    assert [entry["action"] for entry in await entries(http, tenant="shop")] == [
        *("tenant.enabled", "tenant.disabled", "tenant.changed", "tenant.changed"),
        "tenant.created",
    ]


async def test_another_method_is_told_all_that_the_path_takes(http: httpx.AsyncClient) -> None:
    for method, path, allow in (
        ("DELETE", f"{TENANTS}/shop", "GET, HEAD, PATCH"),
        ("PUT", TENANTS, "GET, HEAD, POST"),
        ("POST", f"{TENANTS}/shop/limits", "DELETE, GET, HEAD, PUT"),
    ):
        answer = await http.request(method, path, json={})
        assert answer.headers["allow"] == allow
        assert f"takes {allow}" in answer.json()["detail"]
        is_problem(answer, "method-not-allowed")


async def test_a_key_from_its_making_to_its_end(desk: Console, http: httpx.AsyncClient) -> None:
    """Its secret is in the answers that made it, and nowhere else."""
    project = await http.post(f"{TENANTS}/shop/projects", json={"name": "blue"})
    assert project.status_code == 201
    terms = {
        "name": "ci",
        "scopes": ["inference"],
        "models": ["echo"],
        "networks": ["10.0.0.0/8"],
        "expires_at": "2099-01-31T00:00:00Z",
        "project": "blue",
    }
    made = await http.post(KEYS, json=terms)
    assert made.status_code == 201
    key = made.json()
    assert keys.well_formed(key["secret"])
    assert key["expires_at"] == "2099-01-31T00:00:00.000000Z"
    assert (key["scopes"], key["models"], key["project"]) == (["inference"], ["echo"], "blue")
    rotated = (await http.post(f"/admin/v1/keys/{key['id']}/rotate", json={"grace_s": 60})).json()
    assert rotated["id"] == key["id"]
    assert rotated["secret"] != key["secret"]
    assert rotated["grace_until"] is not None
    ended = (await http.delete(f"/admin/v1/keys/{key['id']}")).json()
    assert ended["revoked_at"] is not None
    again = await http.post(f"/admin/v1/keys/{key['id']}/rotate")
    is_problem(again, "state-conflict")
    everything = (await http.get(KEYS)).text + str(await entries(http))
    for secret in (key["secret"], rotated["secret"]):
        assert secret not in everything
        assert secret.encode() not in (desk.settings.state_dir / DATABASE).read_bytes()
    actions = [entry["action"] for entry in await entries(http)]
    assert actions[:4] == ["key.revoked", "key.rotated", "key.created", "project.created"]


async def test_limits_and_budgets(http: httpx.AsyncClient) -> None:
    limits = f"{TENANTS}/shop/limits"
    set_ = await http.put(limits, json={"rpm": 600, "model": "@cf/echo"})
    assert (set_.json()["rpm"], set_.json()["model"]) == (600, "@cf/echo")
    assert [one["rpm"] for one in (await http.get(limits)).json()["data"]] == [600]
    cleared = await http.request("DELETE", limits, json={"model": "@cf/echo"})
    assert cleared.status_code == 204
    assert (await http.get(limits)).json()["data"] == []
    made = await http.post(f"{TENANTS}/shop/budgets", json={"limit": "12.50", "period": "daily"})
    assert made.status_code == 201
    budget = made.json()
    assert (budget["limit"], budget["period"]) == ("12.5", "daily")
    path = f"/admin/v1/budgets/{budget['id']}"
    assert (await http.patch(path, json={"limit": "20"})).json()["limit"] == "20"
    assert (await http.delete(path)).json()["archived_at"] is not None
    is_problem(await http.patch(path, json={"limit": "30"}), "state-conflict")
    actions = [entry["action"] for entry in await entries(http, tenant="shop")]
    assert actions[:5] == [
        *("budget.archived", "budget.changed", "budget.created", "limits.cleared", "limits.set")
    ]


@pytest.mark.parametrize(
    ("method", "path", "body", "problem", "words"),
    [
        ("POST", TENANTS, {"name": "shop"}, "state-conflict", "exists already"),
        ("POST", TENANTS, {"name": "a b"}, "invalid-body", "is not a tenant name"),
        ("POST", TENANTS, {}, "invalid-body", "name"),
        ("POST", TENANTS, {"name": "x", "nmae": 1}, "invalid-body", "nmae"),
        ("POST", TENANTS, {"name": 7}, "invalid-body", "$.name"),
        ("POST", TENANTS, {"name": "x", "timezone": "Mars/Base"}, "invalid-body", "time zone"),
        ("PATCH", f"{TENANTS}/none", {"weight": 1}, "not-found", "no tenant"),
        ("GET", f"{TENANTS}/none", None, "not-found", "no tenant"),
        ("POST", f"{TENANTS}/none/keys", {}, "not-found", "no tenant"),
        ("POST", KEYS, {"scopes": ["all"]}, "invalid-body", "is not a scope"),
        ("POST", KEYS, {"networks": ["10.0.0.1/8"]}, "invalid-body", ""),
        ("POST", KEYS, {"expires_at": "2099-01-31T00:00:00"}, "invalid-body", "its zone"),
        ("POST", KEYS, {"expires_at": "2001-01-31T00:00:00Z"}, "invalid-body", "future"),
        ("POST", KEYS, {"project": "none"}, "not-found", "no project"),
        ("POST", "/admin/v1/keys/key_0/rotate", {}, "not-found", "no key"),
        ("POST", "/admin/v1/keys/key_0/rotate", {"grace_s": -1}, "invalid-body", "grace_s"),
        ("DELETE", "/admin/v1/keys/key_0", None, "not-found", "no key"),
        ("PUT", f"{TENANTS}/shop/limits", {}, "invalid-body", "at least one"),
        ("PUT", f"{TENANTS}/shop/limits", {"rpm": 0}, "invalid-body", "rpm"),
        ("PUT", f"{TENANTS}/shop/limits", {"rpm": 1, "model": "x"}, "invalid-body", "no model"),
        ("PUT", f"{TENANTS}/shop/limits", {"rpm": 1, "project": "a", "key": "b"}, "invalid-body",
         "one of them"),
        ("POST", f"{TENANTS}/shop/budgets", {"limit": "much"}, "invalid-body", "limit"),
        ("POST", f"{TENANTS}/shop/budgets", {"limit": "1", "period": "yearly"}, "invalid-body",
         "period"),
        ("POST", f"{TENANTS}/shop/budgets", {"limit": "1", "project": "x"}, "not-found", "project"),
        ("PATCH", "/admin/v1/budgets/bg_0", {"limit": "1"}, "not-found", "no budget"),
        ("POST", "/admin/v1/requests/ur_0/corrections", {"reason": "x", "void": True},
         "invalid-body", "ur_0"),
        ("GET", f"{KEYS}?after=key_0", None, "invalid-parameter", "after"),
        ("GET", f"{KEYS}?limit=1000", None, "invalid-parameter", "limit"),
        ("GET", "/admin/v1/audit?after=1%27%20OR%201", None, "invalid-parameter", "after"),
    ],
)  # fmt: skip
async def test_what_can_t_be_is_told_and_changes_nothing(
    http: httpx.AsyncClient, method: str, path: str, body: Any, problem: str, words: str
) -> None:
    before = await entries(http)
    answer = await http.request(method, path, json=body)
    assert words in is_problem(answer, problem)["detail"]
    assert await entries(http) == before


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 50_000, b'"name"', b"null"])
async def test_a_body_that_is_none_is_told(http: httpx.AsyncClient, body: bytes) -> None:
    json = {"content-type": "application/json"}
    is_problem(await http.post(TENANTS, content=body, headers=json), "invalid-body")


async def test_bodies_have_a_type_and_an_end(http: httpx.AsyncClient) -> None:
    is_problem(await http.post(TENANTS, content=b"name=x"), "not-json")
    json = {"content-type": "application/json"}
    long = b" " * (MAX_BODY_BYTES + 1)
    is_problem(await http.post(TENANTS, content=long, headers=json), "body-too-large")


async def test_a_call_that_names_itself_is_made_once(
    desk: Console, http: httpx.AsyncClient
) -> None:
    """Sent again it is answered alike, secret and all; the store doesn't hold that in the clear."""
    named = {"idempotency-key": "4711"}
    first = await http.post(KEYS, json={"name": "ci"}, headers=named)
    second = await http.post(KEYS, json={"name": "ci"}, headers=named)
    assert (second.status_code, second.content) == (201, first.content)
    assert len((await http.get(KEYS)).json()["data"]) == 1
    other = await http.post(KEYS, json={"name": "another"}, headers=named)
    is_problem(other, "idempotency-key-reused")
    elsewhere = await http.post(TENANTS, json={"name": "ci"}, headers=named)
    is_problem(elsewhere, "idempotency-key-reused")
    with closing(open_for_reading(desk.settings.state_dir / DATABASE)) as db:
        ((sealed,),) = db.execute("SELECT response FROM idempotency").fetchall()
    assert first.json()["secret"].encode() not in sealed
    for bad in ("", "a b", "x" * 256, "\xe9"):
        headers = {b"idempotency-key": bad.encode("latin-1")}
        answer = await http.post(KEYS, json={}, headers=headers)
        is_problem(answer, "invalid-header")


async def test_calls_of_one_name_at_once_are_made_once(http: httpx.AsyncClient) -> None:
    named = {"idempotency-key": "together"}
    answers = await asyncio.gather(
        *(http.post(KEYS, json={"name": "ci"}, headers=named) for _ in range(10))
    )
    assert {answer.content for answer in answers} == {answers[0].content}
    assert len((await http.get(KEYS)).json()["data"]) == 1


async def test_what_was_refused_isn_t_kept(http: httpx.AsyncClient) -> None:
    """Mended, the same call may be sent again under its name."""
    named = {"idempotency-key": "mended"}
    is_problem(await http.post(f"{TENANTS}/late/keys", json={}, headers=named), "not-found")
    assert (await http.post(TENANTS, json={"name": "late"})).status_code == 201
    made = await http.post(f"{TENANTS}/late/keys", json={}, headers=named)
    assert made.status_code == 201


async def test_a_key_found_in_public_is_revoked(desk: Console, http: httpx.AsyncClient) -> None:
    """By either of its secrets; what isn't ours is said to be none."""
    key = (await http.post(KEYS, json={})).json()
    await http.post(f"/admin/v1/keys/{key['id']}/rotate", json={"grace_s": 3600})
    reports = [
        {"token": key["secret"], "type": "bulkhead", "url": "https://example.com/x", "source": "c"},
        {"token": keys.mint()},
        {"token": "' OR 1=1--"},
    ]
    told = (await http.post("/admin/v1/leaks", json=reports)).json()
    assert [one["label"] for one in told] == ["true_positive", "false_positive", "false_positive"]
    assert (await http.get(f"/admin/v1/keys/{key['id']}")).json()["revoked_at"] is not None
    newest = (await entries(http))[0]
    assert (newest["action"], newest["detail"]["url"]) == ("key.leaked", "https://example.com/x")
    assert key["secret"] not in str(await entries(http))


async def test_the_log_tells_who_it_was_and_can_t_be_changed(
    desk: Console, http: httpx.AsyncClient
) -> None:
    database = desk.settings.state_dir / DATABASE
    pepper = keyring_of(desk.settings).derive(PEPPER_LABEL)
    with closing(open_for_writing(database)) as db, transaction(db):
        create_key(db, "shop", "by itself", pepper)
    answer = await http.post(KEYS, json={"name": "by the operator"})
    found = await entries(http)
    assert [(e["actor_kind"], e["actor_id"]) for e in found[:2]] == [
        ("admin", "admin"),
        ("system", "bulkhead"),
    ]
    assert found[0]["request_id"] == answer.headers["x-request-id"]
    with closing(open_for_writing(database)) as db:
        for statement in ("UPDATE audit_log SET action = ''", "DELETE FROM audit_log"):
            with pytest.raises(Exception, match="audit"):
                db.execute(statement)


async def test_the_log_is_told_a_page_at_a_time(http: httpx.AsyncClient) -> None:
    for number in range(5):
        await http.post(f"{TENANTS}/shop/projects", json={"name": f"p{number}"})
    seen: list[str] = []
    query = {"limit": "2"}
    while True:
        page = (await http.get("/admin/v1/audit", params=query)).json()
        seen += [entry["id"] for entry in page["data"]]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == len(set(seen)) >= 6
