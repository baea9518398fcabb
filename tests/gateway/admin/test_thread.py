"""The listener of the admin API: taken by one process, found by commands, with or without TLS."""

from __future__ import annotations

import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from gateway import address
from gateway.admin.key import BadAdminKey
from gateway.admin.thread import AdminThread
from gateway.cli.answers import Status
from gateway.cli.calling import Server, admin_server
from gateway.cli.options import Places, Unreachable
from runtime import state
from runtime.config.sections import AdminSettings, FileSettings
from runtime.config.tls import ServerTls
from runtime.settings import Settings
from runtime.tls.listener import PortInUse
from tests.authority import Authority
from tests.stack import REPO, fake_config, free_port


def settings(folder: Path, **admin: object) -> Settings:
    given = AdminSettings(**{"port": free_port()} | admin)  # type: ignore[arg-type] # its keys
    (folder / "bulkhead.toml").write_text(fake_config())
    state_dir = folder / "state"
    state.prepare(state_dir)
    config = str(folder / "bulkhead.toml")
    return Settings(file=FileSettings(admin=given), config_path=config, state_dir=state_dir)


def server(of: Settings) -> Server:
    """As commands find it."""
    return admin_server(Places(config=Path(of.config_path), state_dir=of.state_dir))


def eventually_found(of: Settings) -> Server:
    deadline = time.monotonic() + 20
    while True:
        try:
            return server(of)
        except Unreachable:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_it_answers_while_the_block_runs(tmp_path: Path) -> None:
    made = settings(tmp_path)
    with AdminThread(made, "node"):
        found = eventually_found(made)
        assert found.url == f"http://127.0.0.1:{made.file.admin.port}"
        assert found.ask("GET", "/admin/v1/status", Status).told.command == "node"
    assert address.find(made.state_dir, "admin") is None
    with pytest.raises(Unreachable):
        found.ask("GET", "/admin/v1/status", Status)


def test_a_tail_does_not_hold_up_the_end(tmp_path: Path) -> None:
    made = settings(tmp_path)
    with (
        AdminThread(made, "node"),
        eventually_found(made).client(30) as http,
        http.stream("GET", "/admin/v1/tail") as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == ": listening"
        began = time.monotonic()
    assert time.monotonic() - began < 20


def test_the_certificate_is_believed_by_commands_on_this_machine(tmp_path: Path) -> None:
    """Whatever authority made it; and by nobody else."""
    issued = Authority(tmp_path).issue("admin", names=("console.example",))
    tls = ServerTls(cert=issued.cert_path.name, key=issued.key_path.name)
    made = settings(tmp_path, tls=tls)
    with AdminThread(made, "node"):
        found = eventually_found(made)
        assert found.url.startswith("https://")
        certificates = found.ask("GET", "/admin/v1/status", Status).document["certificates"]
        assert certificates["admin"]["names"] == ["console.example"]
        assert 0 < certificates["admin"]["days_left"] < 400
        with pytest.raises(httpx.ConnectError):
            httpx.get(found.url, verify=ssl.create_default_context())


def test_a_busy_port_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    one, other = settings(tmp_path), None
    (tmp_path / "other").mkdir()
    other = settings(tmp_path / "other", port=one.file.admin.port)
    with AdminThread(one, "dev"):
        with (
            pytest.raises(PortInUse, match="--admin-port or BULKHEAD_ADMIN_PORT"),
            AdminThread(other, "dev"),
        ):
            pass
        state.own(other.state_dir, "admin").close()


def test_a_bad_key_is_told(tmp_path: Path) -> None:
    made = settings(tmp_path)
    (made.state_dir / "admin-key").write_text("nonsense\n")
    (made.state_dir / "admin-key").chmod(0o600)
    with pytest.raises(BadAdminKey), AdminThread(made, "dev"):
        pass


def test_with_port_0_nothing_listens_and_events_are_still_heard(tmp_path: Path) -> None:
    made = settings(tmp_path, port=0)
    heard: list[object] = []

    async def listen(admin: AdminThread) -> None:
        with admin.hub.listen() as listener:
            heard.append("listening")
            while not listener.is_closed:
                await listener.take(1)
            heard.append("closed")

    with AdminThread(made, "dev") as admin:
        work = admin.spawn(listen(admin))
        while not heard:
            assert not work.done(), work.result()
            time.sleep(0.001)
        with pytest.raises(Unreachable):
            server(made)
    assert work.done()
    assert heard == ["listening", "closed"]


OWNER = """
import sys, time
from pathlib import Path
from runtime import state
with state.own(Path(sys.argv[1]), "admin"):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_the_role_is_taken_over_when_another_process_has_ended(tmp_path: Path) -> None:
    made = settings(tmp_path)
    command = [sys.executable, "-c", OWNER, str(made.state_dir)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"mine\n"
        with AdminThread(made, "gateway"):
            with pytest.raises(Unreachable):
                server(made)
            other.communicate()
            found = eventually_found(made)
            assert found.ask("GET", "/admin/v1/status", Status).told.command == "gateway"
