"""The commands: what they print, how they end, and what they say when something is in the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.ledger import exported, records
from tests.stack import BULKHEAD, REPO, Stack, fake_config, free_port, running
from tests.waiting import wait_for


def test_dev_prints_two_lines_for_a_shell(fake_stack: Stack) -> None:
    """`eval` of stdout gives the URL and the key; nothing else is there."""
    assert fake_stack.lines == [
        f"BULKHEAD_URL={fake_stack.url}",
        f"BULKHEAD_API_KEY={fake_stack.key}",
    ]


def test_secrets_and_prompts_stay_out_of_the_log(fake_stack: Stack) -> None:
    """One line a request, with who and how much; never the key, never the text."""
    with fake_stack.client() as client:
        answer = client.post(
            "/v1/completions", json={"model": "echo", "prompt": "canary-7731", "max_tokens": 4}
        )
        client.post("/v1/completions", json={"model": "canary-7732", "prompt": "canary-7733"})
        client.get("/v1/models", headers={"authorization": "Bearer canary-7734"})
    time.sleep(0.3)
    log = fake_stack.log.read_text()
    line = next(json.loads(x) for x in log.splitlines() if answer.headers["x-request-id"] in x)
    assert line["event"] == "request"
    assert (line["status"], line["output_tokens"]) == (200, 4)
    lines = [x for x in log.splitlines() if x.startswith("{")]
    assert any(json.loads(x)["event"] == "request" for x in lines)
    assert not any(fake_stack.key in x for x in lines)
    for canary in ("canary-7731", "canary-7733", "canary-7734"):
        assert canary not in log


def test_state_files_are_private(fake_stack: Stack) -> None:
    for name in ("root-secret", "demo-key", "bulkhead.db"):
        assert (fake_stack.state / name).stat().st_mode & 0o077 == 0, name


@pytest.mark.parametrize("command", ["dev", "serve", "gateway", "node"])
def test_a_second_start_on_one_state_folder_is_refused(fake_stack: Stack, command: str) -> None:
    """Also on its port: another port would be no help."""
    assert fake_stack.process
    for port in (free_port(), fake_stack.port):
        told = try_start(fake_stack.config, fake_stack.state, port, 4, command)
        assert "already in use by a running Bulkhead" in told
        assert f"(pid {fake_stack.process.pid})" in told
        assert told.count("\n") == 1, "one clear sentence"


def test_a_busy_port_is_told_in_a_sentence(fake_stack: Stack, tmp_path: Path) -> None:
    told = try_start(fake_stack.config, tmp_path / "other", fake_stack.port, 4)
    assert f"127.0.0.1:{fake_stack.port} can't be listened on" in told
    assert "--port or BULKHEAD_PORT" in told
    assert told.count("\n") == 1


def test_two_on_one_port_are_told_apart(tmp_path: Path) -> None:
    """Also when the port is shared politely: the second one is refused, whatever its state."""
    with running(tmp_path, fake_config()) as stack:
        told = try_start(stack.config, tmp_path / "other", stack.port, 4)
        assert "can't be listened on" in told


def test_a_bad_config_lists_every_fault_and_starts_nothing(tmp_path: Path) -> None:
    config = tmp_path / "bulkhead.toml"
    config.write_text(
        'nmae = "x"\n[server]\nport = "http"\n[[models]]\nid = "a"\nengine = "magic"\n'
        '[models.price]\ninput = 0.1\n[[models]]\nid = "b"\nengine = "openai"\ncache = "salted"\n'
    )
    told = try_start(config, tmp_path / "state", free_port(), 3)
    for path in (
        "server.port: expected",
        "─ models[0]",
        "engine: expected",
        "price.input: expected",
        "models[1].url",
        "did you mean `name`",
    ):
        assert path in told
    assert not (tmp_path / "state").exists()


def try_start(config: Path, state: Path, port: int, code: int, command: str = "dev") -> str:
    places = ["--config", str(config), "--state", str(state), "--admin-port", "0"]
    places += [] if command == "node" else ["--port", str(port)]
    done = subprocess.run(
        [*BULKHEAD, command, *places],
        capture_output=True,
        text=True,
        cwd=REPO,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert done.stdout == ""
    return done.stderr


def test_tenants_and_keys(fake_stack: Stack) -> None:
    """Created, listed, used at once, revoked; a running gateway hears of that by itself."""
    fake_stack.cli("tenants", "create", "acme")
    assert "exists already" in fake_stack.cli("tenants", "create", "acme", ok=False)
    assert "acme" in fake_stack.cli("tenants", "list")
    made = json.loads(fake_stack.cli("keys", "create", "acme", "--name", "ci", "--json"))
    assert status_of(fake_stack, made["secret"]) == 200
    listed = json.loads(fake_stack.cli("keys", "list", "acme", "--json"))
    assert listed[0]["id"] == made["id"]
    assert made["secret"] not in json.dumps(listed)
    fake_stack.cli("keys", "revoke", made["id"])
    wait_for(lambda: status_of(fake_stack, made["secret"]) == 401)
    assert "no tenant 'nobody'" in fake_stack.cli("keys", "list", "nobody", ok=False)


def status_of(stack: Stack, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.get(f"{stack.url}/v1/models", headers=headers).status_code


def test_the_export_command_writes_what_the_api_does(fake_stack: Stack, tmp_path: Path) -> None:
    """Same rows, same bytes, for the tenant's period."""
    with fake_stack.client() as client:
        client.post("/v1/completions", json={"model": "echo", "prompt": "x", "max_tokens": 1})
        over_http = client.get("/v1/usage/export?format=csv").content
    out = tmp_path / "usage.csv"
    fake_stack.cli("usage", "export", "--tenant", "demo", "-o", str(out))
    assert out.read_bytes() == over_http


