"""`bulkhead whoami`: which tenant and key one calls with, and where."""

from __future__ import annotations

import json

import click

from gateway import address
from gateway.cli import proof
from gateway.cli.accounts import as_json, when
from gateway.cli.answers import Status, Whoami
from gateway.cli.calling import Server, admin_server
from gateway.cli.options import NoState, Places, locate, peek, places
from gateway.cli.serving import url_of
from runtime import settings as config

US = 1_000_000


@click.command()
@click.option("--admin", is_flag=True, help="The admin side instead: what runs there.")
@places
@as_json
def whoami(admin: bool, as_json: bool, places: Places) -> None:
    """Which tenant and key BULKHEAD_API_KEY is, at BULKHEAD_URL.

    Without them: the demo key of `bulkhead dev`, at the address in the configuration.
    """
    if admin:
        server = admin_server(places)
        status = server.ask("GET", "/admin/v1/status", Status)
        rows, document = admin_rows(server, status.told), status.document
    else:
        server = public_server(places)
        caller = server.ask("GET", "/v1/whoami", Whoami)
        rows, document = tenant_rows(server, caller.told), caller.document
    if as_json:
        click.echo(json.dumps({"url": server.url} | document))
        return
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")


def public_server(places: Places) -> Server:
    """Where and as whom to call. Raises NoState if there is no key."""
    given = config.caller()
    if given.url and given.api_key:
        return Server(given.url, given.api_key, proof.outside(given))
    state_dir = locate(places).state_dir
    demo_key = state_dir / "demo-key"
    if not given.api_key and not demo_key.exists():
        raise NoState(
            "no API key: set BULKHEAD_API_KEY, or name the state folder of a `bulkhead dev`, "
            "which has a demo key, with --state"
        )
    key = given.api_key or demo_key.read_text("ascii", "replace").strip()
    found = address.find(state_dir, "gateway") if state_dir.exists() else None
    if given.url or found is None:
        return Server(given.url or url_of(peek(places)), key, proof.outside(given))
    return Server(found.url, key, proof.towards(found, given))


def tenant_rows(server: Server, found: Whoami) -> list[tuple[str, str]]:
    """For people."""
    tenant, key, project = found.tenant, found.key, found.project
    rows = [("URL", server.url), ("Tenant", f"{tenant.name} ({tenant.id})")]
    if key is not None:
        rows.append(("Key", f"{key.name} {key.hint} ({key.id})"))
        rows.append(("Created", when(key.created * US) or ""))
    if found.subject is not None:
        rows.append(("Subject", found.subject))
    if project is not None:
        rows.append(("Project", f"{project.name} ({project.id})"))
    rows.append(("Scopes", " ".join(found.scopes)))
    if found.models is not None:
        rows.append(("Models", " ".join(found.models)))
    if found.expires is not None:
        rows.append(("Expires", when(found.expires * US) or ""))
    return rows


def admin_rows(server: Server, found: Status) -> list[tuple[str, str]]:
    """For people."""
    processes = [f"{each.role} (pid {each.pid})" for each in found.processes]
    return [
        ("Admin URL", server.url),
        ("Name", found.name + (f", environment {found.env}" if found.env else "")),
        ("Version", found.version),
        ("Command", f"bulkhead {found.command} (pid {found.pid})"),
        ("Runs", ", ".join(processes) or "-"),
        ("Deployment", str(found.deployment or "-")),
        ("Started", found.started_at),
        ("State", found.state),
    ]
