"""Command lines: what starts a model's servers, in a venv, in a container, on several machines."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engines.trtllm import command
from engines.trtllm.command import Address, address_of
from engines.trtllm.commands import Laid, Served, command_text, hosts_of
from engines.trtllm.render import Unrenderable
from engines.trtllm.roles import roles
from engines.trtllm.settings import TrtSettings
from tests.engines.trtllm.settings import PAIR
from tests.test_packaging import lint, tool
from tests.trtllm.options import read_options

PATH = "/models/it's a llama"


def told(urls: tuple[str, ...] = ("http://127.0.0.1:8000/v1",), gpus: int = 8, **said: Any) -> str:
    trt = TrtSettings(**said)
    return command_text(Served("llama", PATH, urls, trt), Laid("/etc/trt x", {}), gpus)


def commands(text: str) -> list[list[str]]:
    """Each line as a shell would split it, without what it sets before."""
    lines = [shlex.split(line) for line in text.splitlines() if line and not line.startswith("#")]
    return [[word for i, word in enumerate(line) if "=" not in word or i > 3] for line in lines]


@pytest.mark.parametrize(
    ("url", "at"),
    [
        ("http://10.0.0.5:8001/v1", Address("10.0.0.5", 8001)),
        ("http://[::1]:9000/v1", Address("::1", 9000)),
        ("http://gpu-1/v1", Address("gpu-1", 80)),
        ("https://gpu-1/v1", Address("127.0.0.1", 8000)),
        ("gen-0:8002", Address("gen-0", 8002)),
    ],
)
def test_it_listens_where_its_url_says_and_behind_tls_to_its_machine(url: str, at: Address) -> None:
    assert address_of(url) == at


def test_trtllm_serve_takes_the_command() -> None:
    """As far as what stands in for it knows its command line."""
    (line,) = commands(told(guard=False, python="/opt/trt/bin/python"))
    assert line[0] == "/opt/trt/bin/trtllm-serve"
    options = read_options([*line[1:-2]], "1.2.1")
    assert (options.model, options.host, options.port) == (PATH, "127.0.0.1", 8000)
    assert line[-2:] == ["--config", "/etc/trt x/serve.yaml"]


def test_nobody_is_told_how_it_is_used() -> None:
    for said in ({"guard": False}, {"guard": False, "image": "i"}, PAIR):
        text = told(**said)
        assert text.count("TRTLLM_NO_USAGE_STATS=1") == text.count("trtllm-serve")


def test_the_guard_has_its_modules_and_a_folder_that_is_its_own() -> None:
    text = told(urls=("http://10.0.0.5:8000/v1", "http://10.0.0.6:8001/v1"))
    assert "mkdir -m 700 /dev/shm/bulkhead-guard-8000 &&\n" in text
    assert "mkdir -m 700 /dev/shm/bulkhead-guard-8001 &&\n" in text
    assert text.count("PYTHONPATH='/etc/trt x/python'") == 2


def test_a_container_has_the_folders_at_their_paths_and_only_writes_where_it_must() -> None:
    *_, line = commands(told(image="registry.example.com/tensorrt-llm:1.2.1", tensor_parallel=4))
    assert line[:2] == ["docker", "run"]
    assert line[line.index("--gpus") + 1] == "4"
    mounts = {word for before, word in pairwise(line) if before == "-v"}
    assert mounts == {
        "/dev/shm/bulkhead-guard-8000:/dev/shm/bulkhead-guard-8000",
        "/etc/trt x:/etc/trt x:ro",
        f"{PATH}:{PATH}:ro",
    }
    assert line[line.index("registry.example.com/tensorrt-llm:1.2.1") + 1] == "trtllm-serve"


def test_as_somebody_who_isn_t_root_it_has_a_home() -> None:
    line = command.container("i", ["x"], {}, {}, "1", user="1000:1000")
    assert line[line.index("--user") + 1] == "1000:1000"
    assert "HOME=/tmp" in line


@pytest.mark.parametrize(
    ("ranks", "gpus", "used"), [(16, 8, [8, 8]), (12, 8, [8, 4]), (4, 8, [4]), (8, 4, [4, 4])]
)
def test_ranks_fill_machines(ranks: int, gpus: int, used: list[int]) -> None:
    found = hosts_of("first", ranks, gpus)
    assert list(found.values()) == used
    assert next(iter(found)) == "first"


def test_a_server_that_spans_machines_is_started_by_mpi() -> None:
    text = told(urls=("http://gpu-1:8000/v1",), guard=False, tensor_parallel=8, pipeline_parallel=2)
    (line,) = commands(text)
    assert line[:5] == ["mpirun", "-n", "16", "--host", "gpu-1:8,MACHINE-2:8"]
    assert line[line.index("trtllm-llmapi-launch") + 1] == "trtllm-serve"


def test_prompts_and_answers_apart_have_a_line_a_server_and_one_for_the_front() -> None:
    lines = commands(told(**PAIR))
    assert [line[line.index("--port") + 1] for line in lines[:-1]] == ["8001", "8001", "8002"]
    assert [line[line.index("--host") + 1] for line in lines[:-1]] == ["ctx-0", "ctx-1", "gen-0"]
    assert lines[-1] == ["trtllm-serve", "disaggregated", "-c", "/etc/trt x/front.yaml"]


@pytest.mark.parametrize("said", [{}, {"image": "i"}, {"tensor_parallel": 32}, PAIR])
def test_a_shell_reads_them(said: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "command.txt"
    file.write_text(told(**said))
    assert lint(tool("shellcheck"), "--shell=sh", "--norc", file) == ""


def test_servers_on_one_machine_share_its_gpus_out() -> None:
    urls = ("http://gpu-1:8000/v1", "http://gpu-1:8001/v1", "http://gpu-2:8000/v1")
    text = told(urls=urls, guard=False, tensor_parallel=2)
    found = re.findall(r"^(?:CUDA_VISIBLE_DEVICES=(\S+) )?TRT.*--host (\S+)", text, re.MULTILINE)
    assert found == [("0,1", "gpu-1"), ("2,3", "gpu-1"), ("", "gpu-2")]
    text = told(urls=urls, guard=False, tensor_parallel=2, image="i")
    gpus = [line[line.index("--gpus") + 1] for line in commands(text)]
    assert gpus == ['"device=0,1"', '"device=2,3"', "2"]
    with pytest.raises(Unrenderable, match="gpu-1 need 16 GPUs, and it has 8"):
        told(urls=urls, guard=False, tensor_parallel=8)


def test_every_role_has_its_own_yaml() -> None:
    trt = TrtSettings(**PAIR)
    laid = Laid("/f", {"context": "checkpoint-context"})
    context, generation = roles(PATH, trt)
    assert (laid.config(context), laid.checkpoint(context)) == (
        "/f/context.yaml",
        "/f/checkpoint-context",
    )
    assert (laid.config(generation), laid.checkpoint(generation)) == ("/f/generation.yaml", PATH)


def test_a_folder_that_no_path_of_python_s_can_name_is_refused() -> None:
    with pytest.raises(Unrenderable, match="PYTHONPATH"):
        command_text(
            Served("llama", PATH, ("http://127.0.0.1:8000/v1",), TrtSettings()), Laid("/a:b", {}), 8
        )
