"""Several of TensorRT-LLM's servers, one of which is broken; and one that breaks and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.ledger import records
from tests.e2e.trtllm import MODEL, Front, Said
from tests.stack import fake_config, running
from tests.trtllm.folder import tokenizer_folder
from tests.trtllm.serving import Served, served
from tests.waiting import wait_for

RELAY = """
[relay]
connect_s = 2
first_byte_s = 4
idle_s = 4
probe_s = 2
probe_every_s = {every_s}
"""
SEVERAL = """
[[models]]
id = "m"
engine = "openai"
kind = "trtllm"
upstream_model = "m"
tokenizer = "{folder}"
price = {{ input = "1", output = "10" }}
"""
SERVER = '[[models.servers]]\nurl = "{url}"\n'
BOTH = pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])


@contextmanager
def several(
    folder: Path, count: int, config: Any = None, every_s: float = 0.5
) -> Iterator[tuple[Front, list[Served]]]:
    """A model on so many of them."""
    model = tokenizer_folder(folder / "model")
    with ExitStack() as stack:
        fakes = []
        for i in range(count):
            (folder / str(i)).mkdir()
            fake = served(folder / str(i), model=str(model), config=config)
            fakes.append(stack.enter_context(fake))
        told = SEVERAL.format(folder=model) + "".join(SERVER.format(url=f.url) for f in fakes)
        front = stack.enter_context(running(folder, RELAY.format(every_s=every_s) + told))
        yield Front(front, fakes[0], model), fakes


def breakers(front: Front) -> list[str]:
    """Of each of the model's servers that had any trouble."""
    (model,) = json.loads(front.stack.cli("hosts", "list", "--json"))["models"]
    return [server["breaker"] for server in model["servers"]]


def agrees(front: Front, said: list[Said]) -> None:
    """A record a request, each closed, and each billed if and only if it was answered."""
    rows = {row["request_id"]: row for row in records(front.stack)}
    assert rows.keys() == {one.request_id for one in said}
    for one in said:
        row = rows[one.request_id]
        assert row["outcome"], "it is closed"
        assert bool(row["billable"]) == (one.error is None)


@BOTH
def test_a_server_that_answers_503_for_ever_costs_nobody_an_answer(
    tmp_path: Path, chat: bool
) -> None:
    with several(tmp_path, 2) as (front, fakes):
        fakes[0].fail("is_down")
        said = [front.ask(f"x{i}", chat=chat, stream=i % 2 == 0, model="m") for i in range(8)]
        assert [one.error for one in said] == [None] * 8
        assert [one.text for one in said] == [front.answer(f"x{i}", chat=chat) for i in range(8)]
        assert max(front.row(one)["attempts"] for one in said) == 2
        agrees(front, said)


def test_a_server_that_has_lost_its_blocks_is_found_out_and_left_alone(tmp_path: Path) -> None:
    config = {"kv_cache_config": {"max_tokens": 128}}
    with several(tmp_path, 2, config, every_s=0) as (front, fakes):
        fakes[0].fail("orphans", slow_first={"seconds": 60, "times": 4})
        body = {"model": "m", "messages": [], "prompt_token_ids": [1], "max_tokens": 4}
        for _ in range(4):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(fakes[0].url + "/chat/completions", json=body, timeout=0.5)
        wait_for(lambda: fakes[0].told()["aborted"] >= 4)
        said: list[Said] = []

        def is_left_alone() -> bool:
            said.append(front.ask("hi", chat=False, stream=len(said) % 2 == 0, model="m"))
            return "open" in breakers(front)

        wait_for(is_left_alone)
        said += [front.ask("hi", chat=False, stream=True, model="m") for _ in range(4)]
        assert {one.error and one.code for one in said} <= {None, "upstream_error"}
        assert {one.error for one in said[-4:]} == {None}
        whole = front.answer("hi", chat=False)
        assert {one.text for one in said if one.error is None} == {whole}, "no empty answer"
        agrees(front, said)


@BOTH
def test_what_a_guard_stops_before_its_first_text_is_sent_elsewhere_with_nothing_cached(
    tmp_path: Path, chat: bool
) -> None:
    with several(tmp_path, 2) as (front, fakes):
        fakes[0].fail(aborts={"after": 0})
        said = [front.ask("hi", chat=chat, stream=i % 2 == 0, model="m") for i in range(6)]
        assert [one.error for one in said] == [None] * 6
        assert {one.text for one in said} == {front.answer("hi", chat=chat)}
        assert max(front.row(one)["attempts"] for one in said) == 2
        salts = [seen["body"].get("cache_salt") for fake in fakes for seen in fake.seen()
                 if seen["body"] and seen["body"]["max_tokens"] > 1]  # fmt: skip
        assert len(set(salts)) > 2, "each that was sent again had a salt of its own"
        agrees(front, said)


