"""The kinds of value that the config file holds: patterns and bounds, and what each expects."""

from __future__ import annotations

import datetime
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from engines.setting_kinds import (
    Json as Json,
    OptionalSecret as OptionalSecret,
    SecretName as SecretName,
)

MIB = 1024 * 1024

# One model name, a path-safe id. `@` and `/` because Cloudflare's names have them.
ModelId = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9@][A-Za-z0-9@._/-]{0,127}\Z",
        description="letters, digits and @ . _ / - , up to 128, the first no punctuation but @",
    ),
]
# A decimal in text, because a float can't hold a price. At most six places, and at most a million.
Price = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{1,6}(\.[0-9]{1,6})?|1000000(\.0{1,6})?)\Z",
        description='a decimal in quotes, at most six places and a million, such as "0.10"',
    ),
]
Currency = Annotated[
    str, Meta(pattern=r"^[A-Z]{3}\Z", description='an ISO 4217 code, such as "USD"')
]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9_][a-z0-9_-]*\Z",
        description="lowercase letters, digits, _ and - , the first no -",
    ),
]
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
Host = Annotated[
    str,
    Meta(
        pattern=rf"^({_LABEL}(\.{_LABEL})*\.?|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?)\Z",
        max_length=253,
        description='an address or a name of this machine, such as "127.0.0.1" or "::"',
    ),
]
MAX_PORT = 65535
Port = Annotated[int, Meta(ge=1, le=MAX_PORT)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
Pause = Annotated[float, Meta(ge=0, le=86400)]  # 0: never
Count = Annotated[int, Meta(ge=1)]
PortOrNone = Annotated[int, Meta(ge=0, le=MAX_PORT, description="a port, or 0 for none")]
Number = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
DayOrNone = Annotated[datetime.date | None, Meta(description="a date, such as 2026-11-01")]
Origin = Annotated[
    str,
    Meta(
        pattern=r"^(\*|https?://([a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?)\Z",
        description='an origin as browsers send it, such as "https://app.example.com", or "*"',
    ),
]


def origin_fault(origin: str) -> str:
    """Why no browser sends an origin, good as its form may be, or nothing."""
    scheme, _, rest = origin.partition("://")
    bare, colon, port = rest.rpartition(":")
    if not (colon and port.isdigit()):
        return ""
    if int(port) > MAX_PORT:
        return f"a port is at most {MAX_PORT}"
    if int(port) == {"http": 80, "https": 443}[scheme]:
        return f'browsers leave out the port that {scheme} has anyway: write "{scheme}://{bare}"'
    return ""


def is_http_url(text: str) -> bool:
    """Whether a server can be called there."""
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no port
        return False
