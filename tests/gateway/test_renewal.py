"""New certificate files: taken when they are whole and good, refused with a reason when not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.processes.renewal import AGAIN_S, PATIENCE_S, REMIND_S, Offer, Renewal
from runtime.config.tls import ServerTls
from tests.authority import DAY, Authority, p256, pem_of

TLS = ServerTls(cert="server.pem", key="server.key")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path)
    authority.issue()
    return authority


@pytest.fixture
def renewal(authority: Authority) -> Renewal:
    return Renewal(lambda: TLS, authority.folder)


def look(renewal: Renewal, since: float, seconds: int = 3) -> Offer | None:
    """What comes of watching for so long."""
    offers = [renewal.look(since + i / 2) for i in range(2 * seconds)]
    return next((offer for offer in offers if offer), None)


def test_nothing_changes(renewal: Renewal) -> None:
    assert look(renewal, 0, 20) is None


def test_a_new_pair_is_taken_once(renewal: Renewal, authority: Authority) -> None:
    assert renewal.look(10) is None
    issued = authority.issue()
    assert renewal.look(12) is None, "it may not be written to its end"
    offer = look(renewal, 13)
    assert offer is not None
    assert offer.identity.leaf is not None
    assert offer.identity.leaf.serial == f"{issued.serial:X}"
    assert look(renewal, 20) is None, "while a worker comes up with it"
    renewal.taken()
    assert look(renewal, 30) is None


def test_the_halves_of_a_pair_may_come_one_after_the_other(
    renewal: Renewal, authority: Authority
) -> None:
    issued = authority.issue()
    whole = issued.key_path.read_bytes()
    issued.key_path.write_bytes(pem_of(p256()))
    with structlog.testing.capture_logs() as logs:
        assert look(renewal, 10, int(PATIENCE_S) - 1) is None
        issued.key_path.write_bytes(whole)
        assert look(renewal, 10 + PATIENCE_S) is not None
    assert logs == []


@pytest.mark.parametrize("fault", ["expired", "mismatch", "gone", "nonsense"])
def test_a_bad_one_is_refused_once_with_its_reason(
    renewal: Renewal, authority: Authority, fault: str
) -> None:
    issued = authority.issue(until=-DAY / 2 if fault == "expired" else DAY * 90)
    if fault == "mismatch":
        issued.key_path.write_bytes(pem_of(p256()))
    elif fault == "gone":
        issued.cert_path.unlink()
    elif fault == "nonsense":
        issued.cert_path.write_text("-----BEGIN CERTIFICATE-----\nx\n")
    with structlog.testing.capture_logs() as logs:
        assert look(renewal, 10, 30) is None
    (entry,) = logs
    assert entry["event"] == "certificate_refused"
    assert str(authority.folder) in entry["reason"]
    good = authority.issue()
    offer = look(renewal, 60)
    assert offer is not None
    assert offer.identity.leaf is not None
    assert offer.identity.leaf.serial == f"{good.serial:X}"


def test_one_that_is_not_valid_yet_is_tried_again(renewal: Renewal, authority: Authority) -> None:
    authority.issue(since=DAY)
    with structlog.testing.capture_logs() as logs:
        look(renewal, 10, 30)
        look(renewal, 20 + AGAIN_S, 5)
    assert [entry["event"] for entry in logs] == ["certificate_refused"] * 2


def test_no_worker_comes_up_with_it(renewal: Renewal, authority: Authority) -> None:
    """It is tried again later, and the former pair is nothing new when it comes back."""
    before = {p: p.read_bytes() for p in authority.folder.iterdir()}
    authority.issue()
    assert look(renewal, 10) is not None
    with structlog.testing.capture_logs() as logs:
        renewal.refused(15, "no worker started with it")
        assert look(renewal, 16, 20) is None
    assert logs[0]["reason"] == "no worker started with it"
    assert look(renewal, 20 + AGAIN_S) is not None
    renewal.refused(1000, "again")
    for path, data in before.items():
        path.write_bytes(data)
    assert look(renewal, 2000 + AGAIN_S) is None


def test_the_configuration_may_name_others(authority: Authority) -> None:
    tls = TLS
    renewal = Renewal(lambda: tls, authority.folder)
    assert look(renewal, 0) is None
    tls = ServerTls(cert="server.pem", key="server.key", min_version="1.3")
    offer = look(renewal, 10)
    assert offer is not None
    assert offer.tls.min_version == "1.3"


def warned(logs: list[Any]) -> list[str]:
    return [entry["message"] for entry in logs if entry["event"] == "certificate_warning"]


def test_it_reminds_of_an_expiry_once_a_day(authority: Authority) -> None:
    authority.issue(until=5 * DAY)
    renewal = Renewal(lambda: TLS, authority.folder)
    with structlog.testing.capture_logs() as logs:
        for second in range(int(2.5 * REMIND_S / 3600)):
            renewal.look(second * 3600.0)
    assert len(warned(logs)) == 3
    assert "in 5 days; renew it" in warned(logs)[0]
