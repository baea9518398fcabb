"""`bulkhead backend flags`: vLLM's and SGLang's servers are started as they are configured."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.commands import main


def run(
    folder: Path, kind: str, more: str, *words: str, name: str = "qwen"
) -> tuple[int, str, str]:
    (folder / "bulkhead.toml").write_text(
        f'[[models]]\nid = "qwen"\nengine = "openai"\nkind = "{kind}"\nmax_in_flight = 64\n'
        f'upstream_model = "Qwen/Qwen3-8B"\napi_key_secret = "KEY"\n{more}\n'
    )
    asked = ["backend", "flags", "--config", str(folder / "bulkhead.toml")]
    done = CliRunner().invoke(main, [*asked, "--state", str(folder / "state"), name, *words])
    return done.exit_code, done.stdout, done.stderr


def commands(out: str) -> list[list[str]]:
    return [shlex.split(line) for line in out.splitlines() if not line.startswith("#")]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


URL = 'url = "http://10.0.0.5:8001/v1"'
BOTH = pytest.mark.parametrize("kind", ["vllm", "sglang"])


@BOTH
def test_a_server_is_started_as_it_is_called(kind: str, tmp_path: Path) -> None:
    code, out, err = run(tmp_path, kind, URL, "--weights", "/models/a b", "--tensor-parallel", "4")
    assert (code, err) == (0, "")
    (command,) = commands(out)
    assert "/models/a b" in command
    assert option(command, "--served-model-name") == "Qwen/Qwen3-8B"
    assert option(command, "--kv-cache-dtype") == "fp8_e4m3"
    assert option(command, "--tensor-parallel-size") == "4"
    assert (option(command, "--host"), option(command, "--port")) == ("10.0.0.5", "8001")
    room = "--max-num-seqs" if kind == "vllm" else "--max-running-requests"
    assert option(command, room) == "64"


@BOTH
def test_a_cache_that_is_off_is_off_and_one_that_is_salted_tells_what_it_had(
    kind: str, tmp_path: Path
) -> None:
    off = {"vllm": "--no-enable-prefix-caching", "sglang": "--disable-radix-cache"}[kind]
    told = {"vllm": "--enable-prompt-tokens-details", "sglang": "--enable-cache-report"}[kind]
    (command,) = commands(run(tmp_path, kind, URL + '\ncache = "off"')[1])
    assert (off in command, told in command) == (True, False)
    (command,) = commands(run(tmp_path, kind, URL)[1])
    assert (off in command, told in command) == (False, True)


@BOTH
def test_each_server_has_its_own_line(kind: str, tmp_path: Path) -> None:
    more = '[[models.servers]]\nurl = "http://a:1/v1"\nmax_in_flight = 8\n'
    more += '[[models.servers]]\nurl = "http://b:2/v1"\n'
    first, second = commands(run(tmp_path, kind, more, "--kv", "auto")[1])
    assert (option(first, "--port"), option(second, "--port")) == ("1", "2")
    assert "8" in first
    assert "--kv-cache-dtype" not in first


def test_prompts_and_answers_may_be_split(tmp_path: Path) -> None:
    _, out, _ = run(tmp_path, "vllm", URL, "--role", "prefill")
    (command,) = commands(out)
    assert json.loads(option(command, "--kv-transfer-config")) == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer",
    }
    _, out, _ = run(tmp_path, "sglang", URL, "--role", "decode")
    (command,) = commands(out)
    assert option(command, "--disaggregation-mode") == "decode"


@BOTH
def test_a_key_is_named_and_never_shown(kind: str, tmp_path: Path) -> None:
    _, out, _ = run(tmp_path, kind, URL)
    assert "the secret KEY" in out
    assert all("--api-key" not in command for command in commands(out))


@BOTH
def test_it_listens_where_the_gateway_calls_though_the_url_names_no_port(
    kind: str, tmp_path: Path
) -> None:
    for url, port in (("http://10.0.0.5/v1", "80"), ("https://10.0.0.5/v1", "443")):
        (command,) = commands(run(tmp_path, kind, f'url = "{url}"')[1])
        assert option(command, "--port") == port


TRT = """url = "http://10.0.0.5/v1"
[[models]]
id = "llama"
engine = "tensorrt-llm"
trt = { guard = false }
"""


def test_other_models_have_none(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "llamacpp", URL)
    assert code == 2
    assert "vLLM or SGLang; there are: none" in err
    assert "there are: qwen" in run(tmp_path, "vllm", URL, name="mistral")[2]
    assert "`bulkhead trt render llama`" in run(tmp_path, "vllm", TRT, name="llama")[2]
