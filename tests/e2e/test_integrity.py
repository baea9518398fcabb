"""A stale page in a running row's table, through the whole stack: key, gateway, host, real engine.

The host runs in this process, so that a fault can be planted; everything else is as in production,
sockets, capability and ledger included.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from msgspec import json as wire
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

import engines.embedded.incidents as incidents
from engines.api import Engine, EngineSpec, Output
from engines.registry import load
from gateway.app import create_app
from gateway.cli.api_keys import pepper
from gateway.demo import demo_key
from gateway.store.connection import open_for_writing
from gateway.store.migrate import migrate
from runtime import keyring, rundir, state
from runtime.capability import CAPABILITY_LABEL, Signer, Verifier
from runtime.host.app import Host
from runtime.host.engine_thread import EngineThread
from runtime.host.process import listen
from runtime.node_wire import Hosts, HostState, HostView
from runtime.settings import Settings, parse

pytestmark = pytest.mark.slow

MODEL = "smollm2-135m-instruct"
VICTIM = "Name the planets of the solar system, in order, with a fact about each."
OTHERS = ["Count from one to fifty.", "List the months of the year.", "Say hello in ten languages."]
LONG = "Name the planets of the solar system. " * 80  # several steps' worth of prompt
FAULT_AT = 12  # output tokens that the victim has when its table goes bad
OWN = 2  # the first page of a table that holds what nobody else asked


@dataclass
class Faulty:
    """The real engine, whose victim's table gets `plant`ed on `left` times, `when` it is so."""

    engine: Any
    plant: Callable[[Any, Any], None] | None = None
    when: Callable[[Any], bool] = lambda seq: len(seq.tokens) - seq.prompt_len >= FAULT_AT
    left: int = 1
    planted: threading.Event = field(default_factory=threading.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def step(self) -> list[Output]:
        for seq in list(self.engine._seqs.values()):
            if self.plant and seq.request.sampling.seed == 666 and self.when(seq):
                self.plant(self.engine, seq)
                self.left -= 1
                self.plant = self.plant if self.left else None
                self.planted.set()
        outputs: list[Output] = self.engine.step()
        return outputs


def stale_page(engine: Any, seq: Any) -> None:
    """Another row's page stands where the victim's own was. (The first two are shared.)"""
    other = next(s for s in engine._seqs.values() if s is not seq and s.block_table)
    seq.block_table[OWN] = other.block_table[OWN]


def freed_page(engine: Any, seq: Any) -> None:
    """The page was freed and given out again: same number, later tag."""
    engine.pool.tags[seq.block_table[OWN]] += 1


@dataclass
class Bench:
    """The stack under test."""

    client: httpx.AsyncClient
    engine: Faulty
    database: Path

    async def ask(self, prompt: str, *, stream: bool = True, seed: int = 1) -> httpx.Response:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 40,
            "temperature": 0,
            "seed": seed,
            "stream": stream,
        }
        return await self.client.post("/v1/chat/completions", json=body)

    async def ask_all(self, *, stream: bool = True) -> tuple[httpx.Response, list[httpx.Response]]:
        """The victim among its neighbours, all at once."""
        victim = self.ask(VICTIM, stream=stream, seed=666)
        answers = await asyncio.gather(victim, *(self.ask(prompt) for prompt in OTHERS))
        return answers[0], list(answers[1:])

    async def row(self, answer: httpx.Response) -> dict[str, Any]:
        export = await self.client.get("/v1/usage/export", params={"format": "jsonl"})
        rows = [json.loads(line) for line in export.text.splitlines()]
        return next(row for row in rows if row["request_id"] == answer.headers["x-request-id"])


@asynccontextmanager
async def served(app: Any, **where: Any) -> AsyncIterator[uvicorn.Server]:
    """A real server in this loop."""
    sockets = where.pop("sockets", None)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, **where))
    task = asyncio.create_task(server.serve(sockets=sockets))
    while not server.started:
        await asyncio.sleep(0.01)
    yield server
    server.should_exit = True
    await task


