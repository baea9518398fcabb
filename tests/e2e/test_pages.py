"""A real page in a real browser, on another origin than the gateway: streaming, errors, refusals.

The page's own server is written here; what its script saw comes back to it as JSON.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.stack import Stack, fake_config, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_S = 120

PAGE = """<!doctype html><meta charset="utf-8"><script>
const run = async () => {
  const {url, key, own} = SETTINGS;
  const seen = {};
  const call = async (name, path, options) => {
    try {
      const answer = await fetch(url + path, options);
      const chunks = [];
      const reader = answer.body.getReader();
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        chunks.push(new TextDecoder().decode(value));
      }
      seen[name] = {
        status: answer.status, text: chunks.join(''), chunks: chunks.length,
        id: answer.headers.get('x-request-id'), etag: answer.headers.get('etag'),
      };
    } catch (fault) {
      seen[name] = {fault: String(fault)};
    }
  };
  const headers = {
    'authorization': 'Bearer ' + key, 'content-type': 'application/json',
    'x-stainless-lang': 'js', 'x-stainless-os': 'Linux', 'x-stainless-retry-count': '0',
  };
  const body = JSON.stringify({
    model: 'echo', messages: [{role: 'user', content: 'abc'}], max_tokens: 50, stream: true,
  });
  await call('stream', '/v1/chat/completions', {method: 'POST', headers, body});
  await call('models', '/v1/models', {headers});
  await call('bad', '/v1/chat/completions', {method: 'POST', headers, body: '{'});
  await call('nobody', '/v1/models', {headers: {'authorization': 'Bearer x'}});
  await fetch('/seen', {method: 'POST', body: JSON.stringify(seen)});
};
run();
</script>"""


@contextmanager
def page(settings: dict[str, str]) -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """A server of one page, and what its script saw."""
    seen: queue.Queue[dict[str, Any]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(PAGE.replace("SETTINGS", json.dumps(settings)).encode())

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            seen.put(json.loads(self.rfile.read(length)))
            self.answer(b"")

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://localhost:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


def visit(folder: Path, url: str, seen: queue.Queue[dict[str, Any]]) -> dict[str, Any]:
    """What the page's script saw in headless Chromium."""
    assert CHROMIUM is not None
    browser = subprocess.Popen(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--disable-background-networking"),
            *(f"--user-data-dir={folder}", "--remote-debugging-port=0", url),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return seen.get(timeout=WAIT_S)
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_page_streams_and_reads_errors_from_its_own_origin_alone(tmp_path: Path) -> None:
    settings: dict[str, str] = {}
    with page(settings) as (own, seen), page(settings) as (foreign, foreign_seen):
        tenant = f'[[tenants]]\nname = "demo"\norigins = ["{own}"]\n'
        with running(tmp_path, tenant + fake_config(step_s=0.01)) as stack:
            settings |= {"url": stack.url, "key": stack.key}
            mine = visit(tmp_path / "own", own, seen)
            theirs = visit(tmp_path / "foreign", foreign, foreign_seen)
            check_own(mine)
            for name, found in theirs.items():
                assert "fault" in found, f"a foreign page could read {name}"
            check_records(stack)


def check_own(seen: dict[str, Any]) -> None:
    stream = seen["stream"]
    assert stream["status"] == 200
    assert stream["text"].endswith("data: [DONE]\n\n")
    assert stream["chunks"] > 3, "it came as it was made"
    assert stream["id"].startswith("req_")
    assert seen["models"]["etag"]
    assert [(seen[name]["status"], seen[name]["text"] != "") for name in ("bad", "nobody")] == [
        (400, True),
        (401, True),
    ]


def check_records(stack: Stack) -> None:
    """What the foreign page asked never ran: one answer is on record, the other page's."""
    rows = stack.cli("usage", "export", "--format", "jsonl").splitlines()
    assert len(rows) == 1