def test_serve_refuses_the_demo_key(tmp_path: Path) -> None:
    """What `dev` made doesn't open `serve`; a real tenant's key does."""
    with running(tmp_path, fake_config()) as stack:
        key = stack.key
    with running(tmp_path, fake_config(), "serve") as stack:
        demo = httpx.get(f"{stack.url}/v1/models", headers={"authorization": f"Bearer {key}"})
        assert demo.status_code == 401
        stack.cli("tenants", "create", "acme")
        secret = stack.cli("keys", "create", "acme").strip()
        wait_for(lambda: status_of(stack, secret) == 200)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains(tmp_path: Path, number: int) -> None:
    """A stream that runs ends whole; then everything is gone, with exit code 0."""
    with running(tmp_path, fake_config(step_s=0.02)) as stack:
        body = {"model": "echo", "prompt": "abcd", "max_tokens": 80, "stream": True}
        parts: list[bytes] = []
        started = threading.Event()

        def read() -> None:
            with stack.client() as client, client.stream("POST", "/v1/completions", json=body) as a:
                for chunk in a.iter_raw():
                    parts.append(chunk)
                    started.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert started.wait(10)
        host, worker = stack.host_pid(), stack.worker_pid()
        assert stack.stop(number) == 0
        reader.join(10)
        assert b"".join(parts).endswith(b"data: [DONE]\n\n")
        for pid in (host, worker):
            assert not Path(f"/proc/{pid}").exists()
        row = last_row(stack)
        assert row == ("settled", 80)


def last_row(stack: Stack) -> tuple[str, int]:
    row = records(stack)[-1]
    return row["state"], row["output_tokens"]


def test_an_answer_that_outlasts_the_drain_is_told_so(tmp_path: Path) -> None:
    """An error event instead of a cut connection; the row is closed, unbilled; exit code 0."""
    config = "[server]\ndrain_s = 3\n" + fake_config(step_s=0.05)
    with running(tmp_path, config) as stack:
        body = {"model": "echo", "prompt": "abcd", "max_tokens": 4000, "stream": True}
        with stack.client() as client, client.stream("POST", "/v1/completions", json=body) as got:
            chunks = got.iter_raw()
            first = next(chunks)
            assert stack.process is not None
            stack.process.send_signal(signal.SIGTERM)
            data = first + b"".join(chunks)
        assert b'"code":"server_stopping"' in data
        assert b"[DONE]" not in data
        assert stack.process.wait(20) == 0
        row = records(stack)[-1]
        assert (row["state"], row["outcome"], row["billable"]) == ("settled", "crashed", 0)


