"""GET /v1/usage over HTTP: OpenAI's parameters, pages, and what can't be asked."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.identity.api_keys import KeyTerms, create_key
from gateway.store.connection import open_for_writing, transaction
from runtime import keyring
from tests.gateway.front import Gateway, gateway, stream_ok
from tests.gateway.usage.history import DECEMBER, NOVEMBER, OCTOBER, History

USAGE = "/v1/usage"
PERIOD = {"start_time": str(OCTOBER // 10**6), "end_time": str(DECEMBER // 10**6)}


def fill(gate: Gateway) -> None:
    """Requests of the caller's tenant, under one of its keys."""
    with closing(open_for_writing(gate.env.database)) as db, transaction(db):
        (tenant,) = db.execute("SELECT id FROM tenant WHERE name = 'acme'").fetchone()
        history = History(db, tenants=(tenant,))
        history.directory()
        history.requests(40, OCTOBER)
        history.requests(40, NOVEMBER)


async def pages(gate: Gateway, **query: str) -> list[dict[str, Any]]:
    """All pages of a question."""
    found = []
    more: dict[str, str] = {}
    while True:
        answer = await gate.http.get(USAGE, params=PERIOD | query | more)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found.append(page)
        if not page["has_more"]:
            assert page["next_page"] is None
            return found
        more = {"page": page["next_page"]}


def buckets(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [bucket for page in found for bucket in page["data"]]


async def test_pages_go_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        fill(gate)
        by_day = await pages(gate)
        assert [len(page["data"]) for page in by_day[:-1]] == [31] * (len(by_day) - 1)
        for limit in ("1", "7", "30"):
            some = await pages(gate, limit=limit)
            assert buckets(some) == buckets(by_day)
            assert max(len(page["data"]) for page in some) == int(limit)
        by_hour = buckets(await pages(gate, bucket_width="1h", limit="24"))
        assert len({bucket["start_time"] for bucket in by_hour}) == len(by_hour)
        tokens = [
            sum(result["output_tokens"] for bucket in some for result in bucket["results"])
            for some in (by_hour, buckets(by_day))
        ]
        assert tokens[0] == tokens[1] > 0


@pytest.mark.parametrize(
    "query",
    [
        "group_by=model,api_key_id",
        "group_by=model&group_by=api_key_id",
        "group_by[]=model&group_by[]=api_key_id",
        "group_by%5B%5D=api_key_id,model",
    ],
)
async def test_lists_are_sent_in_any_way(tmp_path: Path, query: str) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        fill(gate)
        period = f"start_time={PERIOD['start_time']}&end_time={PERIOD['end_time']}"
        page = (await gate.http.get(f"{USAGE}?{period}&{query}")).json()
        results = [result for bucket in page["data"] for result in bucket["results"]]
        assert {result["model"] for result in results} == {"small", "large"}
        assert any(result["api_key_id"] for result in results)
        assert {result["project_id"] for result in results} == {None}


async def test_grouped_by_nothing_there_is_one_result_a_currency(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        fill(gate)
        for bucket in buckets(await pages(gate, group_by="")):
            names = [result["amount"]["currency"] for result in bucket["results"]]
            assert len(set(names)) == len(names)
            assert {result["model"] for result in bucket["results"]} == {None}


WRONG = (
    ({"bucket_width": "1m"}, "bucket_width"),
    ({"group_by": "user_id"}, "group_by"),
    ({"limit": "0"}, "limit"),
    ({"limit": "32"}, "limit"),
    ({"limit": "x"}, "limit"),
    ({"models": ",".join(str(i) for i in range(65))}, "models"),
    ({"project_ids": ",".join(["p"] * 65)}, "project_ids"),
    ({"models": "," * 64}, "models"),
    ({"models": ""}, "models"),
    ({"api_key_ids": "a,,b"}, "api_key_ids"),
    ({"user_ids": "u"}, "user_ids"),
    ({"page": "AAAA"}, "page"),
)


@pytest.mark.parametrize(("query", "param"), WRONG)
async def test_what_can_t_be_asked(tmp_path: Path, query: dict[str, str], param: str) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.get(USAGE, params=query)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "other",
    [
        {"group_by": "project_id"},
        {"models": "small"},
        {"bucket_width": "1h"},
        {"start_time": "0"},
        {"end_time": "1"},
    ],
)
async def test_a_page_is_of_its_own_question_and_tenant(
    tmp_path: Path, other: dict[str, str]
) -> None:
    async with gateway(tmp_path, stream_ok, tenants=("acme", "globex")) as gate:
        fill(gate)
        first = (await gate.http.get(USAGE, params=PERIOD | {"limit": "2"})).json()
        more = {"limit": "2", "page": first["next_page"]}
        assert (await gate.http.get(USAGE, params=PERIOD | more)).status_code == 200
        assert (await gate.http.get(USAGE, params=more)).status_code == 200
        refused = await gate.http.get(USAGE, params=PERIOD | more | other)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "page")
        theirs = await gate.http.get(USAGE, params=more, headers=gate.bearer("globex"))
        assert (theirs.status_code, theirs.json()["error"]["param"]) == (400, "page")


async def test_a_key_of_a_project_sees_that_one_alone(tmp_path: Path) -> None:
    """Unless it's an administrator's; in exports too."""
    async with gateway(tmp_path, stream_ok) as gate:
        fill(gate)
        pepper = keyring.load(tmp_path / "state").derive("key-pepper")
        headers = []
        with closing(open_for_writing(gate.env.database)) as db:
            for scopes in (["usage:read"], ["admin"]):
                terms = KeyTerms(project="a, Inc", scopes=scopes)
                _, secret = create_key(db, "acme", "of a project", pepper, terms)
                headers.append({"authorization": f"Bearer {secret}"})
        await gate.env.directory.refresh_if_changed()
        one, admin = headers
        query = PERIOD | {"group_by": "project_id"}

        async def projects(who: dict[str, str], **more: str) -> set[str | None]:
            answer = await gate.http.get(USAGE, params=query | more, headers=who)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            return {r["project_id"] for bucket in page["data"] for r in bucket["results"]}

        everything = await projects({})
        (theirs,) = await projects(one)
        assert len(everything) == 3
        assert await projects(admin) == everything
        (other,) = everything - {theirs, None}
        assert other is not None
        assert await projects(one, project_ids=other) == set()
        for who, expected in ((one, {theirs}), (admin, everything)):
            export = await gate.http.get(
                f"{USAGE}/export", params=PERIOD | {"format": "jsonl"}, headers=who
            )
            found = {json.loads(line)["project_id"] for line in export.text.splitlines()}
            assert found == expected
