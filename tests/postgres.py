"""A PostgreSQL server of the test's own: made in a folder, reached by a unix socket and a port.

The server refuses to run as root, so as root it runs as the first unprivileged user there is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import psycopg
import pytest

from gateway.store.address import Postgres
from tests.stack import free_port

PASSWORD = "canary-p%40ss%2Fword"  # as it is written in a URL
_USERS = ("postgres", "nobody")
_numbers = itertools.count(1)


class Server:
    """A running server. Each test has a database of its own in it."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self.data = folder / "data"
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_template = False
        self._become: dict[str, int] = {}
        if os.geteuid() == 0:
            user = next(_found(_USERS))
            self._become = {"user": user.pw_uid, "group": user.pw_gid}
            os.chown(folder, user.pw_uid, user.pw_gid)

    def make(self) -> None:
        """Make an empty cluster; all who connect show a password."""
        secret = self.folder / "password"
        secret.write_text(unquote(PASSWORD))
        secret.chmod(0o644)
        self._run(
            "initdb", "-D", self.data, "-U", "bulkhead", "--pwfile", secret, "-A", "scram-sha-256",
            "-E", "UTF8", "--no-sync", "--locale=C", "--locale-provider=icu", "--icu-locale=en-US",
        )  # fmt: skip

    def start(self, *options: str) -> None:
        """Returns once it answers. What a killed one left is repaired first."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binaries / "postgres", "-D", self.data, "-p", str(self.port),
                    "-k", self.folder, "-c", "listen_addresses=127.0.0.1",
                    "-c", "max_connections=100", "-c", "shared_buffers=32MB",
                    "-c", "fsync=off", *options,
                ],
                stdout=log, stderr=log, **self._become,
            )  # type: ignore[call-overload]  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                told = (self.folder / "log").read_text()[-3000:]
                assert time.monotonic() < deadline, told
                assert self._process.poll() is None, told
                time.sleep(0.05)
            else:
                return

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT ends all sessions at once; SIGQUIT as if the power went."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def url(self, database: str) -> str:
        return f"postgresql://bulkhead:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def new_database(self, *, migrated: bool = False) -> str:
        """An empty one, or one of this version's schema; its URL."""
        if migrated and not self._has_template:
            from gateway.store.migrate import migrate  # it loads much

            with psycopg.connect(self.url("postgres"), autocommit=True) as db:
                db.execute("CREATE DATABASE migrated")
            migrate(Postgres(self.url("migrated")))
            self._has_template = True
        name = f"test_{next(_numbers)}"
        template = "migrated" if migrated else "template1"
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self.url(name)

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._binaries / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, check=False, cwd="/", **self._become)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr.decode()


def _found(names: tuple[str, ...]) -> Iterator[pwd.struct_passwd]:
    for name in names:
        with contextlib.suppress(KeyError):
            yield pwd.getpwnam(name)


def binaries() -> Path | None:
    """The folder of the server's programs; Debian keeps them off the PATH."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    every = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return every[-1].parent if every else None


@contextlib.contextmanager
def server(*options: str) -> Iterator[Server]:
    """A server with an empty cluster, or the test is skipped where no PostgreSQL is installed."""
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL server is installed here")
    with tempfile.TemporaryDirectory(prefix="bulkhead-pg-") as name:
        Path(name).chmod(0o755)
        running = Server(found, Path(name))
        running.make()
        running.start(*options)
        try:
            yield running
        finally:
            running.stop()
