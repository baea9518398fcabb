"""The audit log: who changed what, and when, in the very transaction of the change.

Functions that change something say so by `note`; who acts is known from where the call came in.
What is written down names things and never holds a secret, a prompt or an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from gateway.clock import SYSTEM_CLOCK
from gateway.ids import new_id
from gateway.store.sql import Connection, dicts

NEWEST = "~"  # sorts after every id


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: the operator's key, a tenant's, a command on the machine, or Bulkhead itself."""

    kind: Literal["admin", "key", "cli", "system"]
    id: str
    request_id: str | None = None


SYSTEM = Actor("system", "bulkhead")
_actor: ContextVar[Actor | None] = ContextVar("actor", default=None)


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    """What is changed in here was done by this actor; threads that are started from here too."""
    before = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(before)


def note(
    db: Connection, action: str, kind: str, id: str, tenant_id: str | None = None, **detail: Any
) -> None:
    """Write down a change. `detail`: what it was changed to, as far as that may be told."""
    actor = _actor.get() or SYSTEM
    values = {
        "id": new_id("au"),
        "at": SYSTEM_CLOCK.now_us(),
        "actor_kind": actor.kind,
        "actor_id": actor.id,
        "action": action,
        "target_kind": kind,
        "target_id": id,
        "tenant_id": tenant_id,
        "request_id": actor.request_id,
        "detail": json.dumps(detail, sort_keys=True),
    }
    db.execute(_INSERT, values)


def page(
    db: Connection, limit: int, *, before: str = NEWEST, tenant_id: str = ""
) -> list[dict[str, Any]]:
    """So many entries, the newest first: those before the entry `before`, of all or of a tenant."""
    values = {"before": before, "limit": limit, "tenant_id": tenant_id}
    found = dicts(db.execute(_PAGE, values))
    return [entry | {"detail": json.loads(entry["detail"])} for entry in found]


_INSERT = """
INSERT INTO audit_log
  (id, at, actor_kind, actor_id, action, target_kind, target_id, tenant_id, request_id, detail)
VALUES
  (:id, :at, :actor_kind, :actor_id, :action, :target_kind, :target_id, :tenant_id, :request_id,
   :detail)
"""
_PAGE = """
SELECT id, at, actor_kind, actor_id, action, target_kind, target_id, tenant_id, request_id, detail
FROM audit_log
WHERE id < :before AND (:tenant_id = '' OR tenant_id = :tenant_id)
ORDER BY id DESC LIMIT :limit
"""
