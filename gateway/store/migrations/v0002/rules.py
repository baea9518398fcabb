"""What the triggers are to guard, on every database."""

from __future__ import annotations

from typing import NamedTuple


class Kept(NamedTuple):
    """A table whose rows stay, and what one is called."""

    table: str
    called: str
    never_changes: bool


COUNTED = ("tenant", "project", "api_key", "api_key_past_secret", "limit_rule")

KEPT = (
    Kept("usage_record", "usage record", never_changes=False),
    Kept("usage_line", "usage line", never_changes=True),
    Kept("price_version", "price version", never_changes=True),
    Kept("seal", "seal", never_changes=True),
    Kept("checkpoint", "checkpoint", never_changes=True),
    Kept("audit_log", "line of the audit log", never_changes=True),
)
