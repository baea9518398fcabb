"""`bulkhead trt render`: what a configured model's servers are told, printed or written out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gateway.cli.commands import main

APART = """
[models.trt.context]
urls = ["10.0.0.5:8001"]
[models.trt.generation]
urls = ["10.0.0.6:8002", "10.0.0.7:8002"]
"""


def run(folder: Path, text: str, *words: str) -> tuple[int, str, str]:
    (folder / "bulkhead.toml").write_text(
        '[[models]]\nid = "llama"\naliases = ["@cf/meta/llama"]\nengine = "tensorrt-llm"\n'
        'path = "/models/llama"\napi_key_secret = "KEY"\nurl = "${URL}"\n'
        "[models.trt]\nguard = false\n" + text + '\n[vars]\nURL = "http://127.0.0.1:8000/v1"\n'
    )
    asked = ["trt", "render", "--config", str(folder / "bulkhead.toml")]
    done = CliRunner().invoke(main, [*asked, "--state", str(folder / "state"), *words])
    return done.exit_code, done.stdout, done.stderr


def test_the_only_yaml_is_printed(tmp_path: Path) -> None:
    for name in ("llama", "@cf/meta/llama"):
        code, out, err = run(tmp_path, 'kv_dtype = "fp8"\n', name)
        assert (code, err) == (0, "")
        assert yaml.safe_load(out)["kv_cache_config"]["dtype"] == "fp8"


def test_of_several_one_is_named(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, APART, "llama")
    assert code == 2
    assert "context, front, generation" in err
    for role, key in (("front", "context_servers"), ("context", "cache_transceiver_config")):
        code, out, err = run(tmp_path, APART, "llama", "--role", role)
        assert code == 0, err
        assert key in yaml.safe_load(out)
    assert run(tmp_path, "", "llama", "--role", "front")[0] == 2


def test_a_folder_gets_all_of_it_byte_for_byte_the_same_each_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, err = run(tmp_path, APART, "llama", "--out", str(out), "--json")
    assert code == 0, err
    files = json.loads(said)["files"]
    assert files == ["command.txt", "context.yaml", "front.yaml", "generation.yaml"]
    before = {name: (out / name).read_bytes() for name in files}
    assert run(tmp_path, APART, "llama", "--out", str(out))[0] == 0
    assert {name: (out / name).read_bytes() for name in files} == before
    assert b"KEY" not in b"".join(before.values())


def test_what_an_earlier_time_left_there_is_removed_and_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(tmp_path, APART, "llama", "--out", str(out))[0] == 0
    _, said, _ = run(tmp_path, "", "llama", "--out", str(out))
    assert said.splitlines()[1] == (
        "Removed, of an earlier time: context.yaml, front.yaml, generation.yaml"
    )
    assert {path.name for path in out.glob("*.*") if path.name[0] != "."} == {
        "command.txt",
        "serve.yaml",
    }
    _, said, _ = run(tmp_path, APART, "llama", "--out", str(out), "--json")
    assert json.loads(said)["removed"] == ["serve.yaml"]


@pytest.mark.parametrize("name", ["mistral", "llama "])
def test_a_model_that_isn_t_its_own_is_refused(tmp_path: Path, name: str) -> None:
    code, _, err = run(tmp_path, "", name)
    assert code == 2
    assert "there are: llama" in err


def test_a_fault_of_the_configuration_is_told_before_anything_is_written(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "tokens_per_block = 3\n", "llama", "--out", str(tmp_path / "out"))
    assert code == 3
    assert "tokens_per_block" in err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_can_t_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = run(tmp_path, "", "llama", "--out", str(tmp_path / "file" / "out"))
    assert code == 1
    assert "llama" in err


NAMED = APART.replace("10.0.0.", "node-")


def test_it_can_be_objects_of_kubernetes_or_a_job_of_slurm_s(tmp_path: Path) -> None:
    url = ("--var", "URL:http://front:8000/v1")
    code, out, err = run(tmp_path, NAMED, "llama", *url, "--as", "kubernetes", "--image", "trt:1")
    assert code == 0, err
    kinds = [one["kind"] for one in yaml.safe_load_all(out)]
    assert kinds.count("Deployment") == 4
    folder = tmp_path / "out"
    code, _, err = run(tmp_path, NAMED, "llama", *url, "--as", "slurm", "--out", str(folder))
    assert code == 0, err
    assert f"--config {folder}/context.yaml" in (folder / "slurm.sh").read_text().replace(
        " \\\n ", ""
    )
    assert (folder / "context.yaml").exists()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--as", "slurm"), 2, "--out"),
        (("--as", "kubernetes"), 1, "--image"),
        (("--as", "kubernetes", "--image", "i"), 1, "127.0.0.1 is no name"),
    ],
)
def test_what_can_t_be_rendered_so_is_told(
    words: tuple[str, ...], code: int, told: str, tmp_path: Path
) -> None:
    found, _, err = run(tmp_path, NAMED, "llama", *words)
    assert (found, told in err) == (code, True), err


def test_a_key_that_a_newer_release_may_lack_is_a_warning(tmp_path: Path) -> None:
    """Not all keys of such are known, and TensorRT-LLM ends as it starts at one that it lacks."""
    run(tmp_path, 'version = "1.4.0rc1"\nextra = { pages = 1 }\n', "llama")
    asked = ["check", "--config", str(tmp_path / "bulkhead.toml"), "--json"]
    done = CliRunner().invoke(main, [*asked, "--state", str(tmp_path / "state")])
    told = {one["path"]: one["message"] for one in json.loads(done.stdout)["warnings"]}
    assert "as far as is known" in told["models[0].trt.extra.pages"]


HEARD = """
[[models]]
id = "llama"
engine = "tensorrt-llm"
path = "/models/llama"
"""
ONE = """
url = "http://llama:8000/v1"
[models.trt]
guard_url = "http://llama:9000"
guard_secret = "GUARD"
"""
SEVERAL = """
[[models.servers]]
url = "http://llama-0:8000/v1"
guard_url = "http://llama-0:9000"
[[models.servers]]
url = "http://llama-1:8000/v1"
guard_url = "http://llama-1:9000"
[models.trt]
guard_secret = "GUARD"
"""


@pytest.mark.parametrize("servers", [ONE, SEVERAL])
def test_servers_that_need_launchers_are_started_by_nothing_else(
    servers: str, tmp_path: Path
) -> None:
    """The gateway would send them nothing: launchers tell it of their guards."""
    (tmp_path / "bulkhead.toml").write_text(HEARD + servers)
    asked = ["trt", "render", "llama", "--config", str(tmp_path / "bulkhead.toml")]
    asked += ["--state", str(tmp_path / "state"), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(main, asked).exit_code == 0
    assert "`bulkhead trt launch llama`" in (tmp_path / "out/command.txt").read_text()
    done = CliRunner().invoke(main, [*asked, "--as", "slurm"])
    assert (done.exit_code, "`bulkhead trt launch`" in done.stderr) == (1, True)
    kubernetes = [*asked, "--as", "kubernetes", "--image", "i"]
    done = CliRunner().invoke(main, kubernetes)
    assert (done.exit_code, "--python" in done.stderr) == (1, True)
    assert CliRunner().invoke(main, [*kubernetes, "--python", "/opt/t/bin/python"]).exit_code == 0
    text = (tmp_path / "out/kubernetes.yaml").read_text()
    assert text.count("/opt/bulkhead/bin/bulkhead") == servers.count("guard_url")
