"""Structured logs: one JSON object a line on stderr, UTC times. Never secrets, never content."""

from __future__ import annotations

import atexit
import datetime
import logging
import sys

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
            # without the frames' locals, which hold prompts and keys
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def _stamp(_: object, name: str, event: EventDict) -> EventDict:
    """structlog's own two processors for this take several times as long."""
    event["level"] = SAID.get(name, name)
    now = datetime.datetime.now(datetime.UTC)
    event["timestamp"] = now.isoformat(timespec="microseconds")[:-6] + "Z"
    return event


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
