"""Kinds of value that the config file holds, and settings of engines too."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

OptionalSecret = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,127})?\Z",
        description="the name of a secret: letters, digits and _ , the first no digit",
        extra={"private": True},
    ),
]
# What engines and servers are handed on as JSON, which has no nan and no inf.
Json = Annotated[dict[str, Any], Meta(extra={"is": "json"})]
