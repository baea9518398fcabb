"""The catalog of a running gateway, through SDK and command line, and against what is served."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.stack import BULKHEAD, REPO, Stack, fake_config, running

CONFIG = (
    fake_config(step_s=0.001, more='aliases = ["echo-latest"]\n')
    + """
[[tenants]]
name = "demo"
[[tenants.prices]]
model = "echo"
currency = "EUR"
input = "0.01"
cached_input = "0"
output = "0.02"

[limits]
wall_s = 4
"""
)
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "echo", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 6},
    TEXT: {"model": "echo", "prompt": "abc", "max_tokens": 6},
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("catalog"), CONFIG) as found:
        yield found


def test_the_sdk_lists_models_and_keeps_what_it_doesn_t_know(stack: Stack) -> None:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key) as sdk:
        models = list(sdk.models.list())
        assert [model.id for model in models] == ["echo", "echo-latest"]
        one = sdk.models.retrieve("echo-latest")
        assert one.model_extra is not None
        assert one.model_extra["alias_of"] == "echo"
        assert one.model_extra["pricing"]["completion"] == "0.00000002"
        with pytest.raises(openai.NotFoundError):
            sdk.models.retrieve("nope")


@pytest.mark.parametrize("path", BODIES)
def test_what_is_served_fits_the_schema_that_is_told(stack: Stack, path: str) -> None:
    """The whole answer, and each event of a stream with its usage."""
    with stack.client() as http:
        told = http.get("/v1/models/echo/schema").json()["endpoints"][path]
        body = BODIES[path]
        jsonschema.validate(body, told["input"])
        jsonschema.validate(http.post(path, json=body).json(), told["output"])
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        answer = http.post(path, json=body | streaming)
        events = [line[6:] for line in answer.text.split("\n\n") if line.startswith("data: {")]
        assert len(events) > 3
        for event in events:
            jsonschema.validate(json.loads(event), told["stream"])
        assert json.loads(events[-1])["usage"]["completion_tokens"] == 6


def test_what_was_contracted_is_billed_under_the_model_s_own_name(stack: Stack) -> None:
    with stack.client() as http:
        answer = http.post(TEXT, json=BODIES[TEXT] | {"model": "echo-latest"})
        assert answer.json()["model"] == "echo"
        request = answer.headers["x-request-id"]
    rows = stack.cli("usage", "export", "--format", "jsonl").splitlines()
    (row,) = [row for line in rows if (row := json.loads(line))["request_id"] == request]
    assert (row["model"], row["currency"]) == ("echo", "EUR")
    assert row["amount"] == "0.00000015"  # 3 x 0.01 + 6 x 0.02, for a million each


def test_health_is_what_a_request_can_expect(stack: Stack) -> None:
    """After an answer its host is ready, and it is known how fast it was."""
    with stack.client() as http:
        assert http.post(TEXT, json=BODIES[TEXT] | {"stream": True}).status_code == 200
        found = {
            one["id"]: one["health"] for one in http.get("/v1/models?view=full").json()["data"]
        }
        assert found["echo"] == found["echo-latest"]
        assert found["echo"]["status"] == "ready"
        assert found["echo"]["ttft_p50"] > 0
        assert found["echo"]["tps_p50"] > 0


def test_the_commands_ask_the_gateway_that_the_environment_names(stack: Stack) -> None:
    def run(*args: str) -> str:
        env = {"BULKHEAD_URL": stack.url, "BULKHEAD_API_KEY": stack.key, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [*BULKHEAD, "models", *args], capture_output=True, text=True, env=env, cwd=REPO
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "EUR" in run("list")
    (alias,) = json.loads(run("list", "--json", "--search", "latest"))
    assert alias["alias_of"] == "echo"
    assert set(json.loads(run("schema", "echo-latest", "--json"))) == {CHAT, TEXT}


def test_a_client_that_reads_nothing_doesn_t_hold_its_place_for_ever(stack: Stack) -> None:
    """Over the real server: its socket fills, its time ends, its record says so."""
    body = json.dumps(BODIES[TEXT] | {"prompt": "abc" * 1000, "max_tokens": 5000, "stream": True})
    with socket.create_connection(("127.0.0.1", stack.port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(
            f"POST {TEXT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stack.key}\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}".encode()
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if any('"request_timeout"' in line for line in stack.log.read_text().splitlines()):
                break  # the request's log line: it has left the server
            time.sleep(0.2)
        else:
            raise AssertionError("it is still running")
    rows = stack.cli("usage", "export", "--format", "jsonl").splitlines()
    assert "timeout" in [json.loads(line)["outcome"] for line in rows]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_routes_go_by_http2_s_authority_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = 'routes = ["ai.example.com/v1/*"]\n' + fake_config()
    with running(tmp_path_factory.mktemp("routes"), config) as stack:

        def status(host: str, path: str) -> str:
            return subprocess.run(
                [
                    *("curl", "-sS", "--http2-prior-knowledge", "-o", "/dev/null"),
                    *("-w", "%{http_version} %{http_code}", "--noproxy", "*"),
                    *("--connect-to", f"{host}:80:127.0.0.1:{stack.port}"),
                    *("-H", f"Authorization: Bearer {stack.key}", f"http://{host}{path}"),
                ],
                capture_output=True,
                text=True,
                check=True,
            ).stdout

        assert status("ai.example.com", "/v1/models") == "2 200"
        assert status("other.example.com", "/v1/models") == "2 404"
        assert status("other.example.com", "/healthz") == "2 200"
