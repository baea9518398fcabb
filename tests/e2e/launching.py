"""`bulkhead trt launch` as a process, with the fake `trtllm-serve` in a venv or a container."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.stack import BULKHEAD, REPO, free_port
from tests.trtllm.control import ask
from tests.waiting import wait_for

SECRET = "sesame-sesame"
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
MODEL = """
[[models]]
id = "@cf/meta/llama"
aliases = ["llama"]
engine = "tensorrt-llm"
path = "{path}"
url = "{url}/v1"
[models.trt]
guard_url = "{guard_url}"
guard_secret = "GUARD"
{program}

[hosts]
backoff_first_s = 0.1
backoff_max_s = 0.2
"""
SERVE = """#!/bin/sh
env > "$FAKE_ENVIRONMENT"
cd {repo} && exec {python} -m tests.trtllm.launched "$@"
"""
# A client of the daemon below. It records what it is asked, and hands on signals, as theirs do.
CLIENT = """#!{python}
import json, os, pathlib, signal, sys, time
home = pathlib.Path({home!r})
args = sys.argv[1:]
with (home / "asked").open("a") as asked:
    asked.write(json.dumps([pathlib.Path(sys.argv[0]).name, *args]) + "\\n")
if args[:2] == ["rm", "-f"]:
    running = home / args[2]
    if running.exists():
        os.kill(int(running.read_text()), signal.SIGKILL)
    sys.exit(0)
running = home / args[args.index("--name") + 1]
at = args.index({image!r})
env = dict(pair.split("=", 1) for flag, pair in zip(args, args[1:]) if flag == "-e")
(home / "wanted.new").write_text(json.dumps([running.name, args[at + 1:], env]))
(home / "wanted.new").replace(home / "wanted")
signal.signal(signal.SIGTERM, lambda *_: os.kill(int(running.read_text()), signal.SIGTERM))
while (home / "wanted").exists() or running.exists():
    time.sleep(0.02)
"""
IMAGE = "nvcr.io/trt:1"
TOKENS = ("--token-every", "1s", "--token-within", "20s")


class Launch:
    """One launcher. Files of a test's own folder say what its server does."""

    def __init__(self, folder: Path, program: str = "", url: str = "") -> None:
        self.folder = folder
        self.url = url or f"http://127.0.0.1:{free_port()}"
        self.guard_url = f"http://127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | None = None
        self._control = str(folder / "c.sock")
        (folder / "bin").mkdir()
        for name in ("trtllm-serve", "python"):
            self.write(name, SERVE.format(repo=REPO, python=sys.executable))
        (folder / "checkpoint").mkdir()
        (folder / "checkpoint" / "config.json").write_text(json.dumps(CONFIG))
        self.behave()
        (folder / "bulkhead.toml").write_text(
            MODEL.format(
                path=folder / "checkpoint",
                url=self.url,
                guard_url=self.guard_url,
                program=program or f'python = "{folder}/bin/python"',
            )
        )

    def write(self, name: str, script: str) -> None:
        """A program on the launcher's PATH."""
        path = self.folder / "bin" / name
        path.write_text(script)
        path.chmod(0o755)

    @property
    def environ(self) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "TMPDIR": str(self.folder),
            "GUARD": SECRET,
            "OTHERS_TOKEN": "their-own-token",
            "FAKE_TRTLLM_CONTROL": self._control,
            "FAKE_TRTLLM_MANNERS": str(self.folder / "manners.json"),
            "FAKE_ENVIRONMENT": str(self.folder / "environment"),
        }

    def command(self, *words: str) -> list[str]:
        places = ["--config", f"{self.folder}/bulkhead.toml", "--state", f"{self.folder}/state"]
        return [*BULKHEAD, "trt", *words, *places]

    def start(self, *words: str, **environ: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command("launch", "llama", *TOKENS, *words),
                stderr=log,
                cwd=REPO,
                env=self.environ | environ,
            )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, cwd=REPO, env=self.environ
        )

    def behave(self, **manners: Any) -> None:
        draft = self.folder / "manners.new"
        draft.write_bytes(msgspec.json.encode(manners))
        draft.replace(self.folder / "manners.json")

    def fail(self, **faults: Any) -> None:
        ask(self._control, faults=faults)

    def view(self) -> dict[str, Any]:
        """What the launcher says; nothing while it can't be asked."""
        headers = {"authorization": f"Bearer {SECRET}"}
        try:
            found: dict[str, Any] = httpx.get(f"{self.guard_url}/", headers=headers).json()
        except httpx.HTTPError:
            return {}
        return found

    def ready(self, starts: int = 1) -> dict[str, Any]:
        def is_ready() -> bool:
            assert self.process
            assert self.process.poll() is None, self.log()
            view = self.view()
            return view.get("state") == "ready" and view["starts"] >= starts

        wait_for(is_ready)
        return self.view()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def events(self) -> list[dict[str, Any]]:
        """Its log lines."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def launch(folder: Path, program: str = "", url: str = "") -> Iterator[Launch]:
    """One to start; it has ended after the block."""
    found = Launch(folder, program, url)
    try:
        yield found
    finally:
        if found.process and found.process.poll() is None:
            found.process.terminate()
            found.process.wait(60)


class Containers:
    """The daemon of a program that runs containers: what it starts is no child of its client's."""

    def __init__(self, one: Launch, name: str) -> None:
        self._home = one.folder / "bin"
        self._environ = one.environ
        self._over = threading.Event()
        one.write(name, CLIENT.format(python=sys.executable, home=str(self._home), image=IMAGE))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def pid(self, container: str) -> int:
        """Of a container that runs; 0 if it doesn't."""
        running = self._home / container
        return int(running.read_text()) if running.exists() else 0

    def asked(self) -> list[list[str]]:
        """Every command line so far."""
        return [json.loads(line) for line in (self._home / "asked").read_text().splitlines()]

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        running: dict[str, subprocess.Popen[bytes]] = {}
        wanted = self._home / "wanted"
        while not self._over.wait(0.02):
            if wanted.exists():
                name, command, env = json.loads(wanted.read_text())
                command[0] = str(self._home / command[0])
                running[name] = subprocess.Popen(command, env=self._environ | env)
                (self._home / name).write_text(str(running[name].pid))
                wanted.unlink()
            for name, process in running.items():
                if process.poll() is not None:
                    (self._home / name).unlink(missing_ok=True)
        for process in running.values():
            process.kill()
            process.wait()


class Manager:
    """systemd's ear."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify.sock")
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(self.path)
        self._sock.settimeout(60)

    def hear(self, wanted: str) -> list[str]:
        """All that is said until this is."""
        said: list[str] = []
        while wanted not in said:
            said.append(self._sock.recv(4096).decode())
        return said

    def close(self) -> None:
        self._sock.close()
