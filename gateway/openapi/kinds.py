"""Kinds of values that many answers hold."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
UnixTime = Annotated[int, Meta(description="unix seconds")]
Decimal = Annotated[str, Meta(pattern=r"^-?[0-9]+(\.[0-9]+)?$", description="an exact decimal")]
Moment = Annotated[
    str, Meta(description="RFC 3339, UTC", extra_json_schema={"format": "date-time"})
]
Day = Annotated[str, Meta(extra_json_schema={"format": "date"})]
