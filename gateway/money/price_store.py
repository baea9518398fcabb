"""Price versions in the store. Each function runs inside a transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.ids import new_id
from gateway.money.versions import Addition, PriceVersion, Timeline, Wanted, plan
from gateway.money.wanted import Key
from gateway.prices import TokenPrices
from gateway.store.sql import Connection

Timelines = Mapping[tuple[str, str | None], Timeline]  # by the model's and the tenant's id


@dataclass(frozen=True, slots=True)
class Synced:
    """What is in the store once a configuration's prices are, and what it may not have."""

    timelines: Timelines
    tenants: Mapping[str, str]  # ids by name, of those that the configuration names
    added: Sequence[PriceVersion]
    faults: Sequence[tuple[str, str]]  # path and message


def sync(db: Connection, wanted: Mapping[Key, Sequence[Wanted]], now_us: int) -> Synced:
    """Add the versions that a configuration's prices need; none, if they are in force.

    Whoever does so at the same moment takes turns: the second finds what the first has added. A
    tenant that isn't there yet is left out.
    """
    timelines = timelines_of(db)
    tenants = tenant_ids(db, {name for _, name in wanted if name is not None})
    added: list[PriceVersion] = []
    faults: list[tuple[str, str]] = []
    for (model_id, name), prices in wanted.items():
        if name is not None and name not in tenants:
            continue
        tenant_id = tenants[name] if name is not None else None
        found = plan(prices, timelines.get((model_id, tenant_id), Timeline()), now_us)
        faults += found.faults
        added += [_version(model_id, tenant_id, one, now_us) for one in found.additions]
    for version in added:
        _insert(db, version)
    return Synced(timelines_of(db) if added else timelines, tenants, added, faults)


def timelines_of(db: Connection) -> Timelines:
    """All versions there are."""
    found: dict[tuple[str, str | None], list[PriceVersion]] = defaultdict(list)
    for row in db.execute(_ALL):
        version = version_of(row)
        found[version.model_id, version.tenant_id].append(version)
    return {key: Timeline(versions) for key, versions in found.items()}


def history(db: Connection, model_id: str, tenant_id: str | None = None) -> list[PriceVersion]:
    """A model's versions for everybody and for this tenant, the newest beginning first."""
    values = {"model_id": model_id, "tenant_id": tenant_id}
    return [version_of(row) for row in db.execute(_HISTORY, values)]


def version_of(row: Sequence[object]) -> PriceVersion:
    """A row of `COLUMNS`."""
    id_, model_id, tenant_id, currency, input_, cached, output, since, made, reason = row
    prices = TokenPrices(str(currency), _int(input_), _int(cached), _int(output))
    return PriceVersion(
        id=str(id_),
        model_id=str(model_id),
        tenant_id=None if tenant_id is None else str(tenant_id),
        prices=prices,
        effective_from=_int(since),
        created_at=_int(made),
        reason=str(reason),
    )


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _version(model_id: str, tenant_id: str | None, addition: Addition, now_us: int) -> PriceVersion:
    return PriceVersion(
        id=new_id("pv"),
        model_id=model_id,
        tenant_id=tenant_id,
        prices=addition.prices,
        effective_from=addition.effective_from,
        created_at=now_us,
        reason=addition.reason,
    )


def _insert(db: Connection, version: PriceVersion) -> None:
    db.execute(
        _ADD,
        {
            "id": version.id,
            "model_id": version.model_id,
            "tenant_id": version.tenant_id,
            "currency": version.prices.currency,
            "input_pico": version.prices.input,
            "cached_input_pico": version.prices.cached_input,
            "output_pico": version.prices.output,
            "effective_from": version.effective_from,
            "created_at": version.created_at,
            "reason": version.reason,
        },
    )


def tenant_ids(db: Connection, names: set[str]) -> dict[str, str]:
    """The ids of tenants by name, of those that exist."""
    found = (db.execute(_TENANT, {"name": name}).fetchone() for name in sorted(names))
    return {row[0]: row[1] for row in found if row is not None}


COLUMNS = (
    "id, model_id, tenant_id, currency, input_pico, cached_input_pico, output_pico,"
    " effective_from, created_at, reason"
)
_ALL = f"SELECT {COLUMNS} FROM price_version"  # noqa: S608 - our own names
_HISTORY = f"""
SELECT {COLUMNS} FROM price_version
WHERE model_id = :model_id AND (tenant_id IS NULL OR tenant_id = :tenant_id)
ORDER BY effective_from DESC, created_at DESC, id
"""  # noqa: S608 - our own names
_ADD = f"""
INSERT INTO price_version ({COLUMNS})
VALUES (:id, :model_id, :tenant_id, :currency, :input_pico, :cached_input_pico, :output_pico,
  :effective_from, :created_at, :reason)
"""  # noqa: S608 - our own names
_TENANT = "SELECT name, id FROM tenant WHERE name = :name"
