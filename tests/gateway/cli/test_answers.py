"""Commands at a server that is no Bulkhead: a sentence and exit code 5, whatever it answers."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gateway.catalog.schema import endpoint_schemas
from gateway.cli.answers import Endpoint, Kind
from gateway.cli.commands import main
from gateway.cli.models import told
from gateway.cli.options import Exit
from gateway.identity import keys
from tests.stack import fake_config

# Every command that calls a server.
COMMANDS = (
    "whoami",
    "whoami --json",
    "whoami --admin",
    "models list",
    "models list --json",
    "models schema echo",
    "models schema echo --json",
    "hosts list",
    "hosts list --json",
    "hosts restart echo",
    "tail",
)
BODIES = (
    b"", b"{}", b"null", b"[1]", b'{"data": [1]}', b'{"data": null}', b'{"data": [{"id": 7}]}',
    b"<html>hello</html>", b"\xff\xfe", b"[" * 100_000, b'{"tenant": {}, "key": {}}',
    b'{"endpoints": {"/v1/x": 1}}',
    b'{"endpoints": {"/v1/x": {"input": {"$ref": "#/a", "$defs": {}}}}}',
)  # fmt: skip


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Answers anything with `body`."""

    body = b""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    monkeypatch.chdir(tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "BULKHEAD_URL": url,
        "BULKHEAD_API_KEY": keys.mint(),
        "BULKHEAD_ADMIN_URL": url,
        "BULKHEAD_ADMIN_KEY": keys.mint(keys.ADMIN_PREFIX),
    }.items():
        monkeypatch.setenv(name, value)
    yield url
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("words", COMMANDS)
def test_an_answer_of_another_shape(
    words: str, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for body in BODIES:
        monkeypatch.setattr(Elsewhere, "body", body)
        done = CliRunner().invoke(main, words.split())
        assert (done.exit_code, done.stdout) == (Exit.UNREACHABLE, ""), (body[:60], done.exception)
        assert f"what answers at {elsewhere} isn't a Bulkhead" in done.stderr


def test_our_own_schemas_are_told_in_words() -> None:
    """Each kind of field that they hold has words of its own."""
    endpoints = msgspec.convert(endpoint_schemas(), dict[str, Endpoint])
    words = {
        told(kind) for one in endpoints.values() for kind in one.input.body.properties.values()
    }
    assert "anything" not in words
    assert told(Kind(type="number", maximum=2)) == "number"
    assert told(Kind(type="array")) == "list of anything"
