"""Stacks that the end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.trtllm import Front, fronted
from tests.stack import Stack, fake_config, running


@pytest.fixture(scope="session")
def fake_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`bulkhead dev` over the fake engine, one token a millisecond."""
    with running(tmp_path_factory.mktemp("fake"), fake_config(step_s=0.001)) as stack:
        yield stack


@pytest.fixture(scope="session")
def trt_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """`bulkhead dev` before a stand-in for TensorRT-LLM's server."""
    with fronted(tmp_path_factory.mktemp("trt")) as found:
        yield found


@pytest.fixture
def front(trt_front: Front) -> Front:
    """The same, and the server is well."""
    trt_front.fake.fail()
    return trt_front


@pytest.fixture(scope="session")
def real_stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """`bulkhead dev` over both engines: the embedded one, and a llama.cpp server by URL."""
    from benchmarks import llama_server

    with llama_server.running(model_dir / "model.gguf") as url:
        config = f"""
[[models]]
id = "smollm2-135m-instruct"
engine = "embedded"
min_hosts = 1
path = "{model_dir}"
price = {{ input = "0.10", cached_input = "0.02", output = "0.30" }}

[[models]]
id = "llama-cpp"
engine = "openai"
kind = "llamacpp"
url = "{url}"
price = {{ input = "0.10", output = "0.30" }}
"""
        with running(tmp_path_factory.mktemp("real"), config) as stack:
            yield stack
