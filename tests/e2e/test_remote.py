"""Engines on other machines, over TLS with a certificate at both ends: servers, and nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from runtime.config.tls import ServerTls
from runtime.tls.contexts import server_context
from tests.authority import Authority
from tests.e2e.ledger import row_of
from tests.runtime.upstream import Exchange, upstream
from tests.stack import Stack, fake_config, free_port, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MUTUAL = ServerTls(cert="server.pem", key="server.key", client_ca="ca.pem")
TLS = 'tls = { ca = "ca.pem", cert = "client.pem", key = "client.key" }'
ATTACHED = """
[[models]]
id = "theirs"
engine = "openai"
cache = "salted"
url = "{url}/v1"
{tls}
"""
BODY = {"model": "echo", "prompt": "abcdefgh", "max_tokens": 8}
LONG = BODY | {"max_tokens": 3000, "stream": True}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path)
    authority.issue()
    authority.client()
    return authority


async def test_an_attached_server_that_asks_for_a_certificate(authority: Authority) -> None:
    """It gets ours; without one it can't be reached, and the log says why."""

    async def answer(call: Exchange) -> None:
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "text": "hi", "finish_reason": "stop"}
        await call.reply_json(
            200,
            {"id": "x", "object": "text_completion", "created": 1, "model": "theirs"}
            | {"choices": [choice], "usage": usage},
        )

    folder = authority.folder
    async with upstream(answer, tls=server_context(MUTUAL, folder)) as server:
        config = ATTACHED.format(url=server.url, tls=TLS)
        with running(folder, config) as stack:
            headers = {"authorization": f"Bearer {stack.key}"}
            async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as client:
                got = await client.post("/v1/completions", json=BODY | {"model": "theirs"})
                assert got.json()["choices"][0]["text"] == "hi"
                (folder / "bulkhead.toml").write_text(ATTACHED.format(url=server.url, tls=""))
                log_before = len(stack.log.read_text())
                while (
                    await client.post("/v1/completions", json=BODY | {"model": "theirs"})
                ).is_success:
                    pass  # until the change is deployed
        assert "CERTIFICATE_VERIFY_FAILED" in stack.log.read_text()[log_before:]


@contextmanager
def started(stack: Stack) -> Iterator[Stack]:
    try:
        stack.spawn()
        yield stack
    finally:
        assert stack.process is not None
        if stack.process.poll() is None:
            stack.stop()
        if stack.process.stdout and not stack.process.stdout.closed:
            stack.process.stdout.close()


class Machines:
    """Nodes, and a gateway in front of them that has none of its own; they share a root secret."""

    def __init__(self, authority: Authority, machines: ExitStack) -> None:
        self.folder = authority.folder
        self._machines = machines
        self.ports: list[int] = []
        self.gateway = Stack(
            self.folder / "gateway.toml", self.folder / "gateway" / "state", free_port(), "gateway"
        )

    def add_node(self) -> Stack:
        port, folder = free_port(), self.folder / f"node{len(self.ports)}"
        self.ports.append(port)
        folder.mkdir()
        tls = 'cert = "server.pem"\nkey = "server.key"\nclient_ca = "ca.pem"\n'
        config = self.folder / f"{folder.name}.toml"
        config.write_text(
            fake_config(step_s=0.01, more=f"[node]\nport = {port}\n[node.tls]\n{tls}")
        )
        return self._machines.enter_context(started(Stack(config, folder / "state", 0, "node")))

    def start_gateway(self) -> Stack:
        gateway = self.gateway
        gateway.log.parent.mkdir()
        nodes = "".join(f'[[nodes]]\nurl = "https://localhost:{p}"\n{TLS}\n' for p in self.ports)
        gateway.config.write_text(fake_config(step_s=0.01, more=nodes))
        gateway.cli("tenants", "create", "acme")
        gateway.key = gateway.cli("keys", "create", "acme").strip()
        self._machines.enter_context(started(gateway))
        gateway.wait_ready()
        return gateway


