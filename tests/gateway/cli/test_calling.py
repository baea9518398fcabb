"""How commands call a running Bulkhead, and what they say when it doesn't go well."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import httpx
import pytest

from gateway import address
from gateway.address import Address
from gateway.admin.key import NoAdminKey, ensure
from gateway.cli.answers import Restart
from gateway.cli.calling import PROBLEM, Server, admin_server, check, reason
from gateway.cli.options import Declined, Places, Refused, Unreachable
from gateway.identity import keys
from tests.stack import fake_config, free_port


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    for name in ("BULKHEAD_ADMIN_URL", "BULKHEAD_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    (tmp_path / "state").mkdir(mode=0o700)
    return Places(config=tmp_path / "bulkhead.toml", state_dir=tmp_path / "state")


def test_it_is_where_the_process_that_listens_has_said(places: Places) -> None:
    assert places.state_dir
    key = ensure(places.state_dir)
    with pytest.raises(Unreachable, match=r"no admin API is open for .*--state"):
        admin_server(places)
    address.publish(places.state_dir, "admin", Address(url="http://127.0.0.1:1"))
    found = admin_server(places)
    assert (found.url, found.key) == ("http://127.0.0.1:1", key)
    assert key not in repr(found)
    address.withdraw(places.state_dir, "admin")
    address.withdraw(places.state_dir, "admin")
    with pytest.raises(Unreachable):
        admin_server(places)


def test_a_config_with_faults_is_no_obstacle(places: Places) -> None:
    assert places.config
    assert places.state_dir
    ensure(places.state_dir)
    address.publish(places.state_dir, "admin", Address(url="http://127.0.0.1:1"))
    places.config.write_text('[[models]]\nid = 7\n[server]\nport = "x"\n')
    assert admin_server(places).url == "http://127.0.0.1:1"


def test_the_environment_wins(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_ADMIN_URL", "https://far.example:8788/")
    with pytest.raises(NoAdminKey):
        admin_server(places)
    key = keys.mint(keys.ADMIN_PREFIX)
    monkeypatch.setenv("BULKHEAD_ADMIN_KEY", key)
    found = admin_server(places)
    assert (found.url, found.key) == ("https://far.example:8788", key)


def test_nobody_answers() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match=url):
        Server(url, "k").ask("GET", "/x", Restart)


@pytest.mark.parametrize(
    ("status", "fault"), [(401, Refused), (403, Refused), (404, Declined), (503, Declined)]
)
def test_an_error_is_told_in_its_own_words(status: int, fault: type[Exception]) -> None:
    with pytest.raises(fault, match="the reason"):
        check(httpx.Response(status, json={"detail": "the reason"}), "u")
    with pytest.raises(fault, match="the reason"):
        check(httpx.Response(status, json={"error": {"message": "the reason"}}), "u")


def test_what_the_admin_api_refuses_is_told_in_its_sentence_alone() -> None:
    answer = httpx.Response(
        409, content=b'{"detail": "nothing runs"}', headers={"content-type": PROBLEM}
    )
    with pytest.raises(Declined) as raised:
        check(answer, "http://desk")
    assert str(raised.value) == "nothing runs"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"error": "x"}', b'"text"'])
def test_an_answer_of_somebody_else_has_its_status_for_a_reason(body: bytes) -> None:
    assert reason(httpx.Response(404, content=body)) == "Not Found"


def test_what_is_no_url_and_what_is_no_key() -> None:
    for url in ("http://[::1", "there", "ftp://there", "http://there:99999"):
        with pytest.raises(Unreachable, match=re.escape(url)):
            Server(url, "k").ask("GET", "/x", Restart)
    for key in ("ключ", "a\nb"):
        with pytest.raises(Refused):
            Server("http://127.0.0.1:1", key).ask("GET", "/x", Restart)


@pytest.mark.parametrize(
    ("scheme", "said", "hint"),
    [
        ("http", b"\x15\x03\x03\x00\x02\x02\x46", "its URL begins with https://"),
        ("http", b"", "its URL begins with https://"),
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "its URL begins with http://"),
    ],
)
def test_the_wrong_scheme_is_told_with_the_other(scheme: str, said: bytes, hint: str) -> None:
    """A TLS alert, as our own listener answers plain HTTP with; and the other way round."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unreachable, match=hint):
            Server(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", "k").ask(
                "GET", "/", Restart
            )
        thread.join()
