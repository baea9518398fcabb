"""GET /v1/usage/export: only the caller's, up to a bound, with a manifest, and visibly cut off."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from gateway.store.errors import StoreUnavailable
from gateway.usage import manifest, parquet, records
from gateway.usage.export import FORMATS
from tests.gateway.front import BODY, CHAT, Gateway, gateway, stream_ok

EXPORT = "/v1/usage/export"
STREAMED = BODY | {"stream": True}
PRICED = """
[[models]]
id = "@cf/there"
engine = "openai"
url = "{url}"
cache = "off"
price = { currency = "USD", input = "0.10", cached_input = "0.05", output = "0.40" }
"""


async def use(gate: Gateway, tenant: str, times: int = 1) -> None:
    for _ in range(times):
        answer = await gate.http.post(CHAT, json=STREAMED, headers=gate.bearer(tenant))
        assert b"[DONE]" in answer.content


async def get(gate: Gateway, path: str = EXPORT, **query: str) -> httpx.Response:
    answer = await gate.http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer


def rows(answer: httpx.Response) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(answer.text, newline=""), strict=True))


async def test_each_form_is_of_the_caller_alone_and_holds_no_secret(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok, PRICED, ("acme", "globex")) as gate:
        await use(gate, "acme", 2)
        await use(gate, "globex", 3)
        for fmt in FORMATS:
            answer = await get(gate, format=fmt, granularity="request")
            assert answer.headers["x-bulkhead-seq-bound"] == "5"
            for secret in ("canary", *gate.keys.values()):
                assert secret.encode() not in answer.content
        assert len(rows(await get(gate))) == 2
        lines = (await get(gate, format="jsonl")).text.splitlines()
        assert len({json.loads(line)["tenant_id"] for line in lines}) == 1
        charges = rows(await get(gate, format="focus", granularity="request"))
        assert {row["SkuMeter"] for row in charges} == {"Input Tokens", "Output Tokens"}
        assert {row["BillingAccountName"] for row in charges} == {"acme"}
        assert len(charges) == 4
        table = pq.read_table(io.BytesIO((await get(gate, format="parquet")).content))
        assert set(table["BillingAccountName"].to_pylist()) == {"acme"}


@pytest.mark.parametrize("fmt", FORMATS)
async def test_a_manifest_is_of_the_same_bytes(tmp_path: Path, fmt: str) -> None:
    async with gateway(tmp_path, stream_ok, PRICED) as gate:
        await use(gate, "acme", 2)
        query = {"format": fmt, "start_time": "0", "end_time": "4000000000"}
        export = await get(gate, **query)
        query["bound"] = export.headers["x-bulkhead-seq-bound"]
        await use(gate, "acme")
        told = await get(gate, f"{EXPORT}/manifest", **query)
        key = manifest.public_key(gate.env.manifest_key)
        (entry,) = manifest.read(told.content, key).files
        assert entry.sha256 == hashlib.sha256(export.content).hexdigest()
        assert entry.bytes == len(export.content)
        assert (await get(gate, **query)).content == export.content


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"format": "xlsx"}, "format"),
        ({"focus_version": "1.3"}, "focus_version"),
        ({"granularity": "day"}, "granularity"),
        ({"bound": "-1"}, "bound"),
        ({"bound": "1"}, "bound"),  # nothing was closed yet
        ({"bound": "9" * 19}, "bound"),
        ({"tenant": "globex"}, "tenant"),
    ],
)
async def test_what_can_t_be_asked_for(tmp_path: Path, query: dict[str, str], param: str) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        for path in (EXPORT, f"{EXPORT}/manifest"):
            answer = await gate.http.get(path, params=query)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_without_pyarrow_parquet_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise parquet.NoParquet

    monkeypatch.setattr("gateway.usage.export.need_pyarrow", missing)
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.get(EXPORT, params={"format": "parquet"})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "unsupported_parameter"


async def test_an_export_that_breaks_has_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(page: list[records.Record]) -> bytes:
        raise StoreUnavailable("the disk is gone")

    monkeypatch.setattr(records, "as_csv", breaking)
    async with gateway(tmp_path, stream_ok) as gate:
        await use(gate, "acme")
        with pytest.raises(httpx.RemoteProtocolError):
            await gate.http.get(EXPORT)
