"""What the doctor finds of what should answer."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

from gateway import address
from gateway.address import Address
from gateway.doctor import network
from gateway.doctor.finding import Patient
from runtime.config.sections import AdminSettings, ServerSettings
from runtime.deploy.running import Sign
from runtime.node_wire import Hosts, ModelState, ModelView
from tests.authority import Authority
from tests.gateway.doctor.patients import levels, one, patient
from tests.stack import free_port


def test_ports_are_free_ours_or_anothers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        taken = sock.getsockname()[1]
        here = Address(url=f"http://127.0.0.1:{taken}")
        assert network.port("port", "127.0.0.1", taken, here).text == f"{here.url} is ours"
        assert network.port("port", "127.0.0.1", taken, None).level == "error"
        both = patient(
            tmp_path, server=ServerSettings(port=taken), admin=AdminSettings(port=free_port())
        )
        assert levels(network.ports(both)) == ["error", "ok"]
    none = patient(tmp_path, server=ServerSettings(port=free_port()), admin=AdminSettings(port=0))
    assert levels(network.ports(none)) == ["ok"]


def test_what_does_not_run_is_no_fault(well: Patient) -> None:
    for check in (network.node, network.gateway):
        assert one(check(well), "ok").text == "not running"


def test_a_node_that_lives_and_does_not_answer(well: Patient) -> None:
    sign = Sign(well.place.state_dir, "node", dev=False)
    try:
        assert "no node answers" in one(network.node(well), "error").text
    finally:
        sign.close()


def test_a_gateway_that_lives_and_does_not_answer(well: Patient) -> None:
    sign = Sign(well.place.state_dir, "gateway", dev=False)
    try:
        one(network.gateway(well), "warning")  # it may be starting
        nowhere = Address(url=f"http://127.0.0.1:{free_port()}")
        address.publish(well.place.state_dir, "gateway", nowhere)
        assert "doesn't answer" in one(network.gateway(well), "error").text
    finally:
        sign.close()
        address.withdraw(well.place.state_dir, "gateway")


def test_a_gateway_that_asks_for_certificates_is_well_if_it_refuses_us(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse(server: socket.socket) -> None:
        for _ in range(2):
            with suppress(OSError), server.accept()[0] as sock:
                context.wrap_socket(sock, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=refuse, args=(server,))
        thread.start()
        base = f"https://127.0.0.1:{server.getsockname()[1]}"
        assert network.answers(base, mutual=True).level == "ok"
        assert network.answers(base).level == "error"
        thread.join()
    assert network.answers(base, mutual=True).level == "error", "nobody listens"


def test_models_that_fail_are_told_with_what_to_do() -> None:
    told = Hosts(
        version=1,
        models=[
            ModelView(id="a", state=ModelState.FAILED, failures=5, reason="no memory"),
            ModelView(id="b", state=ModelState.READY, failures=1, reason="exited with 1"),
            ModelView(id="c", state=ModelState.COLD),
        ],
    )
    found = list(network.models(told))
    assert levels(found) == ["error", "warning"]
    assert found[1].text == "b: 1 failure, exited with 1"
    assert "bulkhead hosts restart a" in found[0].todo
