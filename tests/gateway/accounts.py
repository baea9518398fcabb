"""Tenants and keys as bare rows, for tests that need them and nothing of how they are made."""

from __future__ import annotations

from gateway.store.sql import Connection

TENANT = "INSERT INTO tenant (id, name, is_demo, created_at) VALUES (:id, :name, 0, 0)"
KEY = (
    "INSERT INTO api_key (id, tenant_id, digest, hint, name, created_at)"
    " VALUES (:id, :tenant_id, :digest, 'h', 'n', 0)"
)


def add_tenant(db: Connection, name: str = "acme", id_: str = "tn_1") -> None:
    db.execute(TENANT, {"id": id_, "name": name})


def add_key(
    db: Connection, id_: str = "key_1", tenant_id: str = "tn_1", digest: bytes = b"\1"
) -> None:
    db.execute(KEY, {"id": id_, "tenant_id": tenant_id, "digest": digest})
