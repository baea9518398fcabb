"""The admin API's OpenAPI document: it has every route and every problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from gateway.admin.api import AdminApi
from gateway.admin.documented import admin_document
from gateway.admin.hub import EventHub
from gateway.admin.node_client import NodeClient
from gateway.admin.problems import TABLE
from gateway.admin.status import Process
from runtime.settings import Settings
from tests.gateway.admin.console import console

DOCUMENT = admin_document()


def unused() -> Settings:
    raise AssertionError


def test_it_has_every_route_and_no_other(tmp_path: Path) -> None:
    process = Process(command="", pid=0, began=0, began_monotonic=0)
    made = AdminApi(unused, NodeClient(tmp_path), EventHub(tmp_path), process)
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in made.routes()
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert routes == {(path, each) for path, item in DOCUMENT["paths"].items() for each in item}


def test_every_problem_is_an_answer_of_some_route_with_its_status() -> None:
    OPENAPI_31_VALIDATOR.validate(DOCUMENT)
    told = {
        (int(status), name)
        for item in DOCUMENT["paths"].values()
        for operation in item.values()
        for status, answer in operation["responses"].items()
        for name in names(answer)
    }
    assert told == {(row.status, f"urn:bulkhead:problem:{row.name}") for row in TABLE.values()}


def names(answer: dict[str, Any]) -> list[str]:
    problem = answer.get("content", {}).get("application/problem+json")
    found: list[str] = problem["schema"]["properties"]["type"]["enum"] if problem else []
    return found


async def test_it_is_served_to_who_has_the_key(tmp_path: Path) -> None:
    async with console(tmp_path) as desk, desk.client() as http:
        assert (await http.get("/admin/v1/openapi.json")).json() == json.loads(json.dumps(DOCUMENT))
