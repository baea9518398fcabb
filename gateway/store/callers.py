"""Who may call, as the store has it: live keys, their past secrets in grace, and live tenants.

A key is live unless it was revoked, its tenant disabled or its project archived. Whether it has
expired is asked at each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import msgspec
import structlog

from gateway.store.principal import SECRET_NAME_LEN, Principal, granted
from gateway.store.sql import Connection
from runtime.config.networks import BadNetwork, Network, parse_network

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Callers:
    """All who may call, at one moment."""

    by_digest: Mapping[bytes, Principal] = field(default_factory=dict)  # of whole secrets
    by_secret: Mapping[bytes, Principal] = field(default_factory=dict)  # by `Principal.secret`
    by_tenant: Mapping[str, Principal] = field(default_factory=dict)  # by a tenant's name


def read_callers(db: Connection, *, include_demo: bool) -> Callers:
    """As they are now."""
    values = {"include_demo": int(include_demo)}
    tenants = {}
    for tenant_id, name, weight, timezone in db.execute(_TENANTS, values).fetchall():
        tenants[tenant_id] = Principal(
            tenant_id=tenant_id,
            tenant_name=name,
            weight=weight,
            timezone=timezone,
        )
    by_digest = dict(_by_digest(db.execute(_SECRETS).fetchall(), tenants))
    return Callers(
        by_digest=MappingProxyType(by_digest),
        by_secret=MappingProxyType({one.secret: one for one in by_digest.values()}),
        by_tenant=MappingProxyType({one.tenant_name: one for one in tenants.values()}),
    )


def _by_digest(
    rows: list[Any], tenants: Mapping[str, Principal]
) -> Iterator[tuple[bytes, Principal]]:
    for digest, until, key_id, tenant_id, project_id, scopes, models, networks in rows:
        tenant = tenants.get(tenant_id)
        if tenant is None:
            continue
        try:
            allowed = _models(models), _networks(networks)
        except (msgspec.MsgspecError, BadNetwork) as fault:  # nobody of ours wrote that
            log.error("key_unreadable", key=key_id, fault=str(fault), then="it is refused")
            continue
        yield (
            digest,
            replace(
                tenant,
                key_id=key_id,
                project_id=project_id,
                scopes=granted(scopes),
                models=allowed[0],
                networks=allowed[1],
                expires_at=until,
                secret=digest[:SECRET_NAME_LEN],
            ),
        )


def _models(text: str | None) -> frozenset[str] | None:
    return None if text is None else msgspec.json.decode(text, type=frozenset[str])


def _networks(text: str | None) -> tuple[Network, ...] | None:
    if text is None:
        return None
    return tuple(parse_network(each) for each in msgspec.json.decode(text, type=list[str]))


_TENANTS = """
SELECT id, name, weight, timezone FROM tenant
WHERE disabled_at IS NULL AND (is_demo = 0 OR :include_demo = 1)
"""

_SECRETS = """
SELECT secret.digest, secret.until, api_key.id, api_key.tenant_id, api_key.project_id,
  api_key.scopes, api_key.models, api_key.networks
FROM (
  SELECT id AS key_id, digest, expires_at AS until FROM api_key
  UNION ALL
  SELECT past.key_id, past.digest,
    CASE WHEN api_key.expires_at < past.valid_until THEN api_key.expires_at
      ELSE past.valid_until END
  FROM api_key_past_secret AS past JOIN api_key ON api_key.id = past.key_id
) AS secret
JOIN api_key ON api_key.id = secret.key_id
LEFT JOIN project ON project.id = api_key.project_id
WHERE api_key.revoked_at IS NULL AND project.archived_at IS NULL
"""
