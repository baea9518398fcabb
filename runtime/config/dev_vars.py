"""`.dev.vars`, in dotenv's syntax: variables and secrets of one developer, for `bulkhead dev` only.

With an environment chosen `.dev.vars.NAME` is read instead, if it is there.
"""

from __future__ import annotations

import io
from pathlib import Path

from dotenv.parser import parse_stream

from runtime.config.report import Report

FILE = ".dev.vars"


def read(folder: Path, env: str, report: Report) -> dict[str, str]:
    """The values of the file that counts; none if there is no such file."""
    for name in (f"{FILE}.{env}", FILE) if env else (FILE,):
        if (folder / name).is_file():
            return _parse(name, (folder / name).read_bytes(), report)
    return {}


def _parse(name: str, content: bytes, report: Report) -> dict[str, str]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        report.error("", f"{name} is not text in UTF-8")
        return {}
    values: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        if binding.error or (binding.key is not None and binding.value is None):
            skipped = binding.original.string  # it may begin with empty lines
            line = binding.original.line + len(skipped) - len(skipped.lstrip("\n"))
            report.error("", f"{name}, line {line}: expected NAME=value")
        elif binding.key is not None:
            values[binding.key] = binding.value or ""
    return values
