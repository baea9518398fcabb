"""TensorRT-LLM's own ways, read without a server; and the tokenizers of its plain prompts."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.api import EngineError, RequestRefused
from gateway.errors import BadRequest, ContextTooLong, IntegrityAbort, UpstreamFailed
from gateway.relay import trtllm
from gateway.relay.prompt_ids import PromptEncoders
from gateway.relay.sse import BadFrame, Frame
from gateway.relay.trtllm import Shape, trt_reader
from tests.trtllm.folder import ids_of, tokenizer_folder

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
HEAD = {"id": "x", "created": 5, "model": "theirs"}


def chunk(delta: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "avg_decoded_tokens_per_iter": 1.0} | more
    return b"data: " + msgspec.json.encode(HEAD | {"choices": [choice]})


def told(frame: Frame) -> list[Any]:
    """The choices of all its events."""
    events = [msgspec.json.decode(event[6:]) for event in frame.data.split(b"\n\n") if event]
    return [choice for event in events for choice in event["choices"]]


def plain(**more: Any) -> Any:
    shape = Shape("chat", **({"prompt_tokens": 7} | more))
    return trt_reader("cmpl-1", "m", shape, is_salted=True)


def test_a_chat_s_chunks_become_a_completion_s() -> None:
    read = plain()
    assert read(chunk({"role": "assistant"}) + b" ").data == b""
    first = read(chunk({"content": "a", "reasoning_content": "hm "}))
    assert told(first) == [{"index": 0, "text": "hm a", "logprobs": None, "finish_reason": None}]
    assert first.has_content
    last = read(chunk({"content": ""}, finish_reason="stop"))
    assert (last.finish_reason, told(last)[0]["text"]) == ("stop", "")
    body = msgspec.json.decode(last.data[6:])
    assert (body["id"], body["model"], body["object"]) == ("cmpl-1", "m", "text_completion")


def test_what_is_the_server_s_own_business_is_left_out_of_a_chat() -> None:
    read = plain(prompt_tokens=None)
    read(chunk({"role": "assistant"}))
    params = {"request_type": "context_only"}
    frame = read(chunk({"content": "a", "reasoning_content": "", "tool_calls": []},
                       disaggregated_params=params, stop_reason="x"))  # fmt: skip
    assert told(frame) == [
        {"index": 0, "delta": {"role": "assistant"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None},
    ]


@pytest.mark.parametrize("bad", [
    {"choices": None}, {"choices": [7]}, {"choices": [{"delta": "a"}]}, {"usage": USAGE},
    {"choices": [{"delta": {"content": 7}}]}, {"choices": [{"delta": {"content": ["a"]}}]},
    {"choices": [{"delta": {}, "finish_reason": "cancelled"}]},
    {"choices": [], "usage": USAGE | {"prompt_tokens": 3}},
])  # fmt: skip
def test_chunks_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        plain()(b"data: " + msgspec.json.encode(bad))


def test_a_plain_prompt_s_own_answer_keeps_openai_s_fields() -> None:
    choice = {"index": 0, "text": "a", "token_ids": None, "stop_reason": None, "logprobs": None}
    (shaped,) = Shape("completion")({"choices": [choice | {"finish_reason": None}]})["choices"]
    assert shaped == {"index": 0, "text": "a", "logprobs": None, "finish_reason": None}


def text_of(*frames: Frame) -> str:
    return "".join(choice["delta"].get("content", "") for f in frames for choice in told(f))


def test_a_stop_that_the_engine_misses_ends_the_answer() -> None:
    read = plain(prompt_tokens=None, stops=["stop"])
    frames = [read(chunk({"content": piece})) for piece in ("a st", "o", "p b")]
    assert [text_of(frame) for frame in frames] == ["a ", "", ""]
    assert told(frames[-1])[0]["finish_reason"] == "stop"
    assert not frames[-1].done, "without a count, its total is waited for"
    late = read(chunk({"content": "c"}, finish_reason="length"))
    assert (late.data, late.finish_reason, late.done) == (b"", None, False)

    read = plain(stops=["st"])
    event = {"choices": [{"delta": {"content": "a stop"}}], "usage": USAGE}
    frame = read(b"data: " + msgspec.json.encode(event))
    assert (told(frame)[0]["text"], frame.done) == ("a ", True)
    assert frame.usage
    assert frame.usage.output_tokens == 2


def test_what_was_held_for_a_stop_leaves_with_the_end() -> None:
    read = plain(prompt_tokens=None, stops=["stop"])
    frames = [read(chunk({"content": "a st"})), read(chunk({}, finish_reason="length"))]
    assert text_of(*frames) == "a st"
    shape = Shape("chat", stops=["stop"], is_whole=True)
    choice = {"message": {"content": "a stop b"}, "finish_reason": "length"}
    (found,) = shape({"choices": [choice]})["choices"]
    assert (found["message"]["content"], found["finish_reason"]) == ("a ", "stop")


def test_a_whole_answer_that_hasn_t_ended_is_none() -> None:
    message: dict[str, Any] = {"message": {"content": "a"}, "finish_reason": None}
    bodies: list[Any] = [None, [], {"choices": [message]}]
    for body in bodies:
        with pytest.raises(BadFrame):
            Shape("chat", is_whole=True)(body)
    message["finish_reason"] = "stop"
    (choice,) = Shape("chat", is_whole=True)({"choices": [message]})["choices"]
    assert choice["message"] == {"content": "a", "refusal": None}
    with pytest.raises(IntegrityAbort):
        Shape("chat", is_whole=True)({"choices": [message | {"stop_reason": "kv_integrity_abort"}]})


QUOTED = (
    "1 validation error:\n  {'type': 'extra_forbidden', 'loc': ('body', 'cache_salt'), 'msg': "
    "'Extra inputs are not permitted', 'input': 'the salt'}\n"
)


def test_a_refusal_tells_nothing_of_what_it_quotes() -> None:
    assert trtllm.told_of_body(QUOTED) == "cache_salt: Extra inputs are not permitted"
    assert trtllm.told_of_body(QUOTED[:105]) == "cache_salt: Extra inputs are"
    whole = "{'loc': ('body',), 'msg': \"Value error, can't\", 'input': {'a': 1}}"
    assert trtllm.told_of_body(whole) == "body: Value error, can't"
    assert "secret" not in trtllm.told_of_body("{'loc': (, 'input': 'secret'")
    assert trtllm.told_of_body("too long") == "too long"


@pytest.mark.parametrize(("code", "message", "is_own"), [
    ("internal_error", "harmony parsing failed", True),
    ("BadRequestError", "CUDA error: an illegal memory access was encountered", True),
    ("BadRequestError", "Executor worker died", True),
    ("BadRequestError", "RuntimeError: max_num_tokens (8192) exceeded", False),
    ("BadRequestError", "Conversation roles must alternate", False),
    ("BadRequestError", "something odd", False),
])  # fmt: skip
def test_whose_fault_it_was(code: str, message: str, is_own: bool) -> None:
    assert trtllm.is_own_fault(code, message) == is_own


@pytest.mark.parametrize(("message", "kind"), [
    ("The sum of prompt length (9), query length (0) should not exceed max_num_tokens (8)",
     ContextTooLong),
    ("Conversation roles must alternate", BadRequest),
    ("something odd", UpstreamFailed),
])  # fmt: skip
def test_what_the_client_is_told(message: str, kind: type[Exception]) -> None:
    assert type(trtllm.refusal_of_body("BadRequestError", message, "prompt")) is kind


def test_an_end_without_a_reason_is_none() -> None:
    """The whole answer would say one, too: what comes without was given up, or is no answer."""
    for events in ([], [chunk({"content": "a"})]):
        read = plain()
        for event in events:
            read(event)
        with pytest.raises(BadFrame, match="saying why"):
            read(b"data: [DONE]")


class Counting:
    """A tokenizer that says in which thread it works, and may refuse."""

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self.loaded: list[str] = []

    def load(self, folder: str) -> Counting:
        self.threads.add(threading.current_thread().name)
        self.loaded.append(folder)
        return self

    def encode_prompt(self, text: str) -> list[int]:
        self.threads.add(threading.current_thread().name)
        if not text:
            raise RequestRefused("no text")
        return [1, *map(ord, text)]


async def test_prompts_are_encoded_in_threads_and_ids_are_left_alone(tmp_path: Path) -> None:
    folder, ours = str(tokenizer_folder(tmp_path)), Counting()
    encoders = PromptEncoders(ours.load)
    found = await asyncio.gather(*(encoders.ids(folder, "ab") for _ in range(5)))
    assert found == [[1, 97, 98]] * 5
    assert ours.loaded == [folder]
    assert threading.main_thread().name not in ours.threads
    assert await encoders.ids(folder, [5, 6]) == [5, 6]
    with pytest.raises(BadRequest) as refused:
        await encoders.ids(folder, "")
    assert refused.value.param == "prompt"


async def test_a_tokenizer_is_read_again_once_its_file_is_another(tmp_path: Path) -> None:
    folder, ours = str(tokenizer_folder(tmp_path)), Counting()
    encoders = PromptEncoders(ours.load)
    for _ in range(2):
        await encoders.keep([folder])
    assert len(ours.loaded) == 1
    os.utime(tmp_path / "tokenizer.json", ns=(1, 1))
    await encoders.keep([folder])
    assert len(ours.loaded) == 2
    await encoders.keep([])
    await encoders.ids(folder, "a")
    assert len(ours.loaded) == 3


async def test_one_that_can_t_be_read_fails_its_own_requests_alone(tmp_path: Path) -> None:
    good = str(tokenizer_folder(tmp_path / "good"))
    encoders = PromptEncoders()
    await encoders.keep([str(tmp_path / "gone"), good])
    with pytest.raises(UpstreamFailed):
        await encoders.ids(str(tmp_path / "gone"), "a")
    assert await encoders.ids(good, "hi") == ids_of(tmp_path / "good", "hi")

    def broken(_: str) -> Any:
        raise EngineError("no")

    with pytest.raises(UpstreamFailed):
        await PromptEncoders(broken).ids(good, "a")


async def test_a_prompt_without_a_token_is_sent_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT-LLM would make one of its template, and answer that."""
    ours = Counting()
    monkeypatch.setattr(ours, "encode_prompt", lambda _: [])
    with pytest.raises(BadRequest, match="token"):
        await PromptEncoders(ours.load).ids(str(tokenizer_folder(tmp_path)), " ")
