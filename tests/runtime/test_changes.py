"""What a deployment changes, as told to a person; and what only a restart can change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runtime.config.sections import FileSettings
from runtime.deploy.changes import changes, needs_restart

ECHO: dict[str, Any] = {"id": "echo", "engine": "fake"}
BASE: dict[str, Any] = {"models": [ECHO]}


def file(**changed: Any) -> FileSettings:
    return msgspec.convert(BASE | changed, FileSettings)


def test_nothing_differs_from_itself() -> None:
    assert changes(file(), file()) == []
    assert needs_restart(file(), file()) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": "other"}, ['~ name: "bulkhead" → "other"']),
        (
            {"limits": {"max_body_bytes": 2048, "wall_s": 5}},
            ["~ limits.max_body_bytes: 4194304 → 2048", "~ limits.wall_s: 3600.0 → 5.0"],
        ),
        ({"models": [ECHO, {"id": "b/c", "engine": "fake"}]}, ["+ models.b/c"]),
        ({"models": [{"id": "b", "engine": "fake"}]}, ["+ models.b", "- models.echo"]),
        (
            {"models": [ECHO | {"price": {"input": "0.10"}}]},
            ['~ models.echo.price.input: "0" → "0.10"'],
        ),
        (
            {"models": [ECHO | {"options": {"step_s": 0.5}, "max_hosts": 2}]},
            ["~ models.echo.max_hosts: 1 → 2", '~ models.echo.options: {} → {"step_s":0.5}'],
        ),
        (
            {"models": [ECHO | {"released": "2026-01-02"}]},
            ['~ models.echo.released: "1970-01-01" → "2026-01-02"'],
        ),
        ({"tenants": [{"name": "acme"}]}, ["+ tenants.acme"]),
        ({"nodes": [{"url": "https://n.test"}]}, ["+ nodes.https://n.test"]),
        ({"routes": ["a.test/*"]}, ['~ routes: [] → ["a.test/*"]']),
        (
            {"triggers": {"crons": [{"cron": "* * * * *", "run": "warm"}]}},
            ['~ triggers.crons: [] → [{"cron":"* * * * *","run":"warm","to":"","keep":7,"format"…'],
        ),
    ],
)
def test_each_change_is_told_at_its_path(changed: dict[str, Any], told: list[str]) -> None:
    assert [str(change) for change in changes(file(), file(**changed))] == told


def test_models_in_another_order_are_the_same_models() -> None:
    other = {"id": "b", "engine": "fake"}
    assert changes(file(models=[ECHO, other]), file(models=[other, ECHO])) == []


TLS = {"cert": "a.pem", "key": "a.key"}


@pytest.mark.parametrize(
    ("old", "new", "paths"),
    [
        ({}, {"server": {"port": 9000}}, ["server.port"]),
        ({}, {"server": {"host": "::1", "drain_s": 3}}, ["server.host"]),
        ({}, {"server": {"drain_s": 3}}, []),
        ({}, {"server": {"tls": TLS}}, ["server.tls"]),
        ({"server": {"tls": TLS}}, {}, ["server.tls"]),
        ({"server": {"tls": TLS}}, {"server": {"tls": TLS | {"cert": "b.pem"}}}, []),
        ({"server": {"tls": TLS}}, {"server": {"tls": TLS | {"min_version": "1.3"}}}, []),
        ({}, {"admin": {"port": 0, "host": "::1"}}, ["admin.host", "admin.port"]),
        ({}, {"admin": {"tls": TLS}}, ["admin.tls"]),
        ({}, {"node": {"port": 9000}}, ["node.port"]),
        ({}, {"node": {"tls": TLS}}, ["node.tls.cert", "node.tls.key"]),
        ({}, {"nodes": [{"url": "https://n.test"}]}, []),
        (
            {},
            {"hosts": {"start_s": 1}, "limits": {"wall_s": 1}, "relay": {"idle_s": 1}},
            [],
        ),
        ({}, {"models": [ECHO | {"url": "x"}], "name": "server"}, []),
    ],
)
def test_what_only_a_restart_changes(
    old: dict[str, Any], new: dict[str, Any], paths: list[str]
) -> None:
    assert needs_restart(file(**old), file(**new)) == paths
