"""What a server prints, as lines of our log: no secret, and nothing of what it was asked. Pure.

Until it takes requests all is told, since that is where a start fails. From the moment that its
HTTP server begins, or that it was reached, a line may quote a request: then only what is known to
be the server's own words is told, up to where they could begin to quote, and of an exception its
type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

MAX_CHARS = 400
MAX_BYTES = 4 * MAX_CHARS  # of a line, its last
CPP = "TensorRT-LLM"  # as its C++ names itself; its Python says TRT-LLM
LEAST_SECRET = 6  # characters: a shorter one would be found everywhere
SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)
_LEVELS = {"E": "error", "F": "error", "W": "warning", "D": "debug", "V": "debug", "I": "info"}
_LEVEL = re.compile(
    r"\[TRT-LLM\](?: \[RANK \d+\])? ?\[([A-Z])\]"  # of its Python
    r"|\[TensorRT-LLM\]\[([A-Z])"  # of its C++
    r"|^([EWDIF])[A-Z]*:? "  # uvicorn's, and loguru's
)
_OWN = re.compile(
    r"^(\[[0-9/:. -]+\] ?)?\[(TRT-LLM|TensorRT-LLM)\]( ?\[[A-Z0-9 ]+\])* ?"
    r"|^(?:INFO|WARNING|ERROR|CRITICAL): +"
)
_OPENS = re.compile(r"Started server process|Application startup complete|Uvicorn running on")
_ACCESS = re.compile(r'"[A-Z]+ \S* HTTP/[0-9.]+" [0-9]{3}')
_FRAME = re.compile(r'^ *File "[^"]+", line \d+, in [\w<>.]+$')
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Fault))\b")
_TRACEBACK = "Traceback (most recent call last):"
# Where an own line may begin to quote. What C++ says has no text of a request: it is never told it.
_QUOTE = re.compile(r"""['"`({]|(?<=[ =])\[""")
_OR_COLON = re.compile(rf"{_QUOTE.pattern}|(?<=:) ")


class Line(NamedTuple):
    """One line for the log."""

    level: str
    text: str


class Said:
    """A server's output, as it comes. `secrets` never leave it."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret for secret in secrets if len(secret) >= LEAST_SECRET}
        longest_first = sorted(known, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, longest_first))) if known else None
        self._longest = len(longest_first[0]) if known else 0
        self._begun = b""
        self.may_quote = False  # a request may have come in
        self.withheld = 0  # lines that weren't told
        self.last = ""  # that was told
        self.complaint = ""  # the last one that was an error

    def heard(self, data: bytes) -> list[Line]:
        """The lines that end in `data`."""
        *ended, rest = (self._begun + data).split(b"\n")
        self._begun = _shown(rest) + (b"\r" if rest.endswith(b"\r") else b"")
        found = [self._line(_shown(line)) for line in ended]
        return [line for line in found if line is not None]

    def _line(self, raw: bytes) -> Line | None:
        text = raw.decode(errors="replace").rstrip()
        self.may_quote = self.may_quote or bool(_OPENS.search(text))
        if not text.strip() or _ACCESS.search(text):
            return None
        told = _own_words(text) if self.may_quote else text
        if told is None:
            self.withheld += 1
            return None
        if self._secrets is not None:
            told = self._secrets.sub("***", told)
            if len(raw) == MAX_BYTES:  # it was cut, perhaps within a secret
                told = told[self._longest :]
        line = Line(_level(text), told[:MAX_CHARS])
        self.last = line.text
        if line.level == "error":
            self.complaint = line.text
        return line


def secrets_in(env: Mapping[str, str]) -> list[str]:
    """What an environment has that must not be told, by the variables' names."""
    return [value for name, value in env.items() if SECRET_NAMES.search(name)]


def _shown(raw: bytes) -> bytes:
    """What a terminal would show in the end: a progress bar is drawn over itself."""
    return raw.rstrip(b"\r").rpartition(b"\r")[2][-MAX_BYTES:]


def _level(text: str) -> str:
    if _EXCEPTION.match(text):
        return "error"
    found = _LEVEL.search(text)
    return _LEVELS.get(next(filter(None, found.groups())), "info") if found else "info"


def _own_words(text: str) -> str | None:
    """As much of a line as says nothing of a request. None: nobody knows."""
    if text == _TRACEBACK or _FRAME.match(text):
        return text
    if exception := _EXCEPTION.match(text):
        return exception[1]
    if own := _OWN.match(text):
        quote = _QUOTE if own[2] == CPP else _OR_COLON
        begin = quote.search(text, own.end())
        return f"{text[: begin.start()]}…" if begin else text
    return None
