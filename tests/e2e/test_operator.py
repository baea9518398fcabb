"""The operator's side of a real Bulkhead: its API, and the commands that ask it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import httpx

from gateway.identity import keys
from tests.e2e.asking import complete, eventually
from tests.stack import BULKHEAD, REPO, Stack, fake_config, free_port, running


def admin(stack: Stack, key: str | None = None) -> httpx.Client:
    key = (stack.state / "admin-key").read_text().strip() if key is None else key
    return httpx.Client(
        base_url=f"http://127.0.0.1:{stack.admin_port}",
        headers={"authorization": f"Bearer {key}"},
        timeout=30,
    )


def run(stack: Stack, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    places = ["--config", str(stack.config), "--state", str(stack.state)]
    return subprocess.run(
        [*BULKHEAD, *args, *places],
        capture_output=True,
        text=True,
        cwd=REPO,
        env=os.environ | env,
        check=False,
    )


def test_the_two_listeners_know_nothing_of_each_other(fake_stack: Stack) -> None:
    """Neither's key opens the other, and neither has the other's routes."""
    admin_key = (fake_stack.state / "admin-key").read_text().strip()
    assert keys.well_formed(admin_key, keys.ADMIN_PREFIX)
    with admin(fake_stack) as http:
        assert http.get("/admin/v1/status").status_code == 200
        assert http.get("/v1/models").status_code == 404
    with admin(fake_stack, fake_stack.key) as http:
        assert http.get("/admin/v1/status").status_code == 401
    with fake_stack.client() as client:
        assert client.get("/admin/v1/status").status_code == 404
        as_operator = {"authorization": f"Bearer {admin_key}"}
        assert client.get("/v1/models", headers=as_operator).status_code == 401
    assert admin_key not in fake_stack.log.read_text()


def test_what_runs_is_told(fake_stack: Stack) -> None:
    answer = complete(fake_stack)
    with admin(fake_stack) as http:
        status = http.get("/admin/v1/status").json()
        assert fake_stack.process is not None
        assert (status["command"], status["pid"]) == ("dev", fake_stack.process.pid)
        assert {process["role"] for process in status["processes"]} == {"node", "gateway"}
        assert status["deployment"] >= 1
        (host,) = http.get("/admin/v1/hosts").json()["data"]
        assert (host["model"], host["state"]) == ("echo", "ready")
        assert host["pid"] == fake_stack.host_pid()
        assert host["rss_bytes"] > 1_000_000
        (model,) = http.get("/admin/v1/models").json()["data"]
        assert (model["id"], model["state"], model["hosts"]) == ("echo", "ready", 1)
        found = http.get("/admin/v1/requests").json()["data"]
        (mine,) = [row for row in found if row["request_id"] == answer.headers["x-request-id"]]
        assert (mine["outcome"], mine["output_tokens"]) == ("length", 3)
        assert mine["tenant_name"] == "demo"
        names = [tenant["name"] for tenant in http.get("/admin/v1/tenants").json()["data"]]
        assert "demo" in names


def test_hosts_are_listed_and_restarted(tmp_path: Path) -> None:
    """By a model's name; the new host answers, and nothing was lost."""
    with running(tmp_path, fake_config(step_s=0.001)) as stack:
        listed = json.loads(stack.cli("hosts", "list", "--json"))
        (before,) = listed["hosts"]
        assert listed["models"][0]["state"] == "ready"
        assert before["id"] in stack.cli("hosts", "list")
        assert "are being replaced" in stack.cli("hosts", "restart", "echo")

        def replaced() -> bool:
            assert complete(stack).status_code == 200
            found = json.loads(stack.cli("hosts", "list", "--json"))["hosts"]
            return [host["state"] for host in found] == ["ready"] and found[0]["id"] != before["id"]

        eventually(replaced, "the host was not replaced")
        told = run(stack, "hosts", "restart", "nobody")
        assert (told.returncode, told.stdout) == (1, "")
        assert "no host of ours serves 'nobody'" in told.stderr