@pytest.fixture
async def bench(tmp_path: Path, model_dir: Path) -> AsyncIterator[Bench]:
    text = "[relay]\nkeep_alive_s = 60\n"  # so that a slow machine still has a status to give
    text += f'[[models]]\nid = "{MODEL}"\nengine = "embedded"\npath = "{model_dir}"\n'
    settings = Settings(
        file=parse(text, "test")[0], config_path="", state_dir=tmp_path / "state", dev=True
    )
    state.prepare(settings.state_dir)
    sockets = rundir.make(settings.state_dir)
    public_keys = Signer(keyring.load(settings.state_dir).derive(CAPABILITY_LABEL)).public_keys()
    options = {"dtype": "float32", "kv_memory_bytes": 64 * 2**20}
    thread = EngineThread(lambda: faulty(EngineSpec(MODEL, str(model_dir), options)))
    engine = await thread.start()
    host = Host(MODEL, engine, thread, Verifier(public_keys, MODEL), 64)
    view = HostView(id="h", model=MODEL, state=HostState.READY, socket=str(sockets / "h.sock"))

    async def hosts(request: Any) -> Response:
        await asyncio.sleep(0.05)
        return Response(wire.encode(Hosts(version=7, hosts=[view])))

    migrate(settings.state_dir / "bulkhead.db")
    db = open_for_writing(settings.state_dir / "bulkhead.db")
    key = demo_key(db, settings.state_dir, pepper(settings))
    db.close()
    node = Starlette(routes=[Route("/hosts", hosts)])
    async with (
        served(host.asgi(), sockets=[listen(sockets / "h.sock")], lifespan="off"),
        served(node, sockets=[listen(rundir.node_socket(settings.state_dir))], lifespan="off"),
        served(create_app(settings), port=0) as gateway,
    ):
        port = gateway.servers[0].sockets[0].getsockname()[1]
        headers = {"authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as client:
            yield Bench(client, engine, settings.state_dir / "bulkhead.db")  # type: ignore[arg-type]
    thread.close()


def in_prompt(seq: Any) -> bool:
    """Part of the prompt has been computed, and no token chosen."""
    return OWN * 16 < seq.num_computed < seq.prompt_len and len(seq.block_table) > OWN


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request's pages in quarantine don't have the engine replaced."""
    monkeypatch.setattr(incidents, "QUARANTINE_PAGES", 1000)


def faulty(spec: EngineSpec) -> Engine:
    return Faulty(load("embedded")(spec))


def content(answer: httpx.Response) -> str:
    """The text of a stream."""
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line[6:7] == "{"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", [])]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("fault", [stale_page, freed_page])
async def test_the_row_is_aborted_and_its_neighbours_go_on(
    bench: Bench, fault: Callable[[Any, Any], None]
) -> None:
    """An error event without [DONE], nothing billed, and three neighbours as in a clean run."""
    clean_victim, clean = await bench.ask_all()
    bench.engine.plant = fault
    victim, others = await bench.ask_all()
    assert bench.engine.planted.is_set()
    assert '"code":"kv_integrity_abort"' in victim.text
    assert "[DONE]" not in victim.text
    assert victim.text.count('"content":"') > 10, "it had been streamed for a while"
    last = json.loads(victim.text.rstrip().rpartition("data: ")[2])["error"]
    assert set(last) == {"message", "type", "param", "code"}
    assert (last["type"], last["param"]) == ("server_error", None)
    assert not any(word in last["message"] for word in ("page", "tenant", "tag", "domain"))
    assert content(clean_victim).startswith(content(victim)), "no token came from the stale page"
    assert len(content(victim)) < len(content(clean_victim))
    assert [content(answer) for answer in others] == [content(answer) for answer in clean]
    row = await bench.row(victim)
    assert (row["outcome"], row["billable"], row["amount"]) == ("integrity_abort", False, "0")
    for answer in others:
        assert (await bench.row(answer))["billable"] is True
    stats = bench.engine.stats()
    assert (stats.integrity_aborts, stats.pages["quarantined"] > 0) == (1, True)


async def test_an_unstreamed_answer_is_a_503_with_retry_after(bench: Bench) -> None:
    """Nothing of it has left, so the client gets a status that it may retry on."""
    bench.engine.plant = stale_page
    victim, others = await bench.ask_all(stream=False)
    assert victim.status_code == 503
    assert victim.json()["error"]["code"] == "kv_integrity_abort"
    assert int(victim.headers["retry-after"]) >= 1
    assert all("[DONE]" in answer.text for answer in others)
    assert (await bench.row(victim))["billable"] is False


@pytest.mark.usefixtures("patient")
async def test_a_fault_in_the_prompt_is_invisible_and_billed_once(bench: Bench) -> None:
    """The engine starts the request again, cold; the client gets the answer it would have got."""
    bench.engine.plant, bench.engine.when = freed_page, in_prompt
    victim = await bench.ask(LONG, seed=666)
    assert bench.engine.planted.is_set()
    stats = bench.engine.stats()
    assert (stats.integrity_retries, stats.integrity_aborts) == (1, 0)
    assert victim.text.endswith("data: [DONE]\n\n")
    clean = await bench.ask(LONG)
    assert content(victim) == content(clean)
    row, other = await bench.row(victim), await bench.row(clean)
    assert row["billable"] is True
    for field_ in ("outcome", "input_tokens", "output_tokens"):
        assert row[field_] == other[field_], field_
    assert (row["cached_input_tokens"], other["cached_input_tokens"] > 0) == (0, True)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("stream", [True, False])
async def test_one_whose_second_try_fails_too_is_a_503_before_the_first_byte(
    bench: Bench, stream: bool
) -> None:
    """Of a stream too, since nothing of it has left; not even the prompt is billed."""
    bench.engine.plant, bench.engine.left = freed_page, 2
    bench.engine.when = lambda seq: in_prompt(seq) and seq.is_retry == (bench.engine.left == 1)
    victim = await bench.ask(LONG, stream=stream, seed=666)
    stats = bench.engine.stats()
    assert (stats.integrity_retries, stats.integrity_aborts) == (1, 1)
    assert stats.integrity_aborts_streamed == 0
    assert (victim.status_code, victim.json()["error"]["code"]) == (503, "kv_integrity_abort")
    assert int(victim.headers["retry-after"]) >= 1
    row = await bench.row(victim)
    assert (row["outcome"], row["billable"], row["amount"]) == ("integrity_abort", False, "0")
    assert (await bench.ask(LONG)).text.endswith("data: [DONE]\n\n"), "the next one is served"


async def test_without_faults_there_are_no_alarms(bench: Bench) -> None:
    """Every page of every step is checked, and none differs."""
    victim, others = await bench.ask_all()
    assert all("[DONE]" in answer.text for answer in (victim, *others))
    stats = bench.engine.stats()
    assert stats.tag_pages_checked > 4 * 40
    assert (stats.tag_mismatches, stats.integrity_aborts) == (0, 0)
