"""A gateway with models of every kind: with a card, deprecated, gone, our own."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from tests.gateway.front import Gateway, gateway, stream_ok

TODAY = datetime.datetime.now(datetime.UTC).date()
SOON = TODAY + datetime.timedelta(days=30)
CONFIG = f"""
[[models]]
id = "@cf/there"
engine = "openai"
cache = "salted"
url = "{{url}}"
aliases = ["there-latest"]
owned_by = "acme-labs"
released = 2024-11-01
card = "there.toml"
[models.price]
input = "0.10"
cached_input = "0.02"
output = "0.30"
effective_from = 2026-02-01

[[models]]
id = "plain/schema"
engine = "openai"
cache = "salted"
url = "{{url}}"
lifecycle = {{ deprecated_at = {TODAY}, shutdown_at = {SOON}, successor = "@cf/there" }}

[[models]]
id = "gone"
engine = "openai"
cache = "salted"
url = "{{url}}"
aliases = ["gone-too"]
lifecycle = {{ deprecated_at = 2024-01-01, shutdown_at = {TODAY}, successor = "@cf/there" }}

[[models]]
id = "own"
engine = "fake"
options = {{ max_context_tokens = 2048 }}

[[tenants]]
name = "contracted"
[[tenants.prices]]
model = "@cf/there"
currency = "EUR"
input = "0.05"
cached_input = "0.000001"
output = "1"
"""
CARD = """
name = "There 7B"
description = "Sees and Says."
context_length = 32768
max_output_tokens = 4096
tokenizer = "there-bpe"
quantization = "int4"
[architecture]
family = "llama"
parameters = 7000000000
input_modalities = ["text", "image"]
tokenizer = "Llama3"
instruct_type = "llama3"
[license]
spdx = "MIT"
[source]
repo = "acme-labs/there-7b"
revision = "0123abc"
"""


def served(folder: Path, answer: Any = stream_ok) -> Any:
    (folder / "there.toml").write_text(CARD)
    return gateway(folder, answer, CONFIG, ("acme", "contracted"))


async def models(gate: Gateway, query: str = "", tenant: str = "acme") -> dict[str, Any]:
    answer = await gate.http.get(f"/v1/models{query}", headers=gate.bearer(tenant))
    assert answer.status_code == 200, answer.text
    return {model["id"]: model for model in answer.json()["data"]}