def test_an_empty_answer_of_a_server_that_is_well_is_one(front: Front) -> None:
    """A model may have nothing to say: the probe that follows gets its token, so it's believed."""
    for stream in (False, True):
        front.fake.fail(no_tokens={"times": 1})
        said = front.ask("hi", chat=False, stream=stream)
        assert (said.error, said.text, said.finish) == (None, "", "stop")
        row = front.row(said)
        assert (row["outcome"], row["billable"], row["output_tokens"]) == ("completed", True, 0)


def test_a_hang_is_known_by_probes_while_its_health_is_fine_and_it_comes_back(
    tmp_path: Path,
) -> None:
    with several(tmp_path, 1) as (front, (fake,)):
        fake.fail("hangs")
        said = [front.ask("hi", chat=True, stream=True, model="m")]
        assert (said[0].status, said[0].code) == (504, "upstream_timeout")
        assert httpx.get(fake.url.removesuffix("/v1") + "/health").status_code == 200
        wait_for(lambda: breakers(front) == ["open"])
        said.append(front.ask("hi", chat=True, stream=False, model="m"))
        assert said[-1].status == 503
        fake.fail()

        def answers() -> bool:
            said.append(front.ask("hi", chat=True, stream=False, model="m"))
            return said[-1].error is None

        wait_for(answers)
        agrees(front, said)


def test_a_server_that_ends_itself_and_is_started_again(tmp_path: Path) -> None:
    with several(tmp_path, 1) as (front, (fake,)):
        fake.fail("exits")
        said = [front.ask("hi", chat=False, stream=False, model="m")]
        assert (said[0].status, said[0].code) == (502, "upstream_error")
        assert fake.process
        fake.process.wait(30)
        said.append(front.ask("hi", chat=False, stream=False, model="m"))
        assert said[-1].status == 503
        fake.start()

        def answers() -> bool:
            said.append(front.ask("hi", chat=False, stream=False, model="m"))
            return said[-1].error is None

        wait_for(answers)
        assert said[-1].text == front.answer("hi", chat=False)
        agrees(front, said)


@BOTH
def test_a_client_that_leaves_is_billed_what_it_got_and_ends_the_work(
    front: Front, chat: bool
) -> None:
    front.fake.fail(hangs={"times": 1, "after": 3})  # three tokens, and no more
    with front.client() as client:
        asked: dict[str, Any] = {"model": front.model(), "max_tokens": 50, "stream": True}
        if chat:
            asked["messages"] = [{"role": "user", "content": "hi"}]
        else:
            asked["prompt"] = "hi"
        create = client.chat.completions if chat else client.completions
        raw = create.with_raw_response.create(**asked)
        text = ""
        stream = raw.parse()
        while text != front.answer("hi", 3, chat=chat):
            (choice,) = next(stream).choices
            text += choice.text if not chat else choice.delta.content or ""
        stream.close()
    said = Said(request_id=raw.headers["x-request-id"])
    wait_for(lambda: front.fake.told()["in_hand"] == 0)
    wait_for(lambda: any(r["request_id"] == said.request_id for r in front.exported()))
    row = front.row(said)
    assert (row["outcome"], row["bill_reason"]) == ("client_cancelled", "delivered_part")
    assert (row["input_tokens"], row["output_tokens"]) == (len(front.ids("hi", chat=chat)), 3)
    assert row["usage_source"] == "upstream_running"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_models_fall_back_from_it_and_to_it(front: Front, tmp_path: Path, stream: bool) -> None:
    """A plain prompt is sent to each as that one takes it."""
    ours = f'tokenizer = "{front.folder}"\nfallback = ["echo"]'
    down = (
        '[[models]]\nid = "down"\nengine = "openai"\nkind = "vllm"\nurl = "http://127.0.0.1:9/v1"\n'
    )
    down += 'fallback = ["trt"]\nprice = { input = "1", output = "1" }\n'
    models = MODEL.format(id="trt", url=front.fake.url, more=ours) + down
    with running(tmp_path, fake_config(more=models)) as stack:
        found = Front(stack, front.fake, front.folder)
        said = found.ask("hi", chat=False, stream=stream, model="down")
        assert (said.text, said.error) == (front.answer("hi", chat=False), None)
        assert found.row(said)["model"] == "trt"
        front.fake.fail("is_down")
        said = found.ask("hi", chat=False, stream=stream, model="trt")
        assert (said.error, found.row(said)["model"]) == (None, "echo")
        assert said.text


def test_a_model_of_engine_tensorrt_llm_is_served_the_same_way(
    front: Front, tmp_path: Path
) -> None:
    text = f"""
[[models]]
id = "trt"
engine = "tensorrt-llm"
url = "{front.fake.url}"
upstream_model = "m"
tokenizer = "{front.folder}"
trt = {{ guard = false }}
price = {{ input = "1", output = "10" }}
"""
    with running(tmp_path, text) as stack:
        found = Front(stack, front.fake, front.folder)
        for chat in (False, True):
            said = found.ask("hi", chat=chat, stream=True, model="trt")
            assert (said.text, said.error) == (front.answer("hi", chat=chat), None)
