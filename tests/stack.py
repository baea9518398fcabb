"""A real Bulkhead for the tests: `bulkhead dev` as a process, its config written for the test."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from runtime.rundir import runtime_dir

SOAK = os.environ.get("BULKHEAD_SOAK") == "1"  # the long forms, run by `make soak`
REPO = Path(__file__).resolve().parent.parent
BULKHEAD = [sys.executable, "-m", "gateway"]
KEPT_PORTS = 200  # far more than one test takes, far fewer than a process may have open
_kept: deque[socket.socket] = deque()
FAKE = """
[[models]]
id = "echo"
engine = "fake"
min_hosts = {min_hosts}
options = {{ step_s = {step_s}, faults = true, max_running = {max_running} }}
price = {{ input = "0.10", cached_input = "0.02", output = "0.30" }}
"""


def fake_config(
    step_s: float = 0.0, max_running: int = 64, more: str = "", min_hosts: int = 1
) -> str:
    """A config with the fake engine, its host warm, and whatever else."""
    return FAKE.format(step_s=step_s, max_running=max_running, min_hosts=min_hosts) + more


def free_port() -> int:
    """A port for a server to come, that no other process of the tests is given meanwhile.

    It stays bound here: the kernel gives it to nobody who asks for any port. A server that sets
    SO_REUSEADDR, as all of ours do, may listen on it beside us.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    _kept.append(sock)
    if len(_kept) > KEPT_PORTS:
        _kept.popleft().close()
    port: int = sock.getsockname()[1]
    return port


@dataclass
class Stack:
    """A running `bulkhead dev` (or `serve`)."""

    config: Path
    state: Path
    port: int
    command: str = "dev"
    process: subprocess.Popen[str] | None = None
    key: str = ""
    lines: list[str] = field(default_factory=list)
    tls: ssl.SSLContext | Path | None = None  # it serves HTTPS; how we call it, or whom to believe
    options: tuple[str, ...] = ()
    program: Sequence[str] = tuple(BULKHEAD)  # what is started in place of `bulkhead`
    admin_port: int = field(default_factory=free_port)
    environ: dict[str, str] = field(default_factory=dict)  # beside this process's

    @property
    def _places(self) -> list[str]:
        return ["--config", str(self.config), "--state", str(self.state)]

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.state.parent / "stderr.log"

    def start(self) -> None:
        self.spawn()
        if self.command == "dev":
            self._read_welcome()
        self.wait_ready()

    def spawn(self, *options: str) -> None:
        port = ["--port", str(self.port)] if self.port else []
        port += ["--admin-port", str(self.admin_port)]
        with self.log.open("a") as stderr:
            self.process = subprocess.Popen(
                [*self.program, self.command, *self._places, *port, *self.options, *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=REPO,
                env=os.environ | self.environ,
            )

    def _read_welcome(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())
            name, _, value = line.strip().partition("=")
            if name == "BULKHEAD_API_KEY":
                self.key = value
                return
        raise AssertionError(f"it ended before it was ready:\n{self.log.read_text()[-3000:]}")

    @property
    def verify(self) -> ssl.SSLContext | bool:
        """What httpx is told of certificates."""
        if isinstance(self.tls, Path):
            return ssl.create_default_context(cafile=str(self.tls))
        return self.tls or True

    def wait_ready(self, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/readyz", verify=self.verify).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"not ready:\n{self.log.read_text()[-3000:]}")

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 60) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout_s)
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def children(self, module: str = "") -> list[int]:
        """Pids of the direct children whose command line holds `module`."""
        assert self.process is not None
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, ValueError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if parent == self.process.pid and module in command:
                    found.append(int(entry.name))
        return found

    def host_pid(self) -> int:
        return self.children("runtime.host")[0]

    def worker_pid(self) -> int:
        return self.children("spawn_main")[0]

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def host_stats(self) -> dict[str, Any]:
        """The engine's own counters, from the host that runs now."""
        sockets = sorted(
            runtime_dir(self.state).glob("[0-9a-f]*-*.sock"), key=lambda p: p.stat().st_mtime
        )
        transport = httpx.HTTPTransport(uds=str(sockets[-1]))
        with httpx.Client(transport=transport, base_url="http://host") as client:
            stats: dict[str, Any] = client.get("/stats").json()
            return stats

    def client(self, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key}"}
        options = {"verify": self.verify, "timeout": 60} | options
        return httpx.Client(base_url=self.url, headers=headers, **options)

    def cli(self, *args: str, ok: bool = True) -> str:
        """Run a subcommand against this state folder; its stdout."""
        done = subprocess.run(
            [*BULKHEAD, *args, *self._places],
            capture_output=True,
            text=True,
            cwd=REPO,
            check=False,
            env=os.environ | self.environ,
        )
        assert (done.returncode == 0) == ok, done.stderr
        return done.stdout if ok else done.stderr


@contextlib.contextmanager
def running(
    folder: Path,
    config: str,
    command: str = "dev",
    *,
    tls: ssl.SSLContext | Path | None = None,
    options: tuple[str, ...] = (),
    program: Sequence[str] = tuple(BULKHEAD),
    environ: dict[str, str] | None = None,
) -> Iterator[Stack]:
    """A stack in `folder`, ended and all its processes with it."""
    (folder / "bulkhead.toml").write_text(config)
    stack = Stack(folder / "bulkhead.toml", folder / "state", free_port(), command)
    stack.tls, stack.options, stack.program = tls, options, program
    stack.environ = environ or {}
    try:
        stack.start()
        yield stack
    finally:
        if stack.process and stack.process.poll() is None:
            try:
                stack.stop()
            except subprocess.TimeoutExpired:
                stack.process.kill()
                stack.process.wait()
        if stack.process and stack.process.stdout:
            stack.process.stdout.close()
