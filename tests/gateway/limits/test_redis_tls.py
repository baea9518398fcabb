"""Redis by TLS, as a user of its ACL, and those that aren't one server: each a real one."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gateway.limits.limit import Kind, Limit, Take
from gateway.limits.limiter import Held
from gateway.limits.redis_client import Address, Broken, RedisClient
from gateway.limits.redis_limiter import RedisLimiter
from gateway.limits.resp import Fault
from runtime.config.tls import ClientTls
from runtime.tls.contexts import Followed
from tests.authority import Authority
from tests.gateway.front import BODY, CHAT, ONE_MODEL, gateway, stream_ok
from tests.redis_server import PROGRAM, RedisServer, needs_redis, redis_server
from tests.stack import REPO, free_port

pytestmark = needs_redis

CONFIG_MD = REPO / "docs" / "config.md"
STREAM = BODY | {"stream": True, "max_tokens": 100}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextmanager
def by_tls(
    authority: Authority, *options: str, names: tuple[str, ...] = ("localhost",)
) -> Iterator[tuple[RedisServer, int]]:
    """One that listens by TLS, too, and its port there."""
    served, port = authority.issue("redis", names=names), free_port()
    files = ("--tls-cert-file", str(served.cert_path), "--tls-key-file", str(served.key_path))
    believed = ("--tls-ca-cert-file", str(authority.path))
    asks = options or ("--tls-auth-clients", "no")
    with redis_server("--tls-port", str(port), *files, *believed, *asks) as server:
        yield server, port


async def ping(port: int, tls: ClientTls, folder: Path) -> bytes:
    client = RedisClient(Address.of(f"rediss://localhost:{port}"), Followed(tls, folder))
    try:
        reply = await client.call("PING")
        assert isinstance(reply, bytes)
        return reply
    finally:
        await client.aclose()


async def test_its_certificate_is_checked_and_its_name_too(
    authority: Authority, tmp_path: Path
) -> None:
    ours = ClientTls(ca="ca.pem")
    with by_tls(authority) as (_, port):
        assert await ping(port, ours, tmp_path) == b"PONG"
        with pytest.raises(ssl.SSLCertVerificationError):
            await ping(port, ClientTls(), tmp_path)
    with (
        by_tls(authority, names=("elsewhere",)) as (_, port),
        pytest.raises(ssl.SSLCertVerificationError, match="localhost"),
    ):
        await ping(port, ours, tmp_path)


async def test_one_that_asks_for_a_certificate_is_shown_ours(
    authority: Authority, tmp_path: Path
) -> None:
    authority.client("gateway")
    with by_tls(authority, "--tls-auth-clients", "yes") as (_, port):
        shown = ClientTls(ca="ca.pem", cert="gateway.pem", key="gateway.key")
        assert await ping(port, shown, tmp_path) == b"PONG"
        with pytest.raises(OSError, match=r".*"):
            await ping(port, ClientTls(ca="ca.pem"), tmp_path)


async def test_a_user_of_its_acl_by_tls_with_no_more_than_it_needs(
    authority: Authority, tmp_path: Path
) -> None:
    """The rules are those of docs/config.md."""
    ours = Followed(ClientTls(ca="ca.pem"), tmp_path)
    with by_tls(authority) as (server, port):
        with server.client() as other:
            (rules,) = re.findall(r"`ACL SETUSER gateway (.*?)`", CONFIG_MD.read_text())
            words = rules.replace("PASSWORD", "secret").split()
            other.execute_command("ACL", "SETUSER", "gateway", *words)
        url = f"rediss://gateway@localhost:{port}/1"
        client = RedisClient(Address.of(url, "secret"), ours)
        limiter = RedisLimiter(client, "bulkhead", timeout_s=60)
        assert (await limiter.beat("p")).replicas == 1
        takes = [Take(Limit("t:c", Kind.CONCURRENT, 3), 1), Take(Limit("t:r", Kind.TOKENS, 9), 5)]
        assert (await limiter.reserve("g", takes)).admitted
        await limiter.renew([Held("g", takes[0])])
        await limiter.settle("g", takes, [0, 0])
        assert (await limiter.look(takes)).levels == (0, 0)
        await client.aclose()
        client = RedisClient(Address.of(url, "other"), ours)
        with pytest.raises(Fault, match="WRONGPASS"):
            await client.call("PING")
        await client.aclose()


async def test_a_gateway_counts_by_tls(authority: Authority, tmp_path: Path) -> None:
    with by_tls(authority) as (server, port):
        (tmp_path / "gate").mkdir()
        redis = (
            f'[limits.redis]\nurl = "rediss://localhost:{port}"\ntimeout_s = 5\n'
            f'tls = {{ ca = "{authority.path}" }}\n'
        )
        config = f"{redis}[limits.per_tenant]\nrpm = 60\n{ONE_MODEL}"
        async with gateway(tmp_path / "gate", stream_ok, config) as found:
            assert found.env.admission._gate.is_together
            assert (await found.http.post(CHAT, json=STREAM)).status_code == 200
            assert len(server.keys("{bulkhead}:*rpm")) == 1


async def test_a_node_of_a_cluster_is_refused_in_a_sentence(tmp_path: Path) -> None:
    ports = ("--port", str(free_port()), "--cluster-port", str(free_port()))
    with redis_server(*ports, "--cluster-enabled", "yes") as server:
        config = (
            f'[limits.redis]\nurl = "{server.url}"\ntimeout_s = 5\nfail = "closed"\n'
            f"[limits.per_tenant]\nrpm = 60\n{ONE_MODEL}"
        )
        async with gateway(tmp_path, stream_ok, config) as found:
            refused = await found.http.post(CHAT, json=STREAM)
            assert refused.status_code == 503
        client = RedisClient(Address.of(server.url))
        with pytest.raises(Broken, match="Redis Cluster, which isn't supported"):
            await client.call("PING")


async def test_a_sentinel_is_refused_in_a_sentence(tmp_path: Path) -> None:
    assert PROGRAM is not None
    port, config = free_port(), tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\n")
    sentinel = subprocess.Popen([PROGRAM, str(config), "--sentinel"], stdout=subprocess.DEVNULL)
    client = RedisClient(Address.of(f"redis://127.0.0.1:{port}"))
    try:
        told: list[str] = []

        async def ask() -> bool:
            with suppress(ConnectionRefusedError):
                try:
                    await client.call("PING")
                except Broken as fault:
                    told.append(str(fault))
            return bool(told)

        async with asyncio.timeout(60):
            while not await ask():
                await asyncio.sleep(0.05)
        assert "Sentinel, which isn't supported" in told[0]
    finally:
        sentinel.kill()
        sentinel.wait()