def test_whoami(fake_stack: Stack) -> None:
    mine = run(fake_stack, "whoami")
    assert "demo (tn_" in mine.stdout
    assert fake_stack.key not in mine.stdout
    as_json = run(
        fake_stack,
        "whoami",
        "--json",
        BULKHEAD_URL=fake_stack.url,
        BULKHEAD_API_KEY=fake_stack.key,
    )
    assert json.loads(as_json.stdout)["key"]["hint"] == keys.hint(fake_stack.key)
    refused = run(fake_stack, "whoami", BULKHEAD_URL=fake_stack.url, BULKHEAD_API_KEY=keys.mint())
    assert (refused.returncode, refused.stdout) == (6, "")
    assert "not valid" in refused.stderr
    nobody = run(
        fake_stack,
        "whoami",
        BULKHEAD_URL=f"http://127.0.0.1:{free_port()}",
        BULKHEAD_API_KEY=fake_stack.key,
    )
    assert (nobody.returncode, nobody.stdout) == (5, "")
    operator = run(fake_stack, "whoami", "--admin", "--json")
    assert json.loads(operator.stdout)["command"] == "dev"
    wrong = run(fake_stack, "whoami", "--admin", BULKHEAD_ADMIN_KEY="x" * 40)
    assert wrong.returncode == 6


def test_nothing_to_ask_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    stack = Stack(tmp_path / "bulkhead.toml", tmp_path / "state", 0)
    for command in (("tail",), ("hosts", "list"), ("whoami", "--admin")):
        told = run(stack, *command)
        assert (told.returncode, told.stdout) == (5, ""), command
        assert "no admin API is open" in told.stderr
    assert not stack.state.exists()


def test_doctor_on_one_that_runs_and_on_one_that_is_broken(
    fake_stack: Stack, tmp_path: Path
) -> None:
    ports = {
        "BULKHEAD_PORT": str(fake_stack.port),
        "BULKHEAD_ADMIN_PORT": str(fake_stack.admin_port),
    }
    found = run(fake_stack, "doctor", "--json", **ports)
    findings = json.loads(found.stdout)
    assert (found.returncode, [f for f in findings if f["level"] == "error"]) == (0, [])
    told = {finding["check"]: finding["text"] for finding in findings}
    assert told["port"].endswith("is ours")
    assert told["node"] == "answers, 1 host"
    assert "is ready" in told["gateway"]
    config = tmp_path / "bulkhead.toml"
    config.write_text('[server]\nport = "x"\n')
    ill = run(Stack(config, tmp_path / "state", 0), "doctor", BULKHEAD_ADMIN_PORT="0")
    assert ill.returncode == 1
    assert "✗ config" in ill.stdout
    assert "server.port" in ill.stdout
    assert "✓ python" in ill.stdout
    assert not (tmp_path / "state").exists()


def test_a_busy_admin_port_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    stack = Stack(tmp_path / "bulkhead.toml", tmp_path / "state", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = run(stack, "dev", "--port", str(free_port()), "--admin-port", port)
    assert (told.returncode, told.stdout) == (4, "")
    assert f"127.0.0.1:{port} can't be listened on" in told.stderr
    assert "--admin-port or BULKHEAD_ADMIN_PORT" in told.stderr
    assert "Traceback" not in told.stderr


def test_without_an_admin_port_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    stack = Stack(tmp_path / "bulkhead.toml", tmp_path / "state", free_port(), admin_port=0)
    try:
        stack.start()
        assert run(stack, "hosts", "list").returncode == 5
        assert stack.stop() == 0
    finally:
        if stack.process and stack.process.poll() is None:
            stack.process.kill()
            stack.process.wait()
        if stack.process and stack.process.stdout:
            stack.process.stdout.close()


def test_of_node_and_gateway_one_listens_and_the_other_takes_over(tmp_path: Path) -> None:
    """One configuration for both, one port: the first has it; after its end, the other."""
    config = tmp_path / "bulkhead.toml"
    config.write_text(fake_config())
    port = free_port()
    gateway = Stack(config, tmp_path / "state", free_port(), "gateway", admin_port=port)
    node = Stack(config, tmp_path / "state", 0, "node", admin_port=port)

    def command() -> str:
        told = run(gateway, "whoami", "--admin", "--json")
        return str(json.loads(told.stdout)["command"]) if told.returncode == 0 else ""

    try:
        node.spawn()
        assert eventually(command, "no admin API") == "node"
        gateway.start()
        assert command() == "node"
        assert len(json.loads(gateway.cli("hosts", "list", "--json"))["hosts"]) == 1
        assert node.stop() == 0
        eventually(lambda: command() == "gateway", "nobody took over")
        told = run(gateway, "hosts", "list")
        assert (told.returncode, "no node answers" in told.stderr) == (1, True)
        assert gateway.stop() == 0
    finally:
        for stack in (gateway, node):
            if stack.process and stack.process.poll() is None:
                stack.process.kill()
                stack.process.wait()
            if stack.process and stack.process.stdout:
                stack.process.stdout.close()