def test_a_second_signal_ends_it_now(tmp_path: Path) -> None:
    """Who has waited long enough need not wait for the drain."""
    with running(tmp_path, fake_config(step_s=0.05)) as stack:
        body = {"model": "echo", "prompt": "abcd", "max_tokens": 4000, "stream": True}
        with stack.client() as client, client.stream("POST", "/v1/completions", json=body) as got:
            chunks = got.iter_raw()
            next(chunks)
            host, worker = stack.host_pid(), stack.worker_pid()
            assert stack.process is not None
            stack.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            stack.process.send_signal(signal.SIGINT)
            assert stack.process.wait(3) == 1
            del chunks  # held until here: dropped, it would close the stream
        deadline = time.monotonic() + 3
        while any(Path(f"/proc/{pid}").exists() for pid in (host, worker)):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_node_and_gateway_can_be_apart(tmp_path: Path) -> None:
    """`bulkhead node` keeps the hosts, `bulkhead gateway` finds them; each has its own end."""
    config = tmp_path / "bulkhead.toml"
    config.write_text(fake_config())
    node = Stack(config, tmp_path / "state", 0, "node")
    gateway = Stack(config, tmp_path / "state", free_port(), "gateway")
    try:
        node.spawn()
        gateway.start()
        gateway.cli("tenants", "create", "acme")
        gateway.key = gateway.cli("keys", "create", "acme").strip()
        wait_for(lambda: status_of(gateway, gateway.key) == 200)
        with gateway.client() as client:
            body = {"model": "echo", "prompt": "abc", "max_tokens": 3}
            assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == "abc"
        assert gateway.stop() == 0
        assert node.stop() == 0
    finally:
        for stack in (node, gateway):
            if stack.process and stack.process.poll() is None:
                stack.process.kill()
                stack.process.wait()


@pytest.mark.parametrize("secret", ["abc", "zz" * 32])
def test_a_bad_root_secret_is_told_in_a_sentence(
    tmp_path: Path, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_ROOT_SECRET", secret)
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    told = try_start(tmp_path / "bulkhead.toml", tmp_path / "state", free_port(), 1)
    assert "BULKHEAD_ROOT_SECRET" in told or "root secret" in told
    assert "Traceback" not in told


def test_the_state_lies_beside_the_config(tmp_path: Path) -> None:
    """Found from any folder below; and what only reads doesn't make one."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "bulkhead.toml").write_text(fake_config())
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    env = {"PYTHONPATH": str(REPO), "PATH": os.environ["PATH"]}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BULKHEAD, *args], cwd=below, env=env, capture_output=True, text=True, check=False
        )

    assert "holds no database" in run("tenants", "list").stderr
    assert not (tmp_path / ".bulkhead").exists()
    assert run("tenants", "create", "acme").returncode == 0
    assert (tmp_path / ".bulkhead").stat().st_mode & 0o077 == 0
    assert "acme" in run("tenants", "list").stdout
    nowhere = run("usage", "export", "-o", "/nope/x.csv")
    assert nowhere.stderr == "Error: /nope/x.csv: No such file or directory\n"
    assert run("usage", "export", "--from", "2026-02-01", "--to", "2026-01-01").returncode == 2


def test_two_ends_of_a_pipe_agree(fake_stack: Stack) -> None:
    """A connection that sends half a request and goes away costs nothing."""
    before = len(exported(fake_stack))
    with socket.create_connection(("127.0.0.1", fake_stack.port)) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
    time.sleep(0.2)
    assert len(exported(fake_stack)) == before
    assert os.path.exists(fake_stack.state)
