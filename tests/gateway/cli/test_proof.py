"""Which certificate commands show, and what they say of a server that minds."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import httpx
import pytest

from gateway.address import Address
from gateway.cli import proof
from gateway.cli.options import Unreachable
from runtime import settings
from runtime.config.place import Caller
from tests.authority import DAY, Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path)
    authority.client()
    authority.issue()
    return authority


def caller(authority: Authority, **more: str) -> Caller:
    return settings.caller(
        {
            "BULKHEAD_CLIENT_CERT": str(authority.folder / "client.pem"),
            "BULKHEAD_CLIENT_KEY": str(authority.folder / "client.key"),
            **more,
        }
    )


def shown(context: ssl.SSLContext | bool, authority: Authority) -> bool:
    """Whether a server that asks for a certificate gets one, in a handshake without a network."""
    assert isinstance(context, ssl.SSLContext)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.folder / "server.pem", authority.folder / "server.key")
    server.load_verify_locations(authority.path)
    server.verify_mode = ssl.CERT_OPTIONAL
    server.maximum_version = ssl.TLSVersion.TLSv1_2  # both ends know at once how it went
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(down, up, server_hostname="localhost")
    theirs = server.wrap_bio(up, down, server_side=True)
    for side in (ours, theirs) * 4:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return bool(theirs.getpeercert())


def test_it_is_shown_wherever_the_address_is_from(authority: Authority) -> None:
    ca = str(authority.path)
    given = caller(authority, BULKHEAD_CA=ca)
    assert shown(proof.outside(given), authority)
    here = Address(url="https://localhost")
    assert shown(proof.towards(here, given), authority), "BULKHEAD_CA counts here too"
    local = Address(url="https://localhost", authority=ca)
    assert shown(proof.towards(local, caller(authority)), authority)
    assert not shown(proof.towards(local, Caller()), authority)
    pinned = Address(url="https://localhost", certificate=str(authority.folder / "server.pem"))
    assert shown(proof.towards(pinned, caller(authority)), authority)


def test_without_any_setting_the_usual_authorities_are_believed(authority: Authority) -> None:
    assert proof.outside(Caller()) is True
    believed = proof.outside(caller(authority))
    assert isinstance(believed, ssl.SSLContext)
    assert (
        believed.cert_store_stats() == httpx.create_ssl_context(trust_env=False).cert_store_stats()
    )


def test_half_a_setting_is_told(authority: Authority) -> None:
    for half, other in (("client_cert", "CLIENT_KEY"), ("client_key", "CLIENT_CERT")):
        with pytest.raises(Unreachable, match=f"BULKHEAD_{other} isn't"):
            proof.outside(Caller(**{half: str(authority.path)}))


def test_files_that_can_not_be_used_are_told_with_their_setting(authority: Authority) -> None:
    given = caller(authority)
    authority.issue("old", until=-DAY / 2, usage=None)
    (authority.folder / "client.key").write_text("no key")
    with pytest.raises(Unreachable, match=r"BULKHEAD_CLIENT_KEY: .*client.key holds no private"):
        proof.outside(given)
    old = Caller(client_cert=str(authority.folder / "old.pem"), client_key="/nowhere")
    with pytest.raises(
        Unreachable,
        match=r"BULKHEAD_CLIENT_CERT: .*old.pem expired.*; BULKHEAD_CLIENT_KEY: /nowhere can't be",
    ):
        proof.outside(old)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (httpx.ReadError("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13"), "it asks who calls"),
        (httpx.ReadError("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert"), "it doesn't take the"),
        (httpx.ConnectError("[SSL: SSLV3_ALERT_BAD_CERTIFICATE] x"), "it doesn't take the"),
        (httpx.ReadError("[Errno 104] Connection reset by peer"), "if it asks who calls"),
        (httpx.RemoteProtocolError("Server disconnected"), "if it asks who calls"),
    ],
)
def test_a_server_that_minds_is_understood(fault: httpx.HTTPError, told: str) -> None:
    hint = proof.hint("https://x", fault)
    assert re.match(told, hint)
    assert proof.CERT in hint


def test_who_is_not_there_asks_for_nothing() -> None:
    assert proof.hint("https://x", httpx.ConnectError("[Errno 111] Connection refused")) == ""
    assert proof.hint("https://x", httpx.ConnectTimeout("")) == ""
