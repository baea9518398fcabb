"""Key sets read for real: from a file, over TLS, and through OpenID discovery."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.identity import key_fetch
from gateway.identity.key_fetch import WELL_KNOWN, fetch_of
from gateway.identity.key_source import FetchFailed
from runtime.config.tls import ClientTls
from tests.gateway.identity.provider import provider
from tests.gateway.identity.signing import RSA_KEY, document, jwk, settings

KEYS = document(jwk(RSA_KEY))


async def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    fetch = fetch_of(settings(jwks_url="", jwks_file="keys.json"), tmp_path)
    with pytest.raises(FetchFailed, match=r"keys.json: No such file"):
        await fetch()
    (tmp_path / "keys.json").write_bytes(KEYS)
    assert await fetch() == KEYS
    (tmp_path / "keys.json").write_bytes(b"other")
    assert await fetch() == b"other"


async def test_a_pinned_url_is_read_over_tls_and_no_redirect_is_followed(tmp_path: Path) -> None:
    with provider(tmp_path) as idp:
        tls = ClientTls(ca=idp.ca)
        fetch = fetch_of(settings(jwks_url=f"{idp.url}/keys", tls=tls), tmp_path)
        with pytest.raises(FetchFailed, match="answered 404"):
            await fetch()
        idp.put("/keys", KEYS)
        assert await fetch() == KEYS
        idp.put("/keys", b"", 302, location=f"{idp.url}/moved")
        idp.put("/moved", KEYS)
        with pytest.raises(FetchFailed, match="answered 302"):
            await fetch()
        assert "/moved" not in idp.asked


async def test_a_server_that_nobody_vouches_for_is_not_believed(tmp_path: Path) -> None:
    with provider(tmp_path) as idp:
        idp.put("/keys", KEYS)
        with pytest.raises(FetchFailed, match="certificate"):
            await fetch_of(settings(jwks_url=f"{idp.url}/keys"), tmp_path)()
        assert idp.asked == []


async def test_an_endless_key_set_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_fetch, "MAX_BYTES", 1000)
    with provider(tmp_path) as idp:
        tls = ClientTls(ca=idp.ca)
        fetch = fetch_of(settings(jwks_url=f"{idp.url}/keys", tls=tls), tmp_path)
        idp.put("/keys", b" " * 1001)
        with pytest.raises(FetchFailed, match="more than 1000 bytes"):
            await fetch()


async def test_nobody_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"https://127\.0\.0\.1:1/keys"):
        await fetch_of(settings(jwks_url="https://127.0.0.1:1/keys"), tmp_path)()


async def test_discovery_finds_the_keys_of_the_issuer_itself(tmp_path: Path) -> None:
    with provider(tmp_path) as idp:
        issuer = f"{idp.url}/realm"
        tls = ClientTls(ca=idp.ca)
        fetch = fetch_of(settings(issuer=issuer, jwks_url="", tls=tls), tmp_path)
        idp.put("/keys", KEYS)

        def tell(**said: object) -> None:
            idp.put(f"/realm{WELL_KNOWN}", json.dumps(said).encode())

        tell(issuer=issuer, jwks_uri=f"{idp.url}/keys")
        assert await fetch() == KEYS
        tell(issuer=issuer + "/", jwks_uri=f"{idp.url}/keys")
        with pytest.raises(FetchFailed, match="speaks for another issuer"):
            await fetch()
        for uri in (None, 1, "", "http://127.0.0.1/keys", "file:///etc/passwd", "https://"):
            tell(issuer=issuer, jwks_uri=uri)
            with pytest.raises(FetchFailed, match="no https:// URL"):
                await fetch()
        for broken in (b"", b"[]", b"{", b"\xff"):
            idp.put(f"/realm{WELL_KNOWN}", broken)
            with pytest.raises(FetchFailed):
                await fetch()
