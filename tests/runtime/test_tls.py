"""Contexts that follow their files, over real handshakes, with certificates at both ends."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from gateway.relay.transport import MAYBE_REFUSED, Broken, ConnectFailed, Transport
from runtime.config.tls import ClientTls, ServerTls
from runtime.tls.certificates import BadCertificate, absolute
from runtime.tls.contexts import Followed, server_context
from tests.authority import DAY, Authority, p256, pem_of
from tests.runtime.upstream import Exchange, Upstream, upstream

MUTUAL = ServerTls(cert="server.pem", key="server.key", client_ca="ca.pem")
CLIENT = ClientTls(ca="ca.pem", cert="client.pem", key="client.key")


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops that the gateway runs on."""
    return "asyncio", {"use_uvloop": request.param}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 2  # each look is due
        return self.now


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path)
    authority.issue()
    authority.client()
    return authority


async def echo(exchange: Exchange) -> None:
    """Answers, and says whose certificate it saw."""
    seen: Any = exchange._writer.get_extra_info("peercert")
    await exchange.reply(200, f"{seen['serialNumber']}".encode())


async def ask(server: Upstream, transport: Transport) -> str:
    async with transport.send("GET", f"{server.url}/", {}, None) as reply:
        return (await reply.read(1000)).decode()


async def failure(server: Upstream, tls: ClientTls, folder: Path) -> str:
    transport = Transport(tls=Followed(tls, folder))
    with pytest.raises((ConnectFailed, Broken)) as caught:
        await ask(server, transport)
    await transport.aclose()
    return str(caught.value)


async def test_both_ends_show_a_certificate(authority: Authority, tmp_path: Path) -> None:
    async with upstream(echo, tls=server_context(MUTUAL, tmp_path)) as server:
        transport = Transport(tls=Followed(CLIENT, tmp_path))
        for _ in range(3):
            assert await ask(server, transport)
        assert server.connections == 1, "a connection is kept"
        await transport.aclose()


async def test_each_end_refuses_whom_it_does_not_know(authority: Authority, tmp_path: Path) -> None:
    """What a server says when it refuses us may be lost on the way; that it refused us is not."""
    (other := tmp_path / "other").mkdir()
    stranger = Authority(other)
    stranger.client()
    async with upstream(echo, tls=server_context(MUTUAL, tmp_path)) as server:
        unknown = await failure(server, ClientTls(ca="other/ca.pem"), tmp_path)
        assert "CERTIFICATE_VERIFY_FAILED" in unknown
        none = await failure(server, ClientTls(ca="ca.pem"), tmp_path)
        assert "CERTIFICATE_REQUIRED" in none or none.endswith(MAYBE_REFUSED)
        theirs = ClientTls(ca="ca.pem", cert="other/client.pem", key="other/client.key")
        unwanted = await failure(server, theirs, tmp_path)
        assert "UNKNOWN_CA" in unwanted or unwanted.endswith(MAYBE_REFUSED)
        gone = ClientTls(ca="nowhere.pem")
        assert f"{tmp_path}/nowhere.pem can't be read" in await failure(server, gone, tmp_path)
        assert server.asked == []


async def test_a_name_that_is_not_in_it(authority: Authority, tmp_path: Path) -> None:
    authority.issue(names=("elsewhere.example",))
    async with upstream(echo, tls=server_context(MUTUAL, tmp_path)) as server:
        assert "IP address mismatch" in await failure(server, CLIENT, tmp_path)


async def test_new_connections_see_new_files_at_both_ends(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's pair, the client's pair, and another authority altogether."""
    monkeypatch.setattr("runtime.tls.contexts.LOOK_EVERY_S", 0.0)
    async with upstream(echo, tls=server_context(MUTUAL, tmp_path)) as server:
        followed = Followed(CLIENT, tmp_path, Clock())

        async def serials() -> tuple[int, int]:
            for _ in range(3):  # a change is taken when it was seen twice
                transport = Transport(tls=followed)
                shown = int(await ask(server, transport), 16)
                await transport.aclose()
            _, writer = await connected(server, followed())
            seen = writer.get_extra_info("peercert")["serialNumber"]
            writer.close()
            await writer.wait_closed()
            return int(seen, 16), shown

        first, mine = authority.issue(), authority.client()
        assert await serials() == (first.serial, mine.serial)
        second, renewed = authority.issue(), authority.client()
        assert await serials() == (second.serial, renewed.serial)
        authority = Authority(tmp_path)
        third, other = authority.issue(), authority.client()
        followed = Followed(CLIENT, tmp_path, Clock())
        transport = Transport(tls=followed)
        with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(server, transport)  # the server has seen the change once
        await transport.aclose()
        assert await serials() == (third.serial, other.serial)


async def connected(server: Upstream, context: ssl.SSLContext) -> Any:
    return await asyncio.open_connection("127.0.0.1", server.port, ssl=context)


@pytest.mark.parametrize("fault", ["expired", "mismatch", "gone"])
def test_bad_files_change_nothing_and_are_told_once(
    authority: Authority, tmp_path: Path, fault: str
) -> None:
    followed = Followed(MUTUAL, tmp_path, Clock())
    before = followed()
    issued = authority.issue(until=-DAY / 2 if fault == "expired" else 90 * DAY)
    if fault == "mismatch":
        issued.key_path.write_bytes(pem_of(p256()))
    elif fault == "gone":
        issued.key_path.unlink()
    with structlog.testing.capture_logs() as logs:
        assert all(followed() is before for _ in range(5))
    assert [entry["event"] for entry in logs] == ["certificate_refused"]
    authority.issue()
    with structlog.testing.capture_logs() as logs:
        assert followed() is before
        assert followed() is not before
    assert [entry["event"] for entry in logs] == ["certificate_in_use"]


def test_without_a_good_one_there_is_none(authority: Authority, tmp_path: Path) -> None:
    authority.issue(until=-DAY / 2)
    with pytest.raises(BadCertificate, match="expired"):
        server_context(MUTUAL, tmp_path)
    followed = Followed(MUTUAL, tmp_path)
    with pytest.raises(BadCertificate):
        followed()
    authority.issue()
    assert followed().verify_mode is ssl.CERT_REQUIRED


def test_paths_that_start_nowhere(tmp_path: Path) -> None:
    assert absolute(ClientTls(ca="a", cert="/b", key="/c"), tmp_path) == ClientTls(
        ca=f"{tmp_path}/a", cert="/b", key="/c"
    )
    assert absolute(ServerTls(), tmp_path) == ServerTls()


async def test_the_system_s_authorities_are_the_default(
    authority: Authority, tmp_path: Path
) -> None:
    async with upstream(echo, tls=server_context(MUTUAL, tmp_path)) as server:
        assert "CERTIFICATE_VERIFY_FAILED" in await failure(server, ClientTls(), tmp_path)
        async with httpx.AsyncClient(transport=Transport()) as client:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get(server.url)
