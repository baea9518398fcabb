"""What a shell may complete an argument to, from what lies in the state folder and the config.

It is asked at each press of the tab key: it makes nothing, waits for nobody, and has no faults.
What can't be read has no completions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields

import click
from click.shell_completion import CompletionItem

from engines.trtllm.settings import ENGINE
from gateway.cli.options import EXIT_CODES, Places, locate
from gateway.identity import projects, tenants
from gateway.store.address import Database
from gateway.store.reader import read
from gateway.stores import database_of
from runtime import settings as config
from runtime.config.models import ModelSettings
from runtime.config.vault import Vault
from runtime.deployments import Deployments

Found = Iterable[tuple[str, str]]  # what it can be, and what that is
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(find: Callable[[click.Context], Found]) -> Complete:
    """Makes `shell_complete` of a function that finds everything there is."""

    def complete(
        context: click.Context, _parameter: click.Parameter, begun: str
    ) -> list[CompletionItem]:
        try:
            return [
                CompletionItem(value, help=what)
                for value, what in find(context)
                if value.startswith(begun)
            ]
        except tuple(EXIT_CODES):
            return []

    return complete


@completer
def tenant_names(context: click.Context) -> Found:
    """Tenants, by name."""
    for tenant in read(_database(context), tenants.list_tenants):
        yield tenant.name, tenant.id


@completer
def project_names(context: click.Context) -> Found:
    """The projects of the tenant that was named before, by name."""
    tenant = str(context.params.get("tenant"))
    for project in read(_database(context), lambda db: projects.list_projects(db, tenant)):
        if project.archived_at is None:
            yield project.name, project.id


@completer
def live_keys(context: click.Context) -> Found:
    """Keys that can be revoked, by id."""
    for key_id, name, tenant in read(_database(context), lambda db: db.execute(_LIVE).fetchall()):
        yield key_id, f"{name}, of {tenant}"


@completer
def budget_ids(context: click.Context) -> Found:
    """Budgets that are in force, by id."""
    query = "SELECT id, period, currency FROM budget WHERE archived_at IS NULL ORDER BY id"
    for budget_id, period, currency in read(
        _database(context), lambda db: db.execute(query).fetchall()
    ):
        yield budget_id, f"{period}, {currency}"


@completer
def model_ids(context: click.Context) -> Found:
    """The models of the configuration."""
    return _models(context)


@completer
def host_model_ids(context: click.Context) -> Found:
    """Those of them that have hosts of ours: not those of attached servers."""
    return [(model.id, model.engine) for model in _configured(context) if not model.is_attached]


@completer
def trt_model_ids(context: click.Context) -> Found:
    """Those that TensorRT-LLM serves."""
    return [(model.id, model.path) for model in _configured(context) if model.engine == ENGINE]


@completer
def secret_names(context: click.Context) -> Found:
    """The secrets that are stored."""
    place = locate(_places(context))
    for name, set_at in Vault(place.state_dir, place.root_secret).names().items():
        yield name, f"{set_at:%Y-%m-%d}"


@completer
def deployment_numbers(context: click.Context) -> Found:
    """The deployments that are kept."""
    for deployment in Deployments(locate(_places(context)).state_dir).history():
        yield str(deployment.number), deployment.message or f"{deployment.at:%Y-%m-%d %H:%M}"


def _models(context: click.Context) -> Iterator[tuple[str, str]]:
    for model in _configured(context):
        yield model.id, model.engine


def _configured(context: click.Context) -> tuple[ModelSettings, ...]:
    places = _places(context)
    settings, _ = config.load(
        places.config, places.state_dir, env=places.env, variables=places.variables
    )
    return settings.file.models


def _places(context: click.Context) -> Places:
    """As far as they have been typed."""
    given = {field.name: context.params.get(field.name) for field in fields(Places)}
    return Places(**{name: value for name, value in given.items() if value is not None})


def _database(context: click.Context) -> Database:
    return database_of(locate(_places(context)))


_LIVE = """
SELECT api_key.id, api_key.name, tenant.name
FROM api_key JOIN tenant ON tenant.id = api_key.tenant_id
WHERE revoked_at IS NULL ORDER BY api_key.id
"""
