"""A model's health, as a tenant is told of it: whether it can answer, and how fast it did."""

from __future__ import annotations

from typing import Any

from gateway.catalog.catalog import Deployment
from gateway.env import Env


def health(env: Env, tenant_id: str, model: Deployment) -> dict[str, Any]:
    """`status` is null for a server attached by URL: nobody watches it."""
    status = None if model.is_attached else env.hosts.state(model.id).value
    return {"status": status, **env.pulse.figures(tenant_id, model.id)}
