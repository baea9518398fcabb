"""Certificate files: what is good, and every fault with its path and what to do."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from runtime.config.tls import ClientTls, ServerTls
from runtime.tls import certificates
from runtime.tls.certificates import BadCertificate, contents, faults, load
from tests.authority import DAY, Authority, Key, p256, pem_of

TLS = ServerTls(cert="server.pem", key="server.key")
MUTUAL = ServerTls(cert="server.pem", key="server.key", client_ca="ca.pem")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def told(tls: ServerTls | ClientTls, folder: Path) -> list[tuple[str, str]]:
    return list(faults(tls, folder))


def test_a_good_pair_is_described(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue()
    found = load(MUTUAL, tmp_path)
    assert found.leaf is not None
    assert found.leaf.names == ("localhost", "127.0.0.1", "::1")
    assert found.leaf.serial == f"{issued.serial:X}"
    assert found.leaf.not_after == issued.certificate.not_valid_after_utc
    assert found.leaf.key == "EC secp256r1"
    assert len(found.leaf.fingerprint) == 64
    assert b"BEGIN CERTIFICATE" in found.authorities
    assert told(MUTUAL, tmp_path) == []


KEYS: dict[str, Callable[[], Key]] = {
    "EC P-256": p256,
    "EC P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}
FORMS = [
    ("EC P-256", PrivateFormat.PKCS8),
    ("EC P-256", PrivateFormat.TraditionalOpenSSL),
    ("EC P-384", PrivateFormat.TraditionalOpenSSL),
    ("RSA", PrivateFormat.PKCS8),
    ("RSA", PrivateFormat.TraditionalOpenSSL),
    ("Ed25519", PrivateFormat.PKCS8),
]


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_a_key_in_any_usual_form_becomes_pkcs8(
    authority: Authority, tmp_path: Path, kind: str, form: PrivateFormat
) -> None:
    key = KEYS[kind]()
    issued = authority.issue(key=key)
    issued.key_path.write_bytes(b"a line before\n" + pem_of(key, form))
    found = load(TLS, tmp_path)
    assert found.key.startswith(b"-----BEGIN PRIVATE KEY-----")
    again = load_pem_private_key(found.key, None)
    assert again.public_key() == issued.certificate.public_key()


def test_one_file_may_hold_chain_and_key(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue()
    both = pem_of(issued.key) + issued.cert_path.read_bytes() + authority.path.read_bytes()
    (tmp_path / "both.pem").write_bytes(both)
    found = load(ServerTls(cert="both.pem", key="both.pem"), tmp_path)
    assert found.chain.count(b"BEGIN CERTIFICATE") == 2
    assert b"PRIVATE" not in found.chain


def test_every_file_s_fault_is_told_at_once_with_its_path(tmp_path: Path) -> None:
    tls = ServerTls(cert="a.pem", key="b.key", client_ca="/nowhere/c.pem")
    (tmp_path / "b.key").write_text("no key")
    assert told(tls, tmp_path) == [
        ("cert", f"{tmp_path}/a.pem can't be read (No such file or directory)"),
        ("key", f"{tmp_path}/b.key holds no private key in PEM"),
        ("client_ca", "/nowhere/c.pem can't be read (No such file or directory)"),
    ]
    with pytest.raises(BadCertificate, match=r"a.pem can't be read.*b.key holds no private key"):
        load(tls, tmp_path)


def test_a_key_of_another_certificate(authority: Authority, tmp_path: Path) -> None:
    authority.issue()
    (tmp_path / "server.key").write_bytes(pem_of(rsa.generate_private_key(65537, 2048)))
    assert told(TLS, tmp_path) == [
        ("key", f"{tmp_path}/server.key is not the key of the certificate in server.pem")
    ]


def test_an_encrypted_key(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue()
    for form in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL):
        issued.key_path.write_bytes(pem_of(issued.key, form, BestAvailableEncryption(b"x")))
        ((key, message),) = told(TLS, tmp_path)
        assert key == "key"
        assert "is encrypted; store it plain" in message


def test_what_is_no_certificate(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue()
    cases = {
        b"": "holds no certificate in PEM",
        issued.certificate.public_bytes(Encoding.DER): "it may be in DER",
        issued.cert_path.read_bytes()[:200] + b"\n-----END CERTIFICATE-----\n": "can't be read",
    }
    for data, message in cases.items():
        issued.cert_path.write_bytes(data)
        ((key, found),) = told(TLS, tmp_path)
        assert key == "cert"
        assert message in found


def test_times(authority: Authority, tmp_path: Path) -> None:
    authority.issue(since=-10 * DAY, until=-DAY)
    assert "server.pem expired on 20" in told(TLS, tmp_path)[0][1]
    authority.issue(since=DAY)
    assert "is not valid before 20" in told(TLS, tmp_path)[0][1]
    authority.issue(until=13 * DAY)
    assert told(TLS, tmp_path) == []
    ((key, message),) = certificates.warnings(TLS, tmp_path)
    assert key == "cert"
    assert "in 13 days; renew it" in message
    authority.issue(until=15 * DAY)
    assert list(certificates.warnings(TLS, tmp_path)) == []
    later = datetime.datetime.now(datetime.UTC) + 16 * DAY
    assert "expired" in next(faults(TLS, tmp_path, later))[1]


def test_weak_and_foreign_keys(authority: Authority, tmp_path: Path) -> None:
    authority.issue(key=rsa.generate_private_key(65537, 1024))
    assert "an RSA key of 1024 bits, which is weak; 2048 at least" in told(TLS, tmp_path)[0][1]
    authority.issue(key=ec.generate_private_key(ec.SECP521R1()))
    assert "on the curve secp521r1; P-256 or P-384" in told(TLS, tmp_path)[0][1]
    authority.issue()
    other = dsa.generate_private_key(2048).private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    )
    (tmp_path / "server.key").write_bytes(other)
    assert "is not the key of the certificate" in told(TLS, tmp_path)[0][1]


def test_what_clients_would_refuse(authority: Authority, tmp_path: Path) -> None:
    authority.issue(names=())
    assert "names no host (subjectAltName)" in told(TLS, tmp_path)[0][1]
    authority.issue(usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    assert "is not made to be a server's" in told(TLS, tmp_path)[0][1]
    authority.issue(usage=None)
    assert told(TLS, tmp_path) == []


def test_a_chain_in_the_wrong_order(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue()
    ca = authority.path.read_bytes()
    issued.cert_path.write_bytes(ca + issued.cert_path.read_bytes())
    issued.key_path.write_bytes(pem_of(authority._key))
    assert any("is out of order: the leaf first" in message for _, message in told(TLS, tmp_path))


def test_an_authority_that_has_expired(authority: Authority, tmp_path: Path) -> None:
    authority.issue()
    old = authority.issue("old", since=-10 * DAY, until=-DAY)
    authority.path.write_bytes(old.cert_path.read_bytes())
    assert told(MUTUAL, tmp_path) == [
        ("client_ca", f"{tmp_path}/ca.pem holds no certificate that is still valid")
    ]


def test_a_key_that_everybody_may_read_is_a_warning(authority: Authority, tmp_path: Path) -> None:
    authority.issue().key_path.chmod(0o644)
    ((key, message),) = certificates.warnings(TLS, tmp_path)
    assert key == "key"
    assert "chmod o=" in message


def test_a_client_s_side(authority: Authority, tmp_path: Path) -> None:
    authority.client()
    tls = ClientTls(ca="ca.pem", cert="client.pem", key="client.key")
    assert load(tls, tmp_path).leaf is not None
    authority.issue("client")
    assert "is not made to be a client's" in told(tls, tmp_path)[0][1]
    only_ca = load(ClientTls(ca="ca.pem"), tmp_path)
    assert only_ca.leaf is None
    assert only_ca.authorities
    assert load(ClientTls(), tmp_path).authorities == b""


def test_a_change_of_any_file_shows(authority: Authority, tmp_path: Path) -> None:
    authority.issue()
    before = contents(MUTUAL, tmp_path)
    authority.issue()
    assert contents(MUTUAL, tmp_path) != before
    (tmp_path / "ca.pem").unlink()
    assert contents(MUTUAL, tmp_path)[2] is None
