"""A real Redis for the tests, of their own: on a unix socket, without a file."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from tests.waiting import wait_for

PROGRAMS = ("redis-server", "valkey-server")
PROGRAM = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
needs_redis = pytest.mark.skipif(PROGRAM is None, reason="redis-server isn't installed")


@dataclass
class RedisServer:
    """One, which may be killed, halted and started again."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    options: tuple[str, ...] = field(default=())

    @property
    def socket(self) -> Path:
        return self.folder / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        assert PROGRAM is not None
        self.process = subprocess.Popen(
            [
                PROGRAM,
                *("--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"),
                *("--save", "", "--appendonly", "no", "--dir", str(self.folder)),
                *self.options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self._answers)

    def _answers(self) -> bool:
        with suppress(redis.ConnectionError, redis.BusyLoadingError), self.client() as client:
            return bool(client.ping())
        return False

    def client(self) -> redis.Redis:
        """For the test itself, not asynchronous."""
        return redis.Redis(unix_socket_path=str(self.socket))

    def keys(self, pattern: str) -> list[bytes]:
        with self.client() as client:
            found: list[bytes] = client.keys(pattern)
            return found

    def halt(self) -> None:
        """It answers nothing, and its connections stay."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None
            self.socket.unlink(missing_ok=True)


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """Started, and ended with all that it knew. `options` are of redis-server's command line."""
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:  # a socket's path must be short
        server = RedisServer(Path(folder), options=options)
        try:
            server.start()
            yield server
        finally:
            server.kill()
