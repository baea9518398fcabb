"""Whose a limit or a budget is, for people: by name, where the store has ids."""

from __future__ import annotations

from gateway.store.sql import Connection

NAMES = """
SELECT 'tenant', id, name FROM tenant
UNION ALL SELECT 'project', p.id, p.name || ' of ' || t.name FROM project p
JOIN tenant t ON t.id = p.tenant_id
UNION ALL SELECT 'key', k.id, k.name || ' of ' || t.name FROM api_key k
JOIN tenant t ON t.id = k.tenant_id
"""


class Names:
    """The names of all tenants, projects and keys."""

    def __init__(self, db: Connection) -> None:
        self._names = {(kind, id): name for kind, id, name in db.execute(NAMES, {})}

    def told(self, kind: str, id: str) -> str:
        """Such as `tenant acme`, `project search of acme`, `key laptop of acme (key_…)`: several
        may have one name.
        """
        name = self._names.get((kind, id), id)
        return f"key {name} ({id})" if kind == "key" and name != id else f"{kind} {name}"
