"""Logs are one JSON object a line, and hold neither secrets nor content."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import structlog
from runtime import logs
logs.configure()
log = structlog.get_logger()
log.debug("quiet")
log.info("request", path="/v1/x\\ninjected", status=200)
def fail(authorization, prompt):
    raise ValueError("a reason")
try:
    fail("Bearer canary-key", "canary-prompt")
except ValueError:
    log.exception("internal_error", request_id="req_1")
"""


CAPTURED = """
from structlog.testing import capture_logs
from runtime import logs
logs.configure()
with capture_logs() as found:
    logs.tell("request", {"status": 200})
logs.tell("request", {"status": 201})
assert [line["status"] for line in found] == [200], found
"""


def test_who_looks_at_what_is_told_finds_a_requests_line_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CAPTURED], capture_output=True, text=True, check=True, timeout=60
    )
    assert [json.loads(line)["status"] for line in done.stderr.splitlines()] == [201]


def test_a_traceback_in_the_log_shows_no_values_of_variables() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == ""
    request, fault = map(json.loads, done.stderr.splitlines())
    assert (request["event"], request["level"]) == ("request", "info")
    assert request["timestamp"].endswith("Z")
    assert fault["exception"][0]["exc_value"] == "a reason"
    frames = [frame["name"] for frame in fault["exception"][0]["frames"]]
    assert frames == ["<module>", "fail"]
    assert "canary" not in done.stderr


LEVELS = """
import structlog
from runtime import logs
logs.configure()
log = structlog.get_logger()
def tell(when):
    for level in ("debug", "info", "warning", "error", "exception"):
        getattr(log, level)(f"{when} {level}")
tell("first")
logs.set_level("error")
tell("quiet")
logs.set_level("debug")
tell("loud")
"""


def test_the_level_changes_while_loggers_are_in_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEVELS], capture_output=True, text=True, check=True, timeout=60
    )
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == [
        "first info", "first warning", "first error", "first exception",
        "quiet error", "quiet exception",
        "loud debug", "loud info", "loud warning", "loud error", "loud exception",
    ]  # fmt: skip


TOLD = """
import structlog
from runtime import logs
def tell():
    logs.tell("request", {"status": 200, "name": "\u00e9\\n"})
    structlog.get_logger().info("request", status=200, name="\u00e9\\n")
logs.configure()
tell()
logs.set_level("warning")
tell()
"""


def test_what_is_told_of_requests_is_as_a_logger_would_say_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOLD], capture_output=True, text=True, check=True, timeout=60
    )
    told, said = map(json.loads, done.stderr.splitlines())
    assert told.pop("timestamp") <= said.pop("timestamp")
    assert list(told.items()) == list(said.items())


AT_THE_END = """
import asyncio, os, structlog
from runtime import logs
logs.configure()
async def main():
    structlog.get_logger().info("last words")
    logs.flush()
    os._exit(3)
asyncio.run(main())
"""


def test_what_is_said_in_the_turn_in_which_a_process_ends_is_written() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert json.loads(done.stderr)["event"] == "last words"
