"""Dockerfile, compose file and systemd unit: linted, and held to what this program really takes.

No engine builds them here. `make soak` runs the Dockerfile's own build steps in a fresh folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gateway.cli.commands import main
from gateway.cli.options import Exit
from runtime.config.sections import ServerSettings
from runtime.trt.warden import GONE_S
from tests.stack import SOAK

REPO = Path(__file__).resolve().parent.parent
UNIT = REPO / "config" / "systemd" / "bulkhead.service"
TRT_UNIT = UNIT.with_name("bulkhead-trt@.service")
COMPOSE = REPO / "compose.yaml"
DOCKERFILE = REPO / "Dockerfile"
YAML_RULES = (
    "{extends: default, rules: {line-length: {max: 110}, document-start: disable,"
    " comments: {min-spaces-from-content: 1}}}"
)


def tool(name: str) -> str:
    """A linter's path; from the tests' own environment before the machine's."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}") or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} isn't installed")
    return path


def lint(*command: str | Path) -> str:
    """What a linter says; it must be content."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    return told


def steps() -> list[tuple[int, str, str]]:
    """The Dockerfile's instructions: of which stage, which, and its words."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    found, stage = [], -1
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            stage += word == "FROM"
            found.append((stage, word, rest.strip()))
    return found


def of_the_image(word: str) -> list[str]:
    last = steps()[-1][0]
    return [rest for stage, kind, rest in steps() if stage == last and kind == word]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def unit(path: Path = UNIT) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_dockerfile_is_linted() -> None:
    assert lint(tool("hadolint"), "--failure-threshold", "style", DOCKERFILE) == ""


def test_the_image_runs_as_nobody_special_and_ends_on_sigterm() -> None:
    assert of_the_image("USER") == ["10001:10001"]
    assert of_the_image("STOPSIGNAL") == ["SIGTERM"]
    assert of_the_image("VOLUME") == ["/var/lib/bulkhead"]
    assert of_the_image("ENTRYPOINT") == ['["bulkhead"]']
    assert of_the_image("CMD") == ['["serve"]']
    (check,) = of_the_image("HEALTHCHECK")
    assert 'CMD ["python",' in check
    assert "/healthz" in " ".join(of_the_image("ENV"))


def test_the_image_holds_no_compiler_and_names_no_index() -> None:
    """The last stage only copies what was built; whoever builds names the index of torch."""
    text = DOCKERFILE.read_text()
    assert "apt" not in text
    assert not [step for step in of_the_image("RUN") if "pip" in step]
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == [
        "python:${PYTHON}",
        "python:${PYTHON}-slim",
    ]
    hosts = {url for url in re.findall(r"https?://[\w.:]+", text) if "127.0.0.1" not in url}
    assert hosts == set()
    assert {'ARG EXTRAS=""', 'ARG TORCH_INDEX=""'} <= set(text.splitlines())


