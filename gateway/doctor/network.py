"""Whether what should answer does, and whether it proves who it is."""

from __future__ import annotations

import asyncio
import datetime
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from gateway import address
from gateway.address import Address
from gateway.admin.node_client import NodeClient
from gateway.admin.problems import NodeUnreachable
from gateway.doctor.finding import Finding, Patient, error, ok, warning
from gateway.live.words import count, span
from runtime import rundir
from runtime.config.tls import ServerTls
from runtime.deploy.running import Running, running
from runtime.deployments import Deployments, NoDeployment
from runtime.node_wire import Hosts, ModelState
from runtime.tls import certificates

TIMEOUT_S = 5.0
REFUSED = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)  # after the connection


def listeners_certificates(patient: Patient) -> Iterator[Finding]:
    """Readable, belonging to their keys, and valid for a while."""
    if patient.settings is None:
        return
    file = patient.settings.file
    for name, tls in (
        ("server", file.server.tls),
        ("admin", file.admin.tls),
        ("node", file.node.tls),
    ):
        if tls.cert:
            yield from certificate(name, tls, patient.settings.folder)


def certificate(name: str, tls: ServerTls, folder: Path) -> Iterator[Finding]:
    """One listener's."""
    found = certificates.read(tls, folder)
    for _, fault in found.errors:
        yield error(
            "certificate", f"{name}: {fault}", "replace it; a change of the file is noticed"
        )
    for _, fault in found.warnings:
        yield warning(
            "certificate", f"{name}: {fault}", "renew it; a change of the file is noticed"
        )
    leaf = found.identity.leaf
    if leaf and not found.warnings:
        left = (leaf.not_after - datetime.datetime.now(datetime.UTC)).total_seconds()
        yield ok("certificate", f"{name}: {', '.join(leaf.names)}; good for {span(left)}")


def ports(patient: Patient) -> Iterator[Finding]:
    """Free, or ours."""
    if patient.settings is None:
        return
    server, admin = patient.settings.file.server, patient.settings.file.admin
    alive = {process.role for process in living(patient)}
    ours = address.find(patient.place.state_dir, "gateway") if "gateway" in alive else None
    yield port("port", server.host, server.port, ours)
    if admin.port:
        ours = address.find(patient.place.state_dir, "admin") if alive else None
        yield port("admin port", admin.host, admin.port, ours)


def port(name: str, host: str, number: int, ours: Address | None) -> Finding:
    """One of them. `ours`: where a process of this state folder listens."""
    if ours is not None:
        return ok(name, f"{ours.url} is ours")
    if reason := why_not_free(host, number):
        todo = "stop what uses it, or configure another"
        return error(name, f"{host}:{number} can't be listened on: {reason}", todo)
    return ok(name, f"{host}:{number} is free")


def why_not_free(host: str, number: int) -> str:
    """Why one can't listen there; "" if one can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, number))
        except OSError as fault:
            return str(fault.strerror)
    return ""


def node(patient: Patient) -> Iterator[Finding]:
    """If one runs, it answers, and its models aren't failing."""
    if "node" not in {process.role for process in living(patient)}:
        yield ok("node", "not running")
        return
    try:
        found = asyncio.run(NodeClient(rundir.node_socket(patient.place.state_dir)).hosts())
    except NodeUnreachable as fault:
        yield error("node", fault.detail, "look at its log; if it stays so, restart it")
        return
    yield ok("node", f"answers, {count(len(found.hosts), 'host')}")
    yield from models(found)


def models(found: Hosts) -> Iterator[Finding]:
    """Those whose hosts don't start."""
    for model in found.models:
        if model.state is ModelState.FAILED:
            todo = f"mend that, then: bulkhead hosts restart {model.id}"
            yield error("model", f"{model.id} has failed: {model.reason}", todo)
        elif model.failures:
            todo = "its host is started again, more and more slowly"
            told = f"{model.id}: {count(model.failures, 'failure')}, {model.reason}"
            yield warning("model", told, todo)


def gateway(patient: Patient) -> Iterator[Finding]:
    """If one runs, it answers."""
    if "gateway" not in {process.role for process in living(patient)}:
        yield ok("gateway", "not running")
    elif found := address.find(patient.place.state_dir, "gateway"):
        mutual = patient.settings is not None and bool(patient.settings.file.server.tls.client_ca)
        yield answers(found.url, mutual=mutual)
    else:
        yield warning("gateway", "is starting, or was killed", "look again")


def answers(base: str, *, mutual: bool = False) -> Finding:
    """Whether the public listener speaks HTTP, and says that it is ready.

    `mutual`: it asks for a certificate. We have none, and it should refuse us.
    """
    url = f"{base}/readyz"
    began = time.monotonic()
    try:
        # its certificate is looked at by its file, and may not name this address
        answer = httpx.get(url, timeout=TIMEOUT_S, verify=False, trust_env=False)  # noqa: S501
    except httpx.HTTPError as fault:
        if mutual and isinstance(fault, REFUSED):
            return ok("gateway", f"{base} refuses who shows no certificate, as it should")
        told = f"{url} doesn't answer ({type(fault).__name__})"
        return error("gateway", told, "look at its log; if it stays so, restart it")
    took_ms = (time.monotonic() - began) * 1000
    if answer.status_code != 200:
        todo = "wait, or look at its log"
        return warning("gateway", f"{url} answers {answer.status_code}: {answer.text}", todo)
    return ok("gateway", f"{url} is ready ({took_ms:.0f} ms)")


def deployment(patient: Patient) -> Iterator[Finding]:
    """All that runs follows the current deployment."""
    try:
        current = Deployments(patient.place.state_dir).current()
    except NoDeployment as fault:
        yield error("deployment", str(fault), "deploy again: bulkhead deploy")
        return
    if current is None:
        return
    behind = [process for process in living(patient) if process.fault]
    for process in behind:
        told = f"the {process.role} (pid {process.pid}) doesn't run it: {process.fault}"
        yield error("deployment", f"{current.number}: {told}", "mend that, or: bulkhead rollback")
    if not behind:
        yield ok("deployment", str(current.number))


def living(patient: Patient) -> list[Running]:
    """The processes that run on this state folder."""
    folder = patient.place.state_dir
    return running(folder) if folder.exists() else []