@pytest.fixture
def machines(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("BULKHEAD_ROOT_SECRET", "5a" * 32)
    with ExitStack() as stack:
        yield Machines(authority, stack)


def test_a_gateway_uses_the_hosts_of_another_machine(machines: Machines) -> None:
    """Started by the first request, reached on a port of their own, drained with their node."""
    node = machines.add_node()
    gateway = machines.start_gateway()
    with gateway.client() as client:
        got = client.post("/v1/completions", json=BODY)
        assert got.json()["choices"][0]["text"] == "abcdefgh"
        streamed = client.post("/v1/completions", json=BODY | {"stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
        row = row_of(gateway, got.headers["x-request-id"])
        assert (row["outcome"], row["usage_source"]) == ("length", "upstream_final")
        with client.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 300}) as long:
            chunks = long.iter_raw()
            next(chunks)
            assert node.process is not None
            node.process.terminate()
            assert b"".join(chunks).endswith(b"data: [DONE]\n\n"), "a drain loses nothing"
        assert node.process.wait(60) == 0


def test_a_client_that_leaves_ends_the_work_on_the_other_machine(machines: Machines) -> None:
    node = machines.add_node()
    gateway = machines.start_gateway()
    with gateway.client() as client:
        assert client.post("/v1/completions", json=BODY).status_code == 200
        with client.stream("POST", "/v1/completions", json=LONG) as left:
            chunks = left.iter_raw()  # held: its end would be the answer's
            next(chunks)
            wait_for(lambda: node.host_stats()["running"] == 1)
        wait_for(lambda: node.host_stats()["running"] == 0)


def test_a_second_node_takes_over_from_one_that_was_killed(machines: Machines) -> None:
    nodes = [machines.add_node(), machines.add_node()]
    gateway = machines.start_gateway()
    with gateway.client() as client:
        assert client.post("/v1/completions", json=BODY).status_code == 200
        wait_for(lambda: any(node.children("runtime.host") for node in nodes))
        used = next(node for node in nodes if node.children("runtime.host"))
        assert used.process is not None
        used.kill(used.process.pid)
        used.process.wait()
        wait_for(lambda: client.post("/v1/completions", json=BODY).status_code == 200)
    other = next(node for node in nodes if node is not used)
    assert other.children("runtime.host")


def test_a_node_answers_nobody_without_a_certificate(
    machines: Machines, authority: Authority
) -> None:
    """Neither it nor its hosts; and what a host is told by others is not believed."""
    node = machines.add_node()
    gateway = machines.start_gateway()
    with gateway.client() as client:
        assert client.post("/v1/completions", json=BODY).status_code == 200
    url = f"https://localhost:{machines.ports[0]}"
    known = httpx.get(f"{url}/hosts", verify=authority.context("client")).json()
    (host,) = known["hosts"]
    places = (f"{url}/hosts", f"https://localhost:{host['port']}/health")
    assert httpx.get(places[1], verify=authority.context("client")).status_code == 200
    (other := authority.folder / "other").mkdir()
    stranger = authority.context()
    Authority(other).client()
    stranger.load_cert_chain(other / "client.pem", other / "client.key")
    for place in places:
        for context in (authority.context(), stranger):
            with pytest.raises(httpx.HTTPError):
                httpx.get(place, verify=context)
    completions = f"https://localhost:{host['port']}/v1/completions"
    refused = httpx.post(completions, json={}, verify=authority.context("client"))
    assert refused.status_code == 401, "a certificate is no capability"
    assert node.process is not None


def test_a_node_without_good_certificates_does_not_start(machines: Machines) -> None:
    (machines.folder / "server.key").unlink()
    node = machines.add_node()
    assert node.process is not None
    assert node.process.wait(60) == 3
    assert f"{machines.folder}/server.key can't be read" in node.log.read_text()
