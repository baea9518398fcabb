"""The local authority: kept; its leaf renewed when it must be; private."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from gateway.processes.local_ca import CA_DAYS, LEAF_DAYS, RENEW_DAYS, ensure, names_here
from runtime.config.overrides import local_tls
from runtime.tls import certificates
from tests.authority import DAY

NAMES = ("localhost", "127.0.0.1", "::1", "here")
NOW = datetime.datetime.now(datetime.UTC)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_it_is_made_private_and_good(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    assert ensure(folder, NAMES) == folder / "ca.pem"
    assert set(files(folder)) == {"ca.pem", "ca.key", "cert.pem", "key.pem"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    found = certificates.read(local_tls(str(folder)), folder)
    assert (found.errors, found.warnings) == ([], [])
    assert found.identity.leaf is not None
    assert found.identity.leaf.names == ("localhost", "here", "127.0.0.1", "::1")
    leaf = x509.load_pem_x509_certificate(found.identity.chain)
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    leaf.verify_directly_issued_by(ca)
    ssl.create_default_context(cafile=str(folder / "ca.pem"))


def test_it_stays_as_long_as_it_is_good(tmp_path: Path) -> None:
    ensure(tmp_path, NAMES, NOW)
    before = files(tmp_path)
    ensure(tmp_path, NAMES[:3], NOW + (LEAF_DAYS - RENEW_DAYS - 1) * DAY)
    assert files(tmp_path) == before


def test_a_leaf_that_ends_soon_or_lacks_a_name_is_renewed_and_its_authority_kept(
    tmp_path: Path,
) -> None:
    ensure(tmp_path, NAMES, NOW)
    before = files(tmp_path)
    ensure(tmp_path, NAMES, NOW + (LEAF_DAYS - RENEW_DAYS) * DAY)
    renewed = files(tmp_path)
    assert renewed["cert.pem"] != before["cert.pem"]
    assert renewed["ca.pem"] == before["ca.pem"]
    ensure(tmp_path, (*NAMES, "other"), NOW + (LEAF_DAYS - RENEW_DAYS) * DAY)
    assert files(tmp_path)["cert.pem"] != renewed["cert.pem"]
    assert files(tmp_path)["ca.pem"] == before["ca.pem"]


def test_an_authority_that_would_end_before_a_new_leaf_is_made_anew(tmp_path: Path) -> None:
    ensure(tmp_path, NAMES, NOW)
    before = files(tmp_path)
    later = NOW + (CA_DAYS - LEAF_DAYS) * DAY
    ensure(tmp_path, NAMES, later)
    after = files(tmp_path)
    assert after["ca.pem"] != before["ca.pem"]
    found = certificates.load(local_tls(str(tmp_path)), tmp_path, later)
    ca = x509.load_pem_x509_certificate(after["ca.pem"])
    x509.load_pem_x509_certificate(found.chain).verify_directly_issued_by(ca)


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "cert.pem", "key.pem"])
@pytest.mark.parametrize("fault", ["gone", "broken", "foreign"])
def test_what_is_broken_is_made_again(tmp_path: Path, name: str, fault: str) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    ensure(here, NAMES)
    ensure(other, NAMES)
    path = here / name
    if fault == "gone":
        path.unlink()
    else:
        path.write_bytes((other / name).read_bytes() if fault == "foreign" else b"x")
    ensure(here, NAMES)
    found = certificates.load(local_tls(str(here)), here)
    ca = x509.load_pem_x509_certificate((here / "ca.pem").read_bytes())
    x509.load_pem_x509_certificate(found.chain).verify_directly_issued_by(ca)


def test_this_machine_s_names() -> None:
    assert names_here()[:3] == ("localhost", "127.0.0.1", "::1")
    assert len(set(names_here())) == len(names_here())
