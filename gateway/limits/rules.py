"""Which limits hold for whom: what the config says, and what the store says in place of it.

Each number stands alone: a rule of the store that has no number of tokens leaves the config's. 0 is
no limit in the config, None says nothing in the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.limits.limit import Kind, Limit
from gateway.store.limit_rules import NO_RULES, Rule, Scope, StoredRules
from gateway.store.principal import Principal
from runtime.config.limits import RateSettings
from runtime.config.sections import FileSettings

MOST_KNOWN = 10_000  # callers' limits that are kept, until there are more


class Caller(NamedTuple):
    """Who is counted: what a principal is here. `key` is a key's id, or names a token's subject."""

    tenant_id: str
    tenant_name: str
    key: str
    project_id: str | None = None


def caller_of(principal: Principal) -> Caller:
    """Whom a principal's requests are counted for."""
    key = principal.key_id or _name_of(principal)
    return Caller(principal.tenant_id, principal.tenant_name, key, principal.project_id)


def _name_of(principal: Principal) -> str:
    """Stands for a subject, in whose name its issuer may write anything, at one tenant."""
    who = f"{principal.tenant_id}|{principal.subject}"
    return f"sub_{hashlib.sha256(who.encode()).hexdigest()[:32]}"


NOTHING = RateSettings()


@dataclass(slots=True)
class Rules:
    """One deployment's. Answers from memory; what the store says comes with each question."""

    per_tenant: RateSettings
    per_key: RateSettings
    tenants: Mapping[tuple[str, str], RateSettings]  # by name and model
    models: Mapping[str, RateSettings]
    fail: str = "local"
    _stored: StoredRules = field(default_factory=lambda: NO_RULES)
    _known: dict[tuple[Caller, str], tuple[Limit, ...]] = field(default_factory=dict)

    def limits(self, caller: Caller, model: str, stored: StoredRules) -> tuple[Limit, ...]:
        """Every limit that a request of this caller for this model is counted under."""
        if stored is not self._stored or len(self._known) > MOST_KNOWN:
            self._stored = stored
            self._known.clear()
        found = self._known.get((caller, model))
        if found is None:
            found = self._known[caller, model] = tuple(self._limits(caller, model))
        return found

    def of_caller(self, caller: Caller, models: Iterable[str], stored: StoredRules) -> list[Limit]:
        """The caller's own: of all models, and of each of these."""
        found = {
            limit.key: limit
            for model in models
            for limit in self.limits(caller, model, stored)
            if limit.scope != "model"
        }
        return list(found.values())

    def _limits(self, caller: Caller, model: str) -> Iterator[Limit]:
        everywhere = (
            (Scope("key", caller.key), self.per_key),
            (Scope("project", caller.project_id or ""), NOTHING),
            (Scope("tenant", caller.tenant_id), self._tenant(caller.tenant_name)),
        )
        for scope, said in everywhere:
            yield from self._of(scope, said)
        tenant = Scope("tenant", caller.tenant_id, model)
        yield from self._of(Scope("key", caller.key, model), NOTHING)
        yield from self._of(Scope("project", caller.project_id or "", model), NOTHING)
        yield from self._of(tenant, self.tenants.get((caller.tenant_name, model), NOTHING))
        yield from self._of(Scope("model", model, model), self.models.get(model, NOTHING))

    def _tenant(self, name: str) -> RateSettings:
        """Its own numbers, and where it has none, every tenant's."""
        own, all_ = self.tenants.get((name, ""), NOTHING), self.per_tenant
        return RateSettings(
            rpm=own.rpm or all_.rpm,
            tpm=own.tpm or all_.tpm,
            concurrent=own.concurrent or all_.concurrent,
            fail=own.fail or all_.fail,
        )

    def _of(self, scope: Scope, said: RateSettings) -> Iterator[Limit]:
        rule = self._stored.get(scope, NO_RULE)
        fails_closed = (said.fail or self.fail) == "closed"
        for kind in Kind:
            number = getattr(rule, kind.value) or getattr(said, kind.value)
            if number:
                key = f"{scope.kind}:{scope.id}:{scope.model}:{kind.value}"
                yield Limit(key, kind, number, scope.kind, scope.model, fails_closed)


NO_RULE = Rule()


def rules_of(file: FileSettings) -> Rules:
    """What a configuration says."""
    return Rules(
        per_tenant=file.limits.per_tenant,
        per_key=file.limits.per_key,
        tenants={
            (tenant.name, limits.model): limits
            for tenant in file.tenants
            for limits in tenant.limits
        },
        models={model.id: model.limits for model in file.models},
        fail=file.limits.redis.fail,
    )
