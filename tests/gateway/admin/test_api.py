"""The admin API: what it tells, whom it refuses, and how."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.admin import reads
from gateway.identity import keys
from gateway.store.connection import DATABASE, open_for_writing
from runtime.deploy.running import Sign, Trouble
from tests.gateway.admin.console import Console, console, is_problem

ROUTES = [
    ("GET", "/admin/v1/status"),
    ("GET", "/admin/v1/hosts"),
    ("GET", "/admin/v1/hosts/host-1/pages"),
    ("GET", "/admin/v1/metrics"),
    ("GET", "/admin/v1/models"),
    ("GET", "/admin/v1/models/@cf/echo/faults"),
    ("POST", "/admin/v1/models/@cf/echo/faults/flip-bit"),
    ("POST", "/admin/v1/models/@cf/echo/restart"),
    ("GET", "/admin/v1/requests"),
    ("GET", "/admin/v1/tail"),
    ("GET", "/admin/v1/tenants"),
    ("POST", "/admin/v1/tenants"),
    ("PATCH", "/admin/v1/tenants/acme"),
    ("POST", "/admin/v1/tenants/acme/keys"),
    ("DELETE", "/admin/v1/keys/key_0"),
    ("PUT", "/admin/v1/tenants/acme/limits"),
    ("POST", "/admin/v1/tenants/acme/budgets"),
    ("POST", "/admin/v1/requests/ur_0/corrections"),
    ("GET", "/admin/v1/audit"),
    ("POST", "/admin/v1/leaks"),
    ("GET", "/admin/v1/usage/export"),
    ("GET", "/admin/v1/usage/export/manifest"),
    ("GET", "/admin/v1/nowhere"),
    ("GET", "/"),
]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Console]:
    async with console(tmp_path) as found:
        yield found


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer x", "Basic {key}", "Bearer {tenant}", "Bearer {other}", "{key}"],
)
async def test_nothing_is_told_without_the_key(
    desk: Console, method: str, path: str, authorization: str
) -> None:
    """Not even which routes there are; and a tenant's key is none."""
    header = authorization.format(
        key=desk.key, tenant=desk.tenant_key, other=keys.mint(keys.ADMIN_PREFIX)
    )
    async with desk.client(authorization=header) as http:
        answer = await http.request(method, path)
    body = is_problem(answer, "wrong-key")
    assert answer.headers["www-authenticate"].startswith("Bearer realm=")
    assert "access-control-allow-origin" not in answer.headers
    assert "admin-key" in body["detail"]
    assert desk.restarted == []


async def test_hosts_and_models(desk: Console) -> None:
    async with desk.client() as http:
        hosts = (await http.get("/admin/v1/hosts")).json()
        models = (await http.get("/admin/v1/models")).json()
    assert (hosts["object"], hosts["deployment"]) == ("list", 3)
    (host,) = hosts["data"]
    assert (host["id"], host["state"], host["rss_bytes"]) == ("host-1", "ready", 1000)
    ours, attached = models["data"]
    assert (ours["state"], ours["waiting"], ours["failures"], ours["reason"]) == (
        "ready",
        2,
        1,
        "x",
    )
    assert attached == {
        "object": "model",
        "id": "far",
        "state": "attached",
        "url": "http://far.example/v1",
        "is_down": False,
        "reason": "",
        "failed_at": None,
        "servers": [
            {
                "url": "http://far.example/v1",
                "is_down": False,
                "breaker": "closed",
                "guard": "",
                "reason": "",
                "failed_at": None,
            }
        ],
    }
    assert hosts["attached"] == [{k: v for k, v in attached.items() if k != "object"}]


