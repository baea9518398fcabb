"""Nodes and servers that are out of reach, or refuse us: why is told, as far as it is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.relay.hosts import HostDirectory
from gateway.relay.node_link import NodeAddress, RemoteNode
from gateway.relay.placement import Placement
from gateway.relay.transport import Broken, ConnectFailed, Transport
from runtime.config.sections import RemoteNodeSettings
from runtime.config.tls import ClientTls, ServerTls
from runtime.tls.contexts import Followed, server_context
from tests.authority import Authority
from tests.gateway.following import following, until
from tests.gateway.test_scripted_nodes import Scripted, told
from tests.runtime.upstream import Exchange, upstream

MUTUAL = ServerTls(cert="server.pem", key="server.key", client_ca="ca.pem")
NO_CERTIFICATE = ClientTls(ca="ca.pem")
FOREIGN = ClientTls(ca="ca.pem", cert="foreign.pem", key="foreign.key")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    other = Authority(tmp_path, "another authority")
    other.client("foreign")
    authority = Authority(tmp_path)
    authority.issue()
    return authority


async def answer(exchange: Exchange) -> None:
    await exchange.reply(200, b"{}")


@pytest.mark.parametrize("tls", [NO_CERTIFICATE, FOREIGN], ids=["none", "of another authority"])
@pytest.mark.parametrize("size", [10, 500_000], ids=["small", "large"])
async def test_a_refused_certificate_is_named(
    authority: Authority, tls: ClientTls, size: int
) -> None:
    """By the server's alert, or, where a reset has swallowed that, as what it may be."""
    folder = authority.folder
    async with upstream(answer, tls=server_context(MUTUAL, folder)) as server:
        transport = Transport(connect_s=20, tls=Followed(tls, folder))
        with pytest.raises((Broken, ConnectFailed), match=r"(?i)certificate|unknown.ca"):
            await send(transport, server.url, size)
        await transport.aclose()


async def send(transport: Transport, url: str, size: int) -> None:
    async with transport.send("POST", f"{url}/", {}, b"x" * size):
        pass


async def test_without_tls_nothing_is_said_of_certificates() -> None:
    async def closes(exchange: Exchange) -> None:
        exchange.close()

    async with upstream(closes) as server:
        transport = Transport(connect_s=20)
        with pytest.raises(Broken) as told:
            await send(transport, server.url, 10)
        assert "certificate" not in str(told.value)
        await transport.aclose()


@asynccontextmanager
async def followed(address: NodeAddress) -> AsyncIterator[HostDirectory]:
    directory = HostDirectory([address], Placement())
    follow = asyncio.ensure_future(directory.follow())
    try:
        yield directory
    finally:
        follow.cancel()
        await asyncio.wait([follow])
        await directory.aclose()


async def test_a_node_that_refuses_us_is_told_once_with_its_reason(authority: Authority) -> None:
    folder = authority.folder
    async with upstream(answer, tls=server_context(MUTUAL, folder)) as server:
        settings = RemoteNodeSettings(url=server.url, tls=FOREIGN)
        node = RemoteNode(settings, folder, 20)
        with capture_logs() as logs:
            async with followed(node) as directory:
                await until(lambda: bool(logs))
                await asyncio.sleep(0.6)  # it is asked again meanwhile
                assert not directory.is_heard()
    (line,) = logs
    assert (line["event"], line["node"]) == ("node_silent", node.name)
    assert "certificate" in line["reason"] or "UNKNOWN_CA" in line["reason"]


async def test_a_node_that_goes_and_comes_back_is_two_lines(tmp_path: Path) -> None:
    """One of this machine that was never there is none: there may be no such node."""
    path, node = tmp_path / "n.sock", Scripted(told(7, "h1"))
    with capture_logs() as logs:
        async with following(path) as found:
            await asyncio.sleep(0.1)
            async with upstream(node.answer, path=str(path)):
                await until(found.directory.is_heard)
            node.tell(told(8, "h1"))
            await until(lambda: not found.directory.is_heard())
            path.unlink(missing_ok=True)
            async with upstream(node.answer, path=str(path)):
                await until(found.directory.is_heard)
                node.tell(told(9))
    events = [line["event"] for line in logs]
    assert events[:2] == ["node_silent", "node_heard"], "and nothing while it has yet to begin"
