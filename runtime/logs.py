"""Structured logs: one JSON object a line on stderr, UTC times. Never secrets, never content."""

from __future__ import annotations

import atexit
import datetime
import logging
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict

from runtime.log_lines import LineWriter

SAID = {"warn": "warning", "exception": "error"}  # a method of the logger, and its level
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class _Process:
    """What holds for all of a process's loggers, which are cached: they ask for it each time."""

    least = LEVELS["info"]  # that is written
    lines: LineWriter | None = None  # where they go, once it is configured


def set_level(level: str) -> None:
    """From now on this process writes what is at least so important."""
    _Process.least = LEVELS[level]


def flush() -> None:
    """Write what waits to be written: for who ends the process by `os._exit`."""
    if _Process.lines is not None:
        _Process.lines.flush()


def configure() -> None:
    """Set up logging for this process, once, at its start."""
    lines = _Process.lines = LineWriter(sys.stderr.buffer)
    atexit.register(flush)
    structlog.configure(
        processors=[
            _drop_below,
            structlog.contextvars.merge_contextvars,
            _stamp,
            _explain,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def tell(event: str, fields: Mapping[str, Any]) -> None:
    """`info`, for what is told of each request: structlog's way there takes longer than the line.

    Context variables aren't merged. Where lines don't go as `configure` has it, as in a test that
    looks at them, it goes structlog's way.
    """
    lines = _Process.lines
    if lines is None or structlog.get_config()["processors"][-1] is not _render:
        structlog.get_logger().info(event, **fields)
    elif LEVELS["info"] >= _Process.least:
        lines.info(_encode(_stamp(None, "info", {**fields, "event": event})))


def _stamp(_: object, name: str, event: EventDict) -> EventDict:
    """structlog's own two processors for this take several times as long."""
    event["level"] = SAID.get(name, name)
    second, us = divmod(time.time_ns() // 1000, 1_000_000)
    event["timestamp"] = f"{_second(second)}.{us:06d}Z"
    return event


@lru_cache(1)
def _second(second: int) -> str:
    """Of a time as a line of the log says it: all but its fraction, the same for many lines."""
    return datetime.datetime.fromtimestamp(second, datetime.UTC).isoformat()[:-6]


def _explain(logger: object, name: str, event: EventDict) -> EventDict:
    """structlog's own looks for an exception in each line, and takes longer to find none."""
    return _exceptions(logger, name, event) if "exc_info" in event else event


# Without the frames' locals, which hold prompts and keys.
_exceptions = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))


def _render(_: object, __: str, event: EventDict) -> bytes:
    return _encode(event)


def _drop_below(_: object, name: str, event: EventDict) -> EventDict:
    if LEVELS[name] < _Process.least:
        raise structlog.DropEvent
    return event


class JsonFormatter(logging.Formatter):
    """The standard library's records, in the same form as ours."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object. The exception's type alone: its text may quote a request."""
        line = {"event": record.getMessage(), "logger": record.name}
        if record.exc_info and record.exc_info[0]:
            line["exception"] = record.exc_info[0].__name__
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line |= {"level": record.levelname.lower(), "timestamp": f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"}
        return _encode(line).decode()


def _encode(line: object) -> bytes:
    return msgspec.json.encode(line, enc_hook=str)
