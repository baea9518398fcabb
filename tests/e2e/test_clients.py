"""Real clients over real sockets, against both engines: the openai SDK, and curl."""

from __future__ import annotations

import json
import shutil
import subprocess

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.e2e.ledger import row_of
from tests.stack import Stack

MODELS = ["smollm2-135m-instruct", "llama-cpp"]
QUESTION = [ChatCompletionUserMessageParam(role="user", content="What is the capital of France?")]

pytestmark = pytest.mark.slow


@pytest.fixture
def sdk(real_stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{real_stack.url}/v1", api_key=real_stack.key, max_retries=0)


@pytest.mark.parametrize("model", MODELS)
def test_the_sdk_gets_an_answer(sdk: openai.OpenAI, real_stack: Stack, model: str) -> None:
    """A greedy answer comes from both engines, ours a right one; its usage is the ledger's."""
    with sdk:
        answer = sdk.chat.completions.create(
            model=model,
            messages=QUESTION,
            temperature=0,
            max_tokens=16,
        )
    text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert text
    if model == MODELS[0]:
        assert (text, finish) == ("The capital of France is Paris.", "stop")
    assert answer.model == model
    assert answer.usage is not None
    row = row_of(real_stack, f"req_{answer.id.removeprefix('chatcmpl-')}")
    assert row["input_tokens"] == answer.usage.prompt_tokens
    assert row["output_tokens"] == answer.usage.completion_tokens
    assert row["outcome"] == {"stop": "completed", "length": "length"}[finish]


@pytest.mark.parametrize("model", MODELS)
def test_the_sdk_streams(sdk: openai.OpenAI, real_stack: Stack, model: str) -> None:
    """Chunks share one id and our model name; the last one holds the usage that is billed."""
    with sdk:
        stream = sdk.chat.completions.create(
            model=model,
            messages=QUESTION,
            temperature=0,
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text
    assert "Paris" in text or model != MODELS[0]
    assert len({c.id for c in chunks}) == 1
    assert {c.model for c in chunks} == {model}
    usage = chunks[-1].usage
    assert usage is not None
    row = row_of(real_stack, f"req_{chunks[0].id.removeprefix('chatcmpl-')}")
    assert (row["input_tokens"], row["output_tokens"]) == (
        usage.prompt_tokens,
        usage.completion_tokens,
    )


@pytest.mark.parametrize("model", MODELS)
async def test_the_async_sdk_streams_completions(real_stack: Stack, model: str) -> None:
    """Plain completions, streamed, with a stop sequence that doesn't appear in the answer."""
    client = openai.AsyncOpenAI(base_url=f"{real_stack.url}/v1", api_key=real_stack.key)
    async with client:
        stream = await client.completions.create(
            model=model,
            prompt="One, two, three, four, five, six,",
            temperature=0,
            max_tokens=24,
            stop=["nine"],
            stream=True,
        )
        text = "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])
    assert "seven" in text
    assert "nine" not in text


def test_without_asking_no_usage_chunk_is_sent(sdk: openai.OpenAI) -> None:
    """`stream_options.include_usage` decides what the client sees, not what is counted."""
    with sdk:
        stream = sdk.chat.completions.create(
            model=MODELS[0],
            messages=QUESTION,
            max_tokens=4,
            stream=True,
        )
        assert all(chunk.usage is None and chunk.choices for chunk in stream)


def test_the_sdk_lists_models(sdk: openai.OpenAI) -> None:
    """The catalog, whole and by id."""
    with sdk:
        assert [model.id for model in sdk.models.list()] == MODELS
        assert sdk.models.retrieve(MODELS[0]).owned_by == "bulkhead"
        with pytest.raises(openai.NotFoundError):
            sdk.models.retrieve("nope")


def test_the_sdk_gets_typed_errors(real_stack: Stack) -> None:
    """Each status becomes the SDK's own exception, with our code."""
    with openai.OpenAI(base_url=f"{real_stack.url}/v1", api_key="bh_live_x", max_retries=0) as sdk:
        with pytest.raises(openai.AuthenticationError) as caught:
            sdk.models.list()
        assert caught.value.code == "invalid_api_key"
    with openai.OpenAI(
        base_url=f"{real_stack.url}/v1", api_key=real_stack.key, max_retries=0
    ) as sdk:
        with pytest.raises(openai.BadRequestError) as bad:
            sdk.chat.completions.create(model=MODELS[0], messages=[])
        assert bad.value.param == "messages"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_streams(real_stack: Stack) -> None:
    """What `bulkhead dev` prints works in a shell, and a stream ends with [DONE]."""
    body = {"model": MODELS[0], "messages": QUESTION, "stream": True, "max_tokens": 8}
    done = subprocess.run(
        [
            *("curl", "-sSN", "--fail-with-body", f"{real_stack.url}/v1/chat/completions"),
            *("-H", f"Authorization: Bearer {real_stack.key}"),
            *("-H", "Content-Type: application/json", "-d", json.dumps(body)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("data: [DONE]\n\n")
    assert ": t=" not in done.stdout, "a host's counts are not for clients"


def test_the_same_seed_repeats_an_answer(sdk: openai.OpenAI) -> None:
    """`seed` fixes the draws; another seed gives another answer. (All find a warm prefix.)"""
    with sdk:
        texts = [
            sdk.chat.completions.create(
                model=MODELS[0],
                messages=[{"role": "user", "content": "Tell me a story."}],
                seed=seed,
                temperature=1.2,
                max_tokens=24,
            )
            .choices[0]
            .message.content
            for seed in (1, 7, 7, 8)
        ]
    assert texts[1] == texts[2]
    assert texts[2] != texts[3]
