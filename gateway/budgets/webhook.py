"""A webhook's message: what it says, how it is signed, and when it's tried again. No I/O.

The form is that of Standard Webhooks, which receivers have libraries for: the signature is over the
id, the time and the bytes of the body; the id is the same each time a message is sent.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.budgets.rows import Account
from gateway.budgets.views import view

US = 1_000_000
FIRST_RETRY_S = 2
LONGEST_RETRY_S = 600
GIVE_UP_S = 24 * 3600  # after it was raised
_PREFIX = "whsec_"


@dataclass(frozen=True, slots=True)
class Hook:
    """Where alerts are sent. `source` is the installation's name."""

    url: str = field(repr=False)  # some hold a token
    secret: str = field(repr=False)
    source: str


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that was raised, with its window as it is now; times in microseconds UTC."""

    account: Account
    tenant_name: str
    percent: int
    raised_at: int
    attempts: int  # this one counted

    @property
    def id(self) -> str:
        """The same for each attempt: a receiver may have got it before."""
        budget_id, starts_at = self.account.key
        return f"{budget_id}-{starts_at}-{self.percent}"


def body_of(alert: Alert, source: str) -> bytes:
    """The message."""
    message: dict[str, Any] = {
        "type": "budget.alert",
        "id": alert.id,
        "source": source,
        "raised_at": alert.raised_at // US,
        "data": {
            "percent": alert.percent,
            "tenant": {"id": alert.account.budget.tenant_id, "name": alert.tenant_name},
            "budget": view(alert.account),
        },
    }
    return msgspec.json.encode(message)


def headers_of(event_id: str, body: bytes, secret: str, now_s: int) -> dict[str, str]:
    """What is sent beside it: a receiver refuses what is old, or signed by nobody it knows."""
    signed = b"%b.%d.%b" % (event_id.encode(), now_s, body)
    mac = hmac.new(key_of(secret), signed, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "user-agent": "bulkhead",
        "webhook-id": event_id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{b64encode(mac).decode()}",
    }


def key_of(secret: str) -> bytes:
    """The bytes of a secret: of base64 after `whsec_`, else of the text itself."""
    if secret.startswith(_PREFIX):
        try:
            return b64decode(secret.removeprefix(_PREFIX), validate=True)
        except NotBase64:
            pass
    return secret.encode()


def retry_us(attempts: int) -> int:
    """How long to wait after so many attempts have failed."""
    doubled: int = FIRST_RETRY_S * 2 ** min(attempts - 1, 16)
    return min(doubled, LONGEST_RETRY_S) * US