def test_the_image_s_health_check_sees_what_it_should(tmp_path: Path) -> None:
    """The very command, against nobody."""
    (check,) = of_the_image("HEALTHCHECK")
    command = yaml.safe_load(check[check.index("[") :])
    env = {"HEALTH_URL": "http://127.0.0.1:9/healthz"}
    done = subprocess.run(
        [sys.executable, *command[1:]], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "refused" in done.stderr


def test_the_build_gets_what_it_copies_and_no_secrets() -> None:
    """.dockerignore leaves everything out but what the Dockerfile names."""
    lines = (REPO / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        source
        for _, word, rest in steps()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == let_in
    assert "**/.dev.vars*" in rules


def test_the_compose_file_is_linted() -> None:
    lint(tool("yamllint"), "--strict", "-d", YAML_RULES, COMPOSE)
    lint(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE)


def test_compose_starts_bulkhead_alone_and_the_rest_by_profile() -> None:
    services = compose()["services"]
    assert [name for name, service in services.items() if "profiles" not in service] == ["bulkhead"]
    assert {services[name]["profiles"][0] for name in ("postgres", "valkey")} == {"replicas"}
    for service in services.values():
        assert "no-new-privileges:true" in service["security_opt"]
        assert service["cap_drop"] == ["ALL"]
        assert service["restart"] == "unless-stopped"
    assert services["bulkhead"]["ports"] == ["${BULKHEAD_PUBLISH:-127.0.0.1:8787}:8787"]
    assert all("ports" not in services[name] for name in ("postgres", "valkey"))


def test_compose_has_no_password_in_it() -> None:
    """They are files that the operator makes; without them nothing starts."""
    found = compose()
    assert set(found["secrets"]) == {"postgres-password", "valkey-password"}
    for secret in found["secrets"].values():
        assert list(secret) == ["file"]
        assert secret["file"].startswith("./secrets/")
    assert "/secrets/" in (REPO / ".gitignore").read_text().splitlines()
    environment = found["services"]["postgres"]["environment"]
    assert environment["POSTGRES_PASSWORD_FILE"] == "/run/secrets/postgres-password"
    assert "POSTGRES_PASSWORD" not in environment


def test_valkey_refuses_to_start_without_a_password(tmp_path: Path) -> None:
    """The script in the compose file, with a server that only says that it was started."""
    for name, code in {"docker-entrypoint.sh": 'echo "started $*"', "chown": ":"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    script = compose()["services"]["valkey"]["command"][-1].replace("$$", "$")
    secret, config = tmp_path / "password", tmp_path / "auth.conf"
    script = script.replace("/run/secrets/valkey-password", str(secret))
    script = script.replace("/tmp/auth.conf", str(config))

    def start() -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        command = ["sh", "-euc", script]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert start().returncode != 0
    secret.write_text("\n")
    assert start().returncode != 0
    assert not config.exists()
    secret.write_text("a-secret\n")
    done = start()
    assert done.stdout.startswith(f"started valkey-server {config}")
    assert "a-secret" not in done.stdout
    assert (config.read_text(), config.stat().st_mode & 0o777) == ("requirepass a-secret\n", 0o600)


@pytest.mark.parametrize("unit", [UNIT, TRT_UNIT], ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(tmp_path: Path, unit: Path) -> None:
    """With a program that is there in place of the one that isn't."""
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/bulkhead/bin/bulkhead", "/bin/true"))
    assert lint(tool("systemd-analyze"), "verify", "--man=no", copy) == ""


def test_the_unit_is_confined() -> None:
    """systemd's own measure, of 100: what is left is the network, and files for all to read."""
    lint(tool("systemd-analyze"), "security", "--offline=true", "--threshold=20", UNIT)


def test_the_unit_s_commands_are_ours_and_its_times_fit() -> None:
    found = unit()
    for name in ("ExecStart", "ExecReload"):
        (command,) = found[name]
        program, sub, *_ = command.split()
        assert program == "/opt/bulkhead/bin/bulkhead"
        assert sub in main.commands
    taken = {option for param in main.commands["serve"].params for option in param.opts}
    assert "--deployed" in taken
    drain_s = ServerSettings().drain_s
    assert int(found["TimeoutStopSec"][0]) > 2 * drain_s
    assert found["KillMode"] == ["mixed"]
    assert found["RestartPreventExitStatus"] == [str(int(Exit.CONFIG))]
    grace = compose()["services"]["bulkhead"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > 2 * drain_s


if SOAK:  # it installs everything anew

    def test_the_dockerfile_s_build_steps_work(tmp_path: Path) -> None:
        """Its own RUN lines, with a folder in place of each of the image's."""
        source, target = tmp_path / "src", tmp_path / "opt"
        source.mkdir()
        for stage, word, rest in steps():
            if stage == 0 and word == "COPY":
                for name in rest.split()[:-1]:
                    (shutil.copytree if (REPO / name).is_dir() else shutil.copy)(
                        REPO / name, source / name
                    )
        for stage, word, rest in steps():
            if stage == 0 and word == "RUN":
                line = re.sub(r"^--mount=\S+\s+", "", rest).replace("/opt/bulkhead", str(target))
                subprocess.run(["sh", "-euc", line], cwd=source, check=True, timeout=1800)
        program = str(target / "bin" / "bulkhead")
        lint(program, "--version")
        lint(program, "check", "--state", tmp_path / "state")
        has = "import importlib.util, engines._native; print(importlib.util.find_spec('torch'))"
        assert lint(str(target / "bin" / "python"), "-I", "-c", has) == "None\n"


def test_the_unit_of_a_launcher_waits_for_its_word_and_ends_it_in_order() -> None:
    found = unit(TRT_UNIT)
    assert found["ExecStart"] == ["/opt/bulkhead/bin/bulkhead trt launch $LAUNCH"]
    trt = main.commands["trt"]
    assert isinstance(trt, click.Group)
    assert "launch" in trt.commands
    assert found["Type"] == ["notify"]
    assert found["KillMode"] == ["mixed"]
    assert int(found["TimeoutStopSec"][0]) > ServerSettings().drain_s + GONE_S
    assert found["User"] == unit()["User"]
    assert found["RestartPreventExitStatus"] == [str(int(Exit.CONFIG))]
