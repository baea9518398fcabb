"""A rendered pod's command, run as it is: its launcher starts the server and tells of its guard."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from engines.trtllm.commands import Served
from engines.trtllm.kubernetes import kubernetes_yaml
from engines.trtllm.settings import TrtSettings
from tests.e2e.launching import SECRET, launch
from tests.stack import BULKHEAD, REPO


def test_the_command_of_a_pod_starts_its_server_and_tells_of_its_guard(tmp_path: Path) -> None:
    with launch(tmp_path) as one:
        port, events = (urlsplit(url).port for url in (one.url, one.guard_url))
        trt = TrtSettings(
            guard_url=f"http://llama-0:{events}",
            guard_secret="GUARD",
            image="both:1",
            python=f"{tmp_path}/bin/python",
        )
        url = f"http://llama-0:{port}/v1"
        served = Served("@cf/meta/llama", f"{tmp_path}/checkpoint", (url,), trt, (trt.guard_url,))
        found = {item["kind"]: item for item in yaml.safe_load_all(kubernetes_yaml(served))}
        (tmp_path / "bulkhead.toml").write_text(found["ConfigMap"]["data"]["bulkhead.toml"])
        (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
        env = {item["name"]: item.get("value", SECRET) for item in container["env"]}
        env |= {"BULKHEAD_CONFIG": f"{tmp_path}/bulkhead.toml"}  # where it is mounted, there
        env |= dict.fromkeys(("HOME", "TMPDIR"), str(tmp_path))
        env |= {"BULKHEAD_STATE": f"{tmp_path}/state"}
        with (tmp_path / "log").open("ab") as log:
            one.process = subprocess.Popen(
                [*BULKHEAD, *container["command"][1:]], stderr=log, cwd=REPO, env=one.environ | env
            )
        view = one.ready()
        assert view["guard"]["steps"] >= 1
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        answer = httpx.post(f"{one.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 3
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            httpx.get(f"{one.guard_url}/events").raise_for_status()
        assert one.stop() == 0