async def test_what_went_wrong_with_an_attached_server_is_told_with_its_time(
    desk: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sign = Sign(desk.settings.state_dir, "gateway", dev=False)
    url, reason = "http://far.example/v1", "it answers 401"
    sign.tell({"far": (Trouble(url=url, reason=reason, at=17.5, is_down=False),)})
    async with desk.client() as http:
        (server,) = (await http.get("/admin/v1/hosts")).json()["attached"]
    sign.close()
    sign.tell({})
    assert (server["id"], server["reason"], server["failed_at"]) == ("far", "it answers 401", 17.5)


async def test_a_restart_reaches_the_node_with_the_models_whole_name(desk: Console) -> None:
    async with desk.client() as http:
        answer = await http.post("/admin/v1/models/@cf/echo/restart")
        assert (answer.status_code, answer.json()["model"]) == (202, "@cf/echo")
        is_problem(await http.post("/admin/v1/models/nobody/restart"), "model-not-found")
        far = is_problem(await http.post("/admin/v1/models/far/restart"), "model-not-found")
        assert "attached (http://far.example/v1)" in far["detail"]
        wrong = await http.get("/admin/v1/models/@cf/echo/restart")
        is_problem(wrong, "method-not-allowed")
        assert wrong.headers["allow"] == "POST"
    assert desk.restarted == ["@cf/echo"]


async def test_status(desk: Console) -> None:
    async with desk.client() as http:
        found = (await http.get("/admin/v1/status")).json()
    assert (found["command"], found["pid"], found["name"]) == ("dev", 1, "bulkhead")
    assert found["uptime_s"] >= 0
    assert found["deployment"] is None
    assert found["processes"] == []
    assert found["certificates"] == {"server": None, "admin": None, "node": None}
    assert found["state"] == str(desk.settings.state_dir)


async def test_without_a_node_hosts_are_503_and_the_rest_answers(tmp_path: Path) -> None:
    async with console(tmp_path, with_node=False) as desk, desk.client() as http:
        for path in ("hosts", "models"):
            answer = await http.get(f"/admin/v1/{path}")
            is_problem(answer, "node-unreachable")
            assert answer.headers["retry-after"] == "1"
        is_problem(await http.post("/admin/v1/models/@cf/echo/restart"), "node-unreachable")
        assert (await http.get("/admin/v1/status")).status_code == 200
        assert (await http.get("/admin/v1/tenants")).status_code == 200


async def test_without_a_store_what_reads_it_is_503(tmp_path: Path) -> None:
    async with console(tmp_path, with_node=False) as desk, desk.client() as http:
        (desk.settings.state_dir / DATABASE).unlink()
        is_problem(await http.get("/admin/v1/requests"), "store-unreachable")
        is_problem(await http.get("/admin/v1/tenants"), "store-unreachable")
        is_problem(await http.get("/admin/v1/usage/export"), "store-unreachable")


async def test_tenants_have_names_and_key_counts_and_no_secret(desk: Console) -> None:
    async with desk.client() as http:
        answer = await http.get("/admin/v1/tenants")
    (acme,) = answer.json()["data"]
    assert (acme["name"], acme["live_keys"], acme["demo"]) == ("acme", 1, False)
    assert acme["created_at"].endswith("Z")
    assert desk.tenant_key not in answer.text


async def test_requests_are_pages_of_the_ledger_newest_first(desk: Console) -> None:
    fill(desk, 25)
    async with desk.client() as http:
        seen: list[str] = []
        query: dict[str, str] = {"limit": "10"}
        while True:
            page = (await http.get("/admin/v1/requests", params=query)).json()
            assert page["first_id"] == page["data"][0]["id"]
            seen += [row["request_id"] for row in page["data"]]
            if not page["has_more"]:
                break
            query["after"] = page["last_id"]
    assert seen == [f"req_{n:02}" for n in reversed(range(25))]
    database = desk.settings.state_dir / DATABASE
    newest, before = (await reads.requests(database, reads.NEWEST, 2))["data"]
    assert (newest["state"], newest["ended_at"], newest["duration_ms"]) == ("open", None, None)
    assert (before["outcome"], before["tenant_name"], before["model"]) == ("completed", "acme", "m")
    assert (before["ttft_ms"], before["duration_ms"], before["streamed"]) == (250.0, 1000.0, True)


async def test_an_empty_page(desk: Console) -> None:
    async with desk.client() as http:
        page = (await http.get("/admin/v1/requests")).json()
    assert page == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(
    "query",
    [
        "requests?limit=0",
        "requests?limit=101",
        "requests?limit=x",
        "requests?limit=007",
        "requests?limit=000000001999999999",
        "requests?limit=5&limit=5",
        "requests?limit=",
        "requests?after=",
        "requests?after=x",
        "requests?after=~",
        "requests?after=ur_01%0A",
        "requests?after=%ff",
        "requests?after=ur_01&after=ur_02",
        "requests?limit=٣",
        "requests?before=1",
        "hosts?x=1",
        "status?x=1",
        "tenants?x",
        "tail?model=a&model=b",
        "tail?search=",
        "tail?sampling_rate=0_1",
        "tail?sampling_rate=%201",
        "tail?sampling_rate=٣",
        "tail?status=bad",
        "tail?colour=red",
        "tail?sampling_rate=0",
        "tail?sampling_rate=2",
        "tail?sampling_rate=nan",
    ],
)
async def test_a_wrong_parameter_is_named(desk: Console, query: str) -> None:
    async with desk.client() as http:
        body = is_problem(await http.get(f"/admin/v1/{query}"), "invalid-parameter")
    name = query.partition("?")[2].partition("=")[0]
    assert body["detail"].startswith(f"{name}:")


async def test_an_unknown_route_with_the_key_is_404(desk: Console) -> None:
    async with desk.client() as http:
        is_problem(await http.get("/admin/v1/nowhere"), "route-not-found")
        is_problem(await http.get("/v1/models"), "route-not-found")


async def test_a_bug_is_500_without_details(desk: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: object) -> None:
        raise ZeroDivisionError("canary-detail")

    monkeypatch.setattr(reads, "tenants", broken)
    async with desk.client() as http:
        answer = await http.get("/admin/v1/tenants")
    is_problem(answer, "internal-error")
    assert "canary" not in answer.text


async def test_no_page_can_ask_or_read_whatever_tenants_list(desk: Console) -> None:
    """CORS is for tenants' own pages; a page has no business with an operator's key."""
    page = {"origin": "https://app.acme.test", "access-control-request-method": "GET"}
    async with desk.client(**page) as http:
        for method in ("OPTIONS", "GET"):
            answer = await http.request(method, "/admin/v1/hosts")
            assert not [name for name in answer.headers if name.startswith("access-control")]


def fill(desk: Console, count: int) -> None:
    """So many requests a second apart, the last of them still open."""
    with closing(open_for_writing(desk.settings.state_dir / DATABASE)) as db:
        tenant, key = db.execute("SELECT tenant_id, id FROM api_key").fetchone()
        for n in range(count):
            insert(db, n, tenant, key)
            if n < count - 1:
                opened = n * 1_000_000
                db.execute(
                    "UPDATE usage_record SET state = 'settled', seq = rowid, outcome = 'completed',"
                    " billable = 0, bill_reason = 'x', settled_at = ?1, ended_at = ?1,"
                    " first_token_at = ?2,"
                    " usage_source = 'none', amount_pico = 0, status_code = 200 WHERE id = ?3",
                    (opened + 1_000_000, opened + 250_000, f"ur_{n:02}"),
                )


def insert(db: sqlite3.Connection, n: int, tenant: str, key: str) -> None:
    db.execute(
        "INSERT INTO usage_record (id, request_id, tenant_id, api_key_id, operation, model_id,"
        " model_revision, streamed, boot_id, currency, input_price_pico, cached_input_price_pico,"
        " output_price_pico, opened_at, charge_at, state)"
        " VALUES (?, ?, ?, ?, 'chat', 'm', '', 1, 'b', 'USD', 0, 0, 0, ?, ?, 'open')",
        (f"ur_{n:02}", f"req_{n:02}", tenant, key, n * 1_000_000, n * 1_000_000),
    )
