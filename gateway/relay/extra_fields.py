"""What another server is sent beside the client's own fields, and which of these it refuses."""

from __future__ import annotations

import re
from typing import Any

from gateway.catalog.catalog import Deployment
from gateway.schema import Ask

REMEDIES = {  # where a server refuses a field that we add
    "cache_salt": "set the model's cache_salt = false",
    "stream_options": "attach a server that takes it: else no stream tells its usage",
}
IN_EXTRA_BODY = "change the model's extra_body"


def extra_fields(deployment: Deployment, ask: Ask, salt: str) -> dict[str, Any]:
    """The fields to add; the operator's win. `salt` keeps a tenant's cached prefixes apart."""
    fields: dict[str, Any] = {
        "model": deployment.upstream_model,
        "max_tokens": ask.max_tokens or deployment.default_max_tokens,
    }
    if ask.stream:
        fields["stream_options"] = {"include_usage": True}
    if deployment.cache_salt:
        fields["cache_salt"] = salt
    return fields | dict(deployment.extra_body)


def refused_field(deployment: Deployment, ask: Ask, message: str) -> str:
    """The field that a refusal is about if no client sent it, but our configuration; else ""."""
    if not deployment.is_attached:
        return ""
    ours = set(deployment.extra_body)
    if deployment.cache_salt:
        ours.add("cache_salt")
    if ask.stream and not ask.include_usage:
        ours.add("stream_options")
    added = sorted(ours - ask.engine_body().keys())
    return next((field for field in added if re.search(rf"\b{re.escape(field)}\b", message)), "")
