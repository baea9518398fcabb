"""A gateway before a stand-in for trtllm-serve, and the openai client before the gateway."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from tests.e2e.ledger import exported, row_of
from tests.stack import Stack, running
from tests.trtllm.folder import ids_of, tokenizer_folder
from tests.trtllm.serving import Served, served
from tests.trtllm.text import answer_of

TOKENS = 6
MODELS = 150  # each has a circuit breaker of its own, so that no fault is another test's
RELAY = """
[relay]
connect_s = 5
first_byte_s = 4
idle_s = 4
probe_s = 4
probe_every_s = 0
"""
MODEL = """
[[models]]
id = "{id}"
engine = "openai"
kind = "trtllm"
url = "{url}"
upstream_model = "m"
{more}
price = {{ input = "1", cached_input = "0.1", output = "10" }}
"""


@dataclass
class Said:
    """What the client got: text, its end, usage, or the error."""

    text: str = ""
    finish: str | None = None
    usage: Any = None
    error: openai.APIError | None = None
    request_id: str = ""
    ids: set[str] = field(default_factory=set)
    chunks: list[Any] = field(default_factory=list)

    @property
    def status(self) -> int:
        """Of HTTP; 200 for a stream that failed later."""
        return getattr(self.error, "status_code", 200)

    @property
    def code(self) -> str | None:
        return self.error.code if self.error else None


@dataclass
class Front:
    """The gateway, its fake, and the folder with the tokenizer."""

    stack: Stack
    fake: Served
    folder: Path
    _names: Iterator[int] = field(default_factory=itertools.count)

    def model(self) -> str:
        """One that no test has used, or but one long before: that opens no breaker."""
        return f"m{next(self._names) % MODELS}"

    def tenant(self) -> str:
        """The key of a tenant that nobody has seen."""
        name = f"t{next(self._names)}"
        self.stack.cli("tenants", "create", name)
        return self.stack.cli("keys", "create", name).strip()

    def client(self, key: str = "") -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.stack.url}/v1", api_key=key or self.stack.key, max_retries=0
        )

    def ask(
        self, prompt: Any, *, chat: bool, stream: bool, model: str = "", key: str = "", **more: Any
    ) -> Said:
        """One request, read to its end or to its failure."""
        said = Said()
        asked: dict[str, Any] = {"model": model or self.model(), "max_tokens": TOKENS, **more}
        if stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        if chat:
            asked["messages"] = [{"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        with self.client(key) as client:
            create = client.chat.completions if chat else client.completions
            try:
                raw = create.with_raw_response.create(**asked)
                said.request_id = raw.headers["x-request-id"]
                for chunk in raw.parse() if stream else [raw.parse()]:
                    _take(said, chunk)
            except openai.APIError as fault:
                said.error = fault
                if (response := getattr(fault, "response", None)) is not None:
                    said.request_id = response.headers["x-request-id"]
        return said

    def row(self, said: Said) -> dict[str, Any]:
        """The ledger's one row of it."""
        return row_of(self.stack, said.request_id)

    def exported(self) -> list[dict[str, Any]]:
        """All rows of the stack's own tenant."""
        return exported(self.stack)

    def ids(self, text: str, *, chat: bool) -> list[int]:
        """What the fake makes of this prompt: the ids that a plain one must be sent as."""
        return ids_of(self.folder, f"<user>{text}<assistant>")[1:] if chat else self.plain(text)

    def plain(self, text: str) -> list[int]:
        """The same of a plain prompt, whose control tokens are text like any other."""
        return [ids_of(self.folder, "")[0], *(i for c in text for i in ids_of(self.folder, c)[1:])]

    def answer(self, text: str, tokens: int = TOKENS, *, chat: bool) -> str:
        """What the fake says to this, if it is the prompt that it got."""
        return answer_of(self.ids(text, chat=chat), tokens)


def _take(said: Said, chunk: Any) -> None:
    said.ids.add(chunk.id)
    said.chunks.append(chunk)
    said.usage = chunk.usage or said.usage
    for choice in chunk.choices:
        said.finish = choice.finish_reason or said.finish
        if hasattr(choice, "text"):
            said.text += choice.text
        else:
            part = choice.delta if hasattr(choice, "delta") else choice.message
            said.text += part.content or ""


@contextmanager
def fronted(
    folder: Path, *, more: str = "", config: dict[str, Any] | None = None, models: int = MODELS
) -> Iterator[Front]:
    """`more` is of each model; `{folder}` in it is the tokenizer's."""
    model = tokenizer_folder(folder / "model")
    with served(folder, model=str(model), config=config) as fake:
        told = (more or 'tokenizer = "{folder}"').format(folder=model)
        each = (MODEL.format(id=f"m{i}", url=fake.url, more=told) for i in range(models))
        with running(folder, RELAY + "".join(each)) as stack:
            yield Front(stack, fake, model)
