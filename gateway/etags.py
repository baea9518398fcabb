"""Answers that a client may have already: each with its ETag, and 304 to whom it names."""

from __future__ import annotations

import hashlib

from gateway.asgi import Call, Headers


async def send_if_changed(call: Call, body: bytes, headers: Headers) -> None:
    """The answer with its ETag, or 304 if the client has it already."""
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = [(b"etag", etag.encode()), *headers]
    if has_already(call.header(b"if-none-match"), etag):
        await call.send_empty(304, headers)
    else:
        await call.send_json(200, body, headers)


def has_already(if_none_match: str, etag: str) -> bool:
    """Whether an If-None-Match names this ETag (RFC 9110: compared weakly)."""
    known = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in known or known == ["*"]
