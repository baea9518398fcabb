"""What of a tenant's reaches TensorRT-LLM, and what of another's it can notice there: nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.trtllm import MODEL, RELAY, TOKENS, Front, fronted
from tests.stack import running
from tests.trtllm.folder import ENDING
from tests.trtllm.text import answer_of
from tests.waiting import wait_for

LONG = "A prompt of several blocks, the same for each who asks. " * 6
EACH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
BOTH = pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])
# Fields of its schema that would change what it does, for others too.
THEIRS: dict[str, Any] = {
    "cache_salt": "a", "prompt_token_ids": [1], "prompt_token_ids_b64": "AAAA",
    "disaggregated_params": {"request_type": "context_only"}, "lora_request": {"lora_name": "x"},
    "chat_template": "{{ x }}", "chat_template_kwargs": {}, "documents": [], "priority": 1.0,
    "media_io_kwargs": {}, "mm_processor_kwargs": {}, "agent_hierarchy": [],
    "use_beam_search": True,
    "conversation_params": {"conversation_id": "1"}, "injected_chat_template_kwargs": [],
    "truncate_prompt_tokens": 1, "add_special_tokens": True, "detokenize": False, "top_k": 1,
    "return_context_logits": True, "prompt_ignore_length": 1, "ignore_eos": True, "echo": True,
    "best_of": 2, "n": 2, "logprobs": 3,
}  # fmt: skip
OURS = {"host", "content-type", "content-length", "authorization", "x-request-id"}


@EACH
@BOTH
def test_one_s_prompt_is_cached_for_itself_and_for_nobody_else(
    front: Front, chat: bool, stream: bool
) -> None:
    other = front.tenant()
    prompt = f"{chat} {stream} {LONG}"
    said = [
        front.ask(prompt, chat=chat, stream=stream, key=key) for key in ("", "", other, other, "")
    ]
    hits = [one.usage.prompt_tokens_details.cached_tokens for one in said]
    assert hits[0] < 20
    assert hits[2] == 0, "the other's prompt was computed as if nobody had sent it"
    assert hits[1] == hits[3] == hits[4] > 200
    assert {one.text for one in said} == {front.answer(prompt, chat=chat)}
    assert front.row(said[1])["cached_input_tokens"] == hits[1]
    price = len(front.ids(prompt, chat=chat)) - hits[1] + 0.1 * hits[1] + 10 * TOKENS
    assert float(front.row(said[1])["amount"]) == pytest.approx(price / 1e6)


@EACH
def test_without_salts_on_the_way_the_same_test_would_fail(front: Front, stream: bool) -> None:
    front.fake.fail("no_salts")
    other, prompt = front.tenant(), f"unsalted {stream} {LONG}"
    front.ask(prompt, chat=False, stream=stream)
    said = front.ask(prompt, chat=False, stream=stream, key=other)
    assert said.usage.prompt_tokens_details.cached_tokens > 200


@EACH
def test_a_plain_prompt_goes_as_a_chat_of_its_ids(front: Front, stream: bool) -> None:
    """And the ids are those that its own route would make: the answers are the same."""
    front.fake.seen(forget=True)
    text = f"Grüße {ENDING}, 日本"
    said = front.ask(text, chat=False, stream=stream, temperature=0.5, seed=7, stop=["~"])
    (seen,) = front.fake.seen()
    assert (seen["method"], seen["target"]) == ("POST", "/v1/chat/completions")
    body = seen["body"]
    salt = body.pop("cache_salt")
    assert len(salt) == 64
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert body == {
        "model": "m", "messages": [], "prompt_token_ids": front.plain(text), "temperature": 0.5,
        "max_tokens": TOKENS, "seed": 7, "stop": ["~"],
    } | ({"stream": True, "stream_options": options} if stream else {})  # fmt: skip
    plain = {"model": "m", "prompt": "Grüße", "max_tokens": TOKENS}
    theirs = httpx.post(front.fake.url + "/completions", json=plain).json()
    ours = front.ask("Grüße", chat=False, stream=stream)
    assert ours.text == theirs["choices"][0]["text"]
    assert ours.usage.prompt_tokens == theirs["usage"]["prompt_tokens"]
    assert said.text == front.answer(text, chat=False)


def test_ids_of_a_client_s_own_are_left_alone(front: Front) -> None:
    said = front.ask([7, 8, 9], chat=False, stream=False)
    assert (said.text, said.usage.prompt_tokens) == (answer_of([7, 8, 9], TOKENS), 3)


@EACH
@BOTH
@pytest.mark.parametrize("misses", [False, True], ids=["met", "missed"])
def test_a_text_ends_before_a_stop(front: Front, misses: bool, chat: bool, stream: bool) -> None:
    """Also where the engine misses it: a stream is ended there, and billed up to there."""
    whole = front.answer("stop", 40, chat=chat)
    stop = whole[18:24]
    before = whole[: whole.index(stop)]
    count = len(whole[: len(before + stop)].split(" "))  # a word is a token
    if misses:
        front.fake.fail("misses_stops")
    said = front.ask("stop", chat=chat, stream=stream, stop=["~", stop], max_tokens=40)
    assert (said.error, said.text, said.finish) == (None, before, "stop")
    row = front.row(said)
    told = (row["outcome"], row["output_tokens"], said.usage.completion_tokens)
    expected = 40 if misses and not stream else count
    assert told == ("completed", expected, expected)
    wait_for(lambda: front.fake.told()["in_hand"] == 0)


@EACH
def test_a_tenant_that_leaves_out_max_tokens_still_has_a_limit(front: Front, stream: bool) -> None:
    front.fake.seen(forget=True)
    front.ask("x", chat=True, stream=stream, max_tokens=None)
    assert front.fake.seen()[0]["body"]["max_tokens"] == 512


@BOTH
@pytest.mark.parametrize("name", THEIRS)
def test_no_field_of_its_own_can_be_sent(front: Front, name: str, chat: bool) -> None:
    front.fake.seen(forget=True)
    said = front.ask("x", chat=chat, stream=False, model="m0", extra_body={name: THEIRS[name]})
    assert said.status == 400
    assert said.error
    assert said.error.param == name
    assert front.fake.seen() == []


@EACH
@BOTH
def test_the_headers_are_ours_alone(front: Front, chat: bool, stream: bool) -> None:
    front.fake.seen(forget=True)
    theirs = {
        "x-tenant-id": "v", "x-cache-salt": "v", "x-forwarded-for": "1.2.3.4",
        "traceparent": "00-1",
        "x-request-id": "mine", "cookie": "a=b", "accept-language": "de",
        "x-session-affinity": "s", "x-trtllm-runtime-control-auth": "v",
    }  # fmt: skip
    front.ask("x", chat=chat, stream=stream, extra_headers=theirs)
    (seen,) = front.fake.seen()
    names = {name for name, _ in seen["headers"]}
    assert names <= OURS | {"accept", "accept-encoding", "user-agent", "connection"}
    values = " ".join(value for _, value in seen["headers"])
    assert not any(value in values.split() for value in theirs.values())
    assert front.stack.key not in values


def test_a_prompt_is_in_no_log(front: Front) -> None:
    secret = "canary-8c1"
    for name in ("", "internal_error", "refuses_all", "drops", "no_tokens", "garbage"):
        front.fake.fail(*([name] if name else []))
        for stream in (False, True):
            front.ask(secret, chat=False, stream=stream)
    log = front.stack.log.read_text()
    assert "canary-8c1" not in log
    ids = json.dumps(front.plain(secret))[1:-1]
    assert ids not in log
    assert ids.replace(" ", "") not in log


@EACH
def test_where_nothing_is_reused_plain_prompts_go_as_they_are(tmp_path: Path, stream: bool) -> None:
    config = {"kv_cache_config": {"enable_block_reuse": False}}
    with fronted(tmp_path, more='cache = "off"', config=config, models=1) as found:
        for _ in range(2):
            said = found.ask("Grüße", chat=False, stream=stream, model="m0")
            assert said.text == found.answer("Grüße", chat=False)
            assert said.usage.prompt_tokens_details.cached_tokens == 0
        seen = found.fake.seen()
        assert {one["target"] for one in seen} >= {"/v1/completions"}
        for one in seen:
            if one["target"] == "/v1/completions":
                assert one["body"]["prompt"] == "Grüße"
                assert "cache_salt" not in one["body"]


def test_without_a_tokenizer_plain_prompts_are_refused(front: Front, tmp_path: Path) -> None:
    front.fake.seen(forget=True)
    text = RELAY + MODEL.format(id="m0", url=front.fake.url, more="")
    with running(tmp_path, text) as stack:
        found = Front(stack, front.fake, front.folder)
        said = found.ask("x", chat=False, stream=False, model="m0")
        assert (said.status, said.code) == (400, "unsupported_parameter")
        assert found.row(said)["outcome"] == "refused"
        assert found.ask("x", chat=True, stream=False, model="m0").error is None
    assert [one["target"] for one in front.fake.seen()] == ["/v1/chat/completions"]
