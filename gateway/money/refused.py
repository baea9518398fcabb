"""Prices that would change the past, told before they are deployed."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.money.price_store import Timelines, tenant_ids, timelines_of
from gateway.money.versions import Timeline, plan
from gateway.money.wanted import wanted_of
from gateway.store.address import Database
from gateway.store.current import is_current
from gateway.store.reader import read
from gateway.stores import database_of
from runtime.config.report import Report
from runtime.settings import ConfigError, Settings


def refuse_past_prices(settings: Settings, now_us: int) -> None:
    """Raises ConfigError with each price that a start would not put in force."""
    report = Report()
    for path, message in _faults(settings, database_of(settings), now_us):
        report.error(path, message)
    if report.errors:
        raise ConfigError(settings.source, report)


def _faults(settings: Settings, database: Database, now_us: int) -> list[tuple[str, str]]:
    wanted = wanted_of(settings.file)
    names = {name for _, name in wanted if name is not None}
    timelines: Timelines = {}
    tenants: Mapping[str, str] = {}
    if is_current(database):
        timelines, tenants = read(database, lambda db: (timelines_of(db), tenant_ids(db, names)))
    faults = []
    for (model_id, name), prices in wanted.items():
        tenant_id = None if name is None else tenants.get(name, "")
        found = plan(prices, timelines.get((model_id, tenant_id), Timeline()), now_us)
        faults += found.faults
    return faults
