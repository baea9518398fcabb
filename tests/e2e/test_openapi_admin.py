"""Every route of the admin API does what its OpenAPI document says, whatever is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.admin.changes.documented import changes
from gateway.admin.documented import admin_document
from tests.e2e.described import (
    NEGATIVE,
    POSITIVE,
    Call,
    Described,
    mended_query,
    misfit,
    operations,
)
from tests.stack import Stack, fake_config, running

ADMIN = admin_document()
TAIL = "/admin/v1/tail"
# What a call that fits may come to here: the fake engine has no pages, and kinds are made up.
ELSE = {
    "/admin/v1/hosts/{id}/pages": {404},
    "/admin/v1/models/{model}/faults/{kind}": {404},
    "/admin/v1/models/{model}/restart": {404},
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("administered"), fake_config()) as found:
        with found.client() as http:
            http.post("/v1/completions", json={"model": "echo", "prompt": "x", "max_tokens": 1})
        yield found


CHANGES = {operation.path for operation in changes()}


@pytest.fixture(scope="module")
def ids(stack: Stack) -> dict[str, str]:
    """A tenant that may be changed, and what it has."""
    made = json.loads(stack.cli("tenants", "create", "acme", "--json"))
    key = json.loads(stack.cli("keys", "create", "acme", "--json"))["id"]
    budget = json.loads(stack.cli("budgets", "create", "acme", "--limit", "9", "--json"))["id"]
    assert made
    return {"tenant": "acme", "key": key, "budget": budget}


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Described:
    key = (stack.state / "admin-key").read_text().strip()
    return Described(ADMIN, f"http://127.0.0.1:{stack.admin_port}", key, 2, CHANGES)


@pytest.fixture
def busy(stack: Stack) -> Iterator[None]:
    """Requests come, one after another."""
    ended = threading.Event()

    def ask() -> None:
        with stack.client() as http:
            while not ended.wait(0.02):
                http.get("/v1/whoami")

    asking = threading.Thread(target=ask)
    asking.start()
    yield
    ended.set()
    asking.join()


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(("path", "method"), operations(ADMIN))
def test_what_fits_is_answered_as_the_document_says(
    admin: Described, ids: dict[str, str], path: str, method: str
) -> None:
    def mended(case: Call) -> Call | None:
        for name in ids.keys() & (case.path_parameters or {}).keys():
            case.path_parameters[name] = ids[name]
        return mend(case)

    statuses = set(admin.hold(path, method, POSITIVE, mended))
    assert path in CHANGES or statuses == ELSE.get(path, {200})


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("path", "method"), operations(ADMIN, that_take=("parameters", "requestBody"))
)
def test_what_does_not_fit_is_refused_as_the_document_says(
    admin: Described, path: str, method: str
) -> None:
    assert all(status >= 400 for status in admin.hold(path, method, NEGATIVE, misfit))


@pytest.mark.parametrize(("path", "method"), operations(ADMIN))
@pytest.mark.parametrize("authorization", [None, "Bearer bh_admin_x", "tenant"])
def test_the_admin_key_is_asked_for(
    stack: Stack, path: str, method: str, authorization: str | None
) -> None:
    given = f"Bearer {stack.key}" if authorization == "tenant" else authorization
    headers = {"authorization": given} if given else {}
    answer = httpx.request(method, f"http://127.0.0.1:{stack.admin_port}{path}", headers=headers)
    assert answer.status_code == 401


def test_what_changes_something_is_answered_as_the_document_says(admin: Described) -> None:
    """Each once, since it replaces hosts."""
    model = {"model": "echo"}
    faults = called(admin, "/admin/v1/models/{model}/faults", "GET", model).json()
    for kind in [one["kind"] for one in faults["data"]][:1]:
        answer = called(
            admin, "/admin/v1/models/{model}/faults/{kind}", "POST", model | {"kind": kind}
        )
        assert answer.status_code in (200, 409)
    assert called(admin, "/admin/v1/models/{model}/restart", "POST", model).status_code == 202


def called(admin: Described, path: str, method: str, parts: dict[str, Any]) -> Any:
    return admin.call(admin.schema[path][method].Case(path_parameters=parts))


def mend(case: Call) -> Call | None:
    """What no schema says: a model and a tenant that there are, times in order."""
    path, query = case.path_parameters or {}, case.query or {}
    if "model" in path and "kind" not in path and case.method == "GET":
        path["model"] = "echo"
    if "tenant" in query:
        query["tenant"] = "demo"
    if case.path == TAIL:  # so that something is told
        for name in ("status", "model", "search", "sampling_rate"):
            query.pop(name, None)
    return case if mended_query(query) else None
