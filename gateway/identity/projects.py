"""Projects: parts of a tenant that keys may belong to, so that usage and limits are told apart."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.identity.tenants import TenantError, check_name, id_or_all, tenant_id_of
from gateway.ids import new_id
from gateway.store import audit
from gateway.store.sql import Connection


@dataclass(frozen=True, slots=True)
class Project:
    """A project; times in microseconds UTC."""

    id: str
    tenant_id: str
    name: str
    created_at: int
    archived_at: int | None = None  # since then its keys are refused


class ProjectExists(TenantError):
    """The tenant has one of this name."""


class NoSuchProject(TenantError):
    """The tenant has no project of this name."""


def create_project(
    db: Connection, tenant: str, name: str, *, clock: Clock = SYSTEM_CLOCK
) -> Project:
    """Add a project to the tenant of this name. Raises InvalidName, NoSuchTenant, ProjectExists."""
    check_name(name, "project")
    project = Project(new_id("pr"), tenant_id_of(db, tenant), name, clock.now_us())
    if _find(db, project.tenant_id, name) is not None:
        raise ProjectExists(f"{tenant} has a project {name!r} already: choose another name.")
    values = {"id": project.id, "tenant_id": project.tenant_id, "name": name}
    db.execute(_INSERT, values | {"now": project.created_at})
    audit.note(db, "project.created", "project", project.id, project.tenant_id, name=name)
    return project


def list_projects(db: Connection, tenant: str | None = None) -> list[Project]:
    """The projects of the tenant of this name, or of all, archived ones too.

    Raises NoSuchTenant.
    """
    values = {"tenant_id": id_or_all(db, tenant)}
    return [Project(*row) for row in db.execute(_LISTED, values).fetchall()]


def project_of(db: Connection, tenant: str, name: str) -> Project:
    """A tenant's project. Raises NoSuchTenant or NoSuchProject."""
    found = _find(db, tenant_id_of(db, tenant), name)
    if found is None:
        raise NoSuchProject(f"{tenant} has no project {name!r}: create it first, or list them.")
    return found


def archive_project(
    db: Connection, tenant: str, name: str, *, clock: Clock = SYSTEM_CLOCK
) -> Project:
    """Refuse its keys from now on; its usage stays. Again changes nothing. As `project_of`."""
    project = project_of(db, tenant, name)
    if db.execute(_ARCHIVE, {"id": project.id, "now": clock.now_us()}).rowcount:
        audit.note(db, "project.archived", "project", project.id, project.tenant_id)
    return project_of(db, tenant, name)


def _find(db: Connection, tenant_id: str, name: str) -> Project | None:
    values = {"tenant_id": tenant_id, "name": name}
    row = db.execute(f"{_SELECT} WHERE tenant_id = :tenant_id AND name = :name", values).fetchone()
    return None if row is None else Project(*row)


_SELECT = "SELECT id, tenant_id, name, created_at, archived_at FROM project"
_LISTED = """
SELECT p.id, p.tenant_id, p.name, p.created_at, p.archived_at
FROM project AS p JOIN tenant AS t ON t.id = p.tenant_id
WHERE :tenant_id = '' OR p.tenant_id = :tenant_id ORDER BY t.name, p.name
"""
_INSERT = """
INSERT INTO project (id, tenant_id, name, created_at) VALUES (:id, :tenant_id, :name, :now)
"""
_ARCHIVE = "UPDATE project SET archived_at = :now WHERE id = :id AND archived_at IS NULL"
