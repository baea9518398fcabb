"""A Slurm job: run by a real shell, with something in the place of Slurm's own commands."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines.trtllm.commands import Laid, Served
from engines.trtllm.render import Unrenderable
from engines.trtllm.settings import TrtServers, TrtSettings
from engines.trtllm.slurm import slurm_script

SRUN = """#!/bin/bash
{ echo "== $*"; sort "$SLURM_HOSTFILE" | uniq -c | awk '{print $2 "*" $1}' | tr '\\n' ' '
  echo; head -1 "$SLURM_HOSTFILE"; } >"$SLURM_SUBMIT_DIR/$$.ran"
sleep 1
"""
SCONTROL = (
    '#!/bin/bash\n[ "$*" = "show hostnames $SLURM_JOB_NODELIST" ] && printf \'%s\\n\' $NODES\n'
)
APART: dict[str, Any] = {
    "guard": False,
    "tensor_parallel": 4,
    "context": TrtServers(urls=("ctx-0:8001", "ctx-0:8003")),
    "generation": TrtServers(urls=("gen-0:8002",), tensor_parallel=20),
}


def script(url: str = "http://front:8000/v1", gpus: int = 8, **said: Any) -> str:
    model = Served("llama", "/models/llama", (url,), TrtSettings(**said))
    return slurm_script(model, Laid("/shared/llama", {}), gpus)


def ran(folder: Path, text: str, nodes: str) -> tuple[int, str, list[str]]:
    """Exit code, stderr, and what each step was told, with how many ranks are where."""
    for name, body in (("srun", SRUN), ("scontrol", SCONTROL), ("job.sh", text)):
        path = folder / name
        path.write_text(body)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    environ = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "some",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(folder),
        "NODES": nodes,
    }
    done = subprocess.run(
        ["bash", str(folder / "job.sh")], env=environ, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stderr, sorted(p.read_text() for p in folder.glob("*.ran"))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_each_server_is_on_the_node_of_its_url_and_spreads_over_spare_ones(tmp_path: Path) -> None:
    text = script(**APART)
    assert "#SBATCH --nodes=5\n" in text
    assert "#SBATCH --nodelist=ctx-0,gen-0,front\n" in text
    _, err, steps = ran(tmp_path, text, "aux-1 aux-2 ctx-0 front gen-0")
    assert err == ""
    by_name = {step.split("--job-name=")[1].split()[0]: step for step in steps}
    assert sorted(by_name) == ["context-0", "context-1", "front", "generation-0"]
    assert "ctx-0*4 " in by_name["context-0"]
    assert "ctx-0*4 " in by_name["context-1"]
    assert "aux-1*8 aux-2*4 gen-0*8 " in by_name["generation-0"]
    assert by_name["generation-0"].splitlines()[-1] == "gen-0"  # the first rank, which serves
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3 " in by_name["context-0"]
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7 " in by_name["context-1"]
    assert "CUDA_VISIBLE_DEVICES" not in by_name["generation-0"]
    assert "trtllm-llmapi-launch" not in by_name["front"]
    assert "disaggregated -c /shared/llama/front.yaml" in by_name["front"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_job_with_too_few_nodes_says_so_and_ends(tmp_path: Path) -> None:
    code, err, _ = ran(tmp_path, script(**APART), "aux-1 ctx-0 front gen-0")
    assert code != 0
    assert "generation-0 needs 3 nodes" in err


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_server_that_ends_ends_the_job(tmp_path: Path) -> None:
    code, _, steps = ran(tmp_path, script(guard=False, url="http://one:8000/v1"), "one")
    assert code == 1
    assert len(steps) == 1


def test_the_guard_has_its_modules_and_its_folder() -> None:
    text = script(version="1.3.0rc29", url="http://one:8000/v1")
    assert "PYTHONPATH=/shared/llama/python" in text
    assert "BULKHEAD_GUARD_DIR=/dev/shm/bulkhead-guard-8000" in text
    assert "mkdir -m 700" in text


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"guard_url": "http://one:9000", "url": "http://one:8000/v1"}, "trt launch"),
        ({"guard": False, "url": "http://127.0.0.1:8000/v1"}, "no node's name"),
        (APART | {"context": TrtServers(urls=("gen-0:1", "gen-0:2"))}, "need 16 GPUs"),
        ({"guard": False, "image": "i", "url": "http://one:1/v1", "path": "/a,b"}, "mounts"),
    ],
)
def test_what_can_t_be_is_refused(said: dict[str, Any], told: str) -> None:
    said = dict(said)
    path, url = said.pop("path", "/models/llama"), said.pop("url", "http://front:8000/v1")
    model = Served("llama", path, (url,), TrtSettings(**said))
    with pytest.raises(Unrenderable, match=told):
        slurm_script(model, Laid("/shared/llama", {}), 8)
