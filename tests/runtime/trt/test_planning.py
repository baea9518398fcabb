"""From the configuration to a command line: which server, where, in which environment."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime import settings as config
from runtime.settings import Settings
from runtime.trt.bind import Bind, LaunchRefused
from runtime.trt.child import Command
from runtime.trt.planning import Wish, events_bind, plan_of, target_of

ALONE = """
url = "http://10.0.0.5:8000/v1"
[models.trt]
{program}
guard_url = "http://10.0.0.5:9000"
guard_secret = "GUARD"
"""
SEVERAL = """
servers = [
    {{ url = "http://10.0.0.5:8000/v1", guard_url = "http://10.0.0.5:9000" }},
    {{ url = "http://10.0.0.6:8000/v1", guard_url = "http://10.0.0.6:9001" }},
]
[models.trt]
{program}
guard_secret = "GUARD"
"""
APART = """
url = "http://10.0.0.5:8000/v1"
[models.trt]
guard = false
{program}
[models.trt.context]
urls = ["10.0.0.5:8001", "10.0.0.6:8001"]
tensor_parallel = 2
[models.trt.generation]
urls = ["10.0.0.7:8002"]
"""
VENV = 'python = "/opt/trtllm/bin/python"\n'
IMAGE = 'image = "trt:1"\n'
CHECKPOINT = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("runtime.trt.planning.SHM", tmp_path)
    for name in ("docker", "podman"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)


def settings(folder: Path, text: str, program: str = VENV) -> Settings:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model/config.json").write_text(json.dumps(CHECKPOINT))
    head = f'[[models]]\nid = "@cf/llama"\nengine = "tensorrt-llm"\npath = "{folder}/model"\n'
    (folder / "bulkhead.toml").write_text(head + text.format(program=program))
    return config.peek(folder / "bulkhead.toml", folder / "state")


def planned(found: Settings, **wish: Any) -> Command:
    wished = Wish(**wish)
    plan = plan_of(target_of(found.file.models[0], wished), found, wished)
    return plan.command(plan.guards / "1" if plan.guards else None)


def test_a_server_of_a_venv(tmp_path: Path) -> None:
    command = planned(settings(tmp_path, ALONE))
    folder = tmp_path / "state/trt/cf-llama-8000"
    assert command.command == [
        *("/opt/trtllm/bin/trtllm-serve", f"{tmp_path}/model", "--backend", "pytorch"),
        *("--host", "10.0.0.5", "--port", "8000", "--config", f"{folder}/serve.yaml"),
    ]
    assert command.folder == str(folder)
    assert (command.env["PYTHONPATH"], command.clear) == (f"{folder}/python", [])
    assert Path(command.env["BULKHEAD_GUARD_DIR"]).name == "1"
    again = planned(settings(tmp_path, ALONE), listen=Bind("127.0.0.1", 1))
    assert again.command[5:8:2] == ["127.0.0.1", "1"]
    assert again.mark != command.mark


def test_one_of_several_is_named_and_has_its_own_guard_url(tmp_path: Path) -> None:
    found = settings(tmp_path, SEVERAL)
    model = found.file.models[0]
    with pytest.raises(LaunchRefused, match=r"--server.*10\.0\.0\.5:8000, 10\.0\.0\.6:8000"):
        target_of(model, Wish())
    wish = Wish(server=Bind("10.0.0.6", 8000), listen=Bind("127.0.0.1", 8000))
    target = target_of(model, wish)
    assert events_bind(target, None, allow_public=False) == Bind("10.0.0.6", 9001)
    assert planned(found, server=Bind("10.0.0.6", 8000)).command[5] == "10.0.0.6"


def test_other_machines_follow_only_who_asks_for_a_secret(tmp_path: Path) -> None:
    text = ALONE.replace("http://10.0.0.5:9000", "http://127.0.0.1:9000").replace(
        'guard_secret = "GUARD"\n', ""
    )
    target = target_of(settings(tmp_path, text).file.models[0], Wish())
    assert events_bind(target, None, allow_public=False) == Bind("127.0.0.1", 9000)
    for allow_public in (False, True):
        with pytest.raises(LaunchRefused, match="guard_secret"):
            events_bind(target, Bind("10.0.0.5", 9000), allow_public=allow_public)


def test_phases_and_their_front(tmp_path: Path) -> None:
    found = settings(tmp_path, APART)
    with pytest.raises(LaunchRefused, match=r"--role.*context, generation, front"):
        planned(found)
    with pytest.raises(LaunchRefused, match="spans machines"):
        planned(found, phase="context", server=Bind("10.0.0.6", 8001), gpus_per_machine=1)
    context = planned(found, phase="context", server=Bind("10.0.0.6", 8001))
    assert context.command[-1].endswith("/context.yaml")
    assert "BULKHEAD_GUARD_DIR" not in context.env
    front = planned(found, phase="front")
    assert front.command[:2] == ["/opt/trtllm/bin/trtllm-serve", "disaggregated"]
    assert Path(front.command[-1]).is_file()


@pytest.mark.parametrize("runner", ["docker", "podman"])
def test_a_container_is_named_so_that_it_can_be_ended(
    tmp_path: Path, runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr("runtime.trt.planning._guards", lambda *_: tmp_path / "guards")
    command = planned(settings(tmp_path, ALONE, IMAGE), runner=runner)
    line = command.command
    assert line[:4] == [runner, "run", "--name", "bulkhead-trt-cf-llama-8000"]
    assert command.clear == [[runner, "rm", "-f", "bulkhead-trt-cf-llama-8000"]]
    assert line[line.index("--user") + 1].startswith("1000:")
    if runner == "docker":
        assert line[line.index("--gpus") + 1] == "1"
    else:
        assert line[line.index("--device") + 1] == "nvidia.com/gpu=all"
        assert line[line.index("--userns") + 1] == "keep-id"
    assert f"{tmp_path}/guards/1:{tmp_path}/guards/1" in line
    assert line[line.index("trt:1") + 1] == "trtllm-serve"
    front = planned(settings(tmp_path, APART, IMAGE), phase="front", runner=runner).command
    assert not {"--gpus", "--device"} & set(front)


def test_what_is_left_of_a_launcher_that_was_killed_goes(tmp_path: Path) -> None:
    found = settings(tmp_path, ALONE)
    wish = Wish()
    target = target_of(found.file.models[0], wish)
    plan = plan_of(target, found, wish)
    assert plan.guards
    (plan.guards / "old").mkdir()
    (tmp_path / "state/trt/cf-llama-8000/old").touch()
    again = plan_of(target, found, replace(wish))
    assert again.guards == plan.guards
    assert list(plan.guards.iterdir()) == []
    assert not (tmp_path / "state/trt/cf-llama-8000/old").exists()


def test_of_our_environment_it_gets_what_is_no_business_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = '[[models]]\nid = "x"\nengine = "openai"\nurl = "http://x/v1"\ncache = "off"\n'
    monkeypatch.setenv("UPSTREAM", "sesame-sesame")
    monkeypatch.setenv("BULKHEAD_ROOT_SECRET", "0" * 64)
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    monkeypatch.setenv("PYTHONSTARTUP", "/x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    env = planned(settings(tmp_path, ALONE + others + 'api_key_secret = "UPSTREAM"\n')).env
    assert env["CUDA_VISIBLE_DEVICES"] == "3"
    assert not {"UPSTREAM", "BULKHEAD_ROOT_SECRET", "NOTIFY_SOCKET", "PYTHONSTARTUP"} & env.keys()


def test_only_the_guard_s_secret_is_needed(tmp_path: Path) -> None:
    found = settings(tmp_path, ALONE)
    assert found.secrets == {}
    path = tmp_path / "bulkhead.toml"
    environ = {"GUARD": "sesame-sesame", "TMPDIR": str(tmp_path)}
    found = config.peek(path, tmp_path / "state", needs="guard_secret", environ=environ)
    assert found.secrets == {"GUARD": "sesame-sesame"}
    with pytest.raises(config.ConfigError, match="GUARD"):
        config.peek(path, tmp_path / "state", needs="guard_secret", environ={})


def test_systemd_says_where_it_listens_and_how_often_it_wants_to_hear() -> None:
    told = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "30000000"}
    assert config.service_manager(told) == ("@x", 30.0)
    assert config.service_manager(told | {"WATCHDOG_PID": str(os.getpid())}) == ("@x", 30.0)
    assert config.service_manager(told | {"WATCHDOG_PID": "1"}) == ("@x", 0)
    assert config.service_manager(told | {"WATCHDOG_USEC": "x"}) == ("@x", 0)
    assert config.service_manager({}) == ("", 0)
