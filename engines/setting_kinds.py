"""Kinds of value that the config file holds, and settings of engines too."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,127}"


def _secret(pattern: str) -> Meta:
    told = "the name of a secret: letters, digits and _ , the first no digit"
    return Meta(pattern=rf"^{pattern}\Z", description=told, extra={"private": True})


SecretName = Annotated[str, _secret(_NAME)]
OptionalSecret = Annotated[str, _secret(f"({_NAME})?")]
# What engines and servers are handed on as JSON, which has no nan and no inf.
Json = Annotated[dict[str, Any], Meta(extra={"is": "json"})]
