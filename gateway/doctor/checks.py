"""Everything that is looked at, in order."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.doctor import folder, machine, network
from gateway.doctor.finding import Check, Finding, Patient, error

CHECKS: tuple[Check, ...] = (
    machine.python,
    machine.packages,
    machine.kernels,
    machine.torch,
    machine.cpu,
    machine.memory,
    machine.disk,
    machine.open_files,
    machine.clock,
    folder.config,
    folder.secrets,
    folder.state_folder,
    folder.store,
    folder.clock_and_store,
    folder.models_weights,
    network.listeners_certificates,
    network.ports,
    network.deployment,
    network.node,
    network.gateway,
)


def examine(patient: Patient) -> Iterator[Finding]:
    """All findings. A check that breaks is one."""
    for check in CHECKS:
        try:
            yield from check(patient)
        except Exception as fault:  # noqa: BLE001 - the others are worth hearing all the same
            name = check.__name__.replace("_", " ")
            yield error(name, f"{type(fault).__name__}: {fault}", "please report this")
