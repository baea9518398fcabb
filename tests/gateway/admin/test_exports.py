"""The operator's exports: all tenants', or one's, with a manifest."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.store.connection import DATABASE, open_for_writing, transaction
from gateway.usage.manifest import public_key, read, signing_key
from runtime import keyring
from tests.gateway.admin.console import Console, console, is_problem
from tests.gateway.usage.history import DECEMBER, OCTOBER, TENANTS, fill

EXPORT = "/admin/v1/usage/export"
PERIOD = {"start_time": str(OCTOBER // 10**6), "end_time": str(DECEMBER // 10**6)}


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Console]:
    async with console(tmp_path) as found:
        keyring.load(found.settings.state_dir)
        path = found.settings.state_dir / DATABASE
        with closing(open_for_writing(path)) as db, transaction(db):
            fill(db, 60)
        yield found


def accounts(text: str) -> set[str]:
    return {row["BillingAccountId"] for row in csv.DictReader(io.StringIO(text, newline=""))}


async def test_all_tenants_or_one(desk: Console) -> None:
    query = PERIOD | {"format": "focus"}
    async with desk.client() as http:
        everyone = await http.get(EXPORT, params=query)
        one = await http.get(EXPORT, params=query | {"tenant": f"name of {TENANTS[0]}"})
    assert everyone.status_code == one.status_code == 200
    assert everyone.headers["x-bulkhead-seq-bound"] == one.headers["x-bulkhead-seq-bound"]
    assert accounts(everyone.text) == set(TENANTS)
    assert accounts(one.text) == {TENANTS[0]}


async def test_the_manifest_is_of_the_same_bytes(desk: Console) -> None:
    query = PERIOD | {"format": "parquet", "focus_version": "1.4"}
    async with desk.client() as http:
        export = await http.get(EXPORT, params=query)
        bound = export.headers["x-bulkhead-seq-bound"]
        told = await http.get(f"{EXPORT}/manifest", params=query | {"bound": bound})
    key = public_key(signing_key(keyring.load(desk.settings.state_dir)))
    contents = read(told.content, key)
    (entry,) = contents.files
    assert told.headers["x-bulkhead-seq-bound"] == bound
    assert (entry.tenant, str(contents.seq_bound)) == (None, bound)
    assert entry.sha256 == hashlib.sha256(export.content).hexdigest()


@pytest.mark.parametrize(
    "query", ["format=xlsx", "tenant=nobody", "bound=9999", "start_time=5&end_time=5", "page=1"]
)
async def test_what_can_t_be_asked_for(desk: Console, query: str) -> None:
    async with desk.client() as http:
        for path in (EXPORT, f"{EXPORT}/manifest"):
            is_problem(await http.get(f"{path}?{query}"), "invalid-parameter")
