"""Structured logs: one JSON object a line on stderr, UTC times. Never secrets, never content."""

from __future__ import annotations

import logging
import sys

import msgspec
import structlog
from structlog.tracebacks import ExceptionDictTransformer


def configure(level: str = "info") -> None:
    """Set up logging for this process, once, at its start."""
    threshold = getattr(logging, level.upper())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # without the frames' locals, which hold prompts and keys
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(serializer=_encode),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")


def _encode(line: object, **_: object) -> bytes:
    return msgspec.json.encode(line, enc_hook=str)
