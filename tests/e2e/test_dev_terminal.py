"""`bulkhead dev` on a terminal: the live view, or log lines if they are wanted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.asking import PATIENCE_S, complete
from tests.stack import BULKHEAD, Stack, fake_config, free_port
from tests.terminal import Terminal


@pytest.mark.slow
def test_dev_on_a_terminal_shows_requests_models_and_faults(tmp_path: Path) -> None:
    config, state = tmp_path / "bulkhead.toml", tmp_path / "state"
    config.write_text(fake_config(step_s=0.001))
    stack = Stack(config, state, free_port())
    ports = ["--port", str(stack.port), "--admin-port", str(stack.admin_port)]
    terminal = Terminal(*BULKHEAD, "dev", "--config", str(config), "--state", str(state), *ports)
    try:
        terminal.wait_for("BULKHEAD_API_KEY=")
        stack.wait_ready()
        stack.key = (state / "demo-key").read_text().strip()
        assert stack.key in terminal.text
        terminal.wait_for("MODEL")
        assert complete(stack).status_code == 200
        terminal.wait_for("200 echo")
        assert complete(stack, model="none").status_code == 404
        terminal.wait_for("model_not_found")
        config.write_text(fake_config() + "[server]\nport = 'x'\n")
        terminal.wait_for("server.port")
        terminal.wait_for("stays as it was")
        os.write(terminal.controller, b"\x03")
        assert terminal.process.wait(PATIENCE_S) == 0
        assert b"\x1b[?25l" not in terminal.output, (
            "the cursor is never hidden, so it can't be lost"
        )
        log = (state / "dev.log").read_text()
        assert {"node_started", "request"} <= {json.loads(x)["event"] for x in log.splitlines()}
        assert stack.key not in log
        assert '"event"' not in terminal.text.partition("MODEL")[2], "no JSON among the lines"
    finally:
        terminal.close()


@pytest.mark.slow
def test_dev_on_a_terminal_shows_what_is_wrong_with_an_attached_server(tmp_path: Path) -> None:
    config, state = tmp_path / "bulkhead.toml", tmp_path / "state"
    url = f"http://127.0.0.1:{free_port()}/v1"
    attached = f'[[models]]\nid = "far"\nengine = "openai"\ncache = "salted"\nurl = "{url}"\n'
    config.write_text(fake_config(more=attached))
    stack = Stack(config, state, free_port())
    ports = ["--port", str(stack.port), "--admin-port", str(stack.admin_port)]
    terminal = Terminal(*BULKHEAD, "dev", "--config", str(config), "--state", str(state), *ports)
    try:
        terminal.wait_for("attached")
        stack.wait_ready()
        stack.key = (state / "demo-key").read_text().strip()
        assert complete(stack, model="far").status_code == 503
        terminal.wait_for(" down ")
        terminal.wait_for(" s ago)")
    finally:
        terminal.close()


@pytest.mark.slow
def test_dev_with_json_on_a_terminal_writes_log_lines(tmp_path: Path) -> None:
    config, state = tmp_path / "bulkhead.toml", tmp_path / "state"
    config.write_text(fake_config())
    ports = ["--port", str(free_port()), "--admin-port", str(free_port()), "--json"]
    terminal = Terminal(*BULKHEAD, "dev", "--config", str(config), "--state", str(state), *ports)
    try:
        terminal.wait_for('"event":"gateway_started"')
        terminal.wait_for("BULKHEAD_API_KEY=")
        os.write(terminal.controller, b"\x03")
        assert terminal.process.wait(PATIENCE_S) == 0
        assert "MODEL" not in terminal.text
        assert not (state / "dev.log").exists()
    finally:
        terminal.close()
