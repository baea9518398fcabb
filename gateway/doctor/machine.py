"""Whether this machine and what is installed on it will do."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from engines.api import EngineError
from engines.extras import how_to_install
from engines.kernels import native
from engines.registry import facts
from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.doctor.finding import Finding, Patient, error, ok, warning
from gateway.live.words import amount
from runtime.config.models import ModelSettings
from runtime.node.machine import memory_for_hosts
from runtime.open_files import possible

OLDEST_PYTHON = (3, 11)
MIN_FREE_BYTES = 100_000_000
GOOD_FREE_BYTES = 2_000_000_000
MIN_OPEN_FILES = 256
GOOD_OPEN_FILES = 4096
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "bf16")
EARLIEST = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LATEST = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


def python(_: Patient) -> Iterator[Finding]:
    """The interpreter."""
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < OLDEST_PYTHON:
        yield error("python", found, "install Python 3.11 or newer")
    else:
        yield ok("python", found)


def packages(_: Patient) -> Iterator[Finding]:
    """What Bulkhead needs beside itself, in the versions that it was made for."""
    wanted = [r for r in metadata.requires("bulkhead") or () if "extra ==" not in r]
    faults = [fault for requirement in wanted if (fault := unmet(requirement))]
    if faults:
        yield error("packages", "; ".join(faults), "install bulkhead again with pip")
    else:
        yield ok("packages", f"bulkhead {metadata.version('bulkhead')}, {len(wanted)} others")


def unmet(requirement: str) -> str:
    """What is wrong with a requirement such as `httpx>=0.28`; "" if nothing."""
    name, _, least = requirement.partition(">=")
    try:
        found = metadata.version(name.strip())
    except metadata.PackageNotFoundError:
        return f"{name.strip()} is not installed"
    return f"{name.strip()} is {found}, not {least} or newer" if older(found, least) else ""


def older(found: str, least: str) -> bool:
    """Whether one version is older than another, by their numbers."""
    one, other = ([int(n) for n in re.findall(r"\d+", v)[:3]] for v in (found, least))
    return one < other


def kernels(patient: Patient) -> Iterator[Finding]:
    """What the embedded engine computes with, unless a model's options say otherwise."""
    if not embedded_models(patient):
        return
    if native.HAS_MODEL:
        yield ok("kernels", f"native, for {native.module.isas()[0]}")
        return
    told = "torch's, several times slower: the native ones aren't built"
    yield warning("kernels", told, "install a C++ compiler (g++), then bulkhead anew")


def torch(patient: Patient) -> Iterator[Finding]:
    """Computes where the native kernels don't; nothing else needs it."""
    if not any(computes_in_torch(model) for model in embedded_models(patient)):
        return
    pinned = next(r for r in metadata.requires("bulkhead") or () if r.startswith("torch=="))
    wanted = pinned.partition(";")[0].removeprefix("torch==").strip()
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        yield error("torch", "not installed", how_to_install("torch"))
        return
    if found.partition("+")[0] == wanted:
        yield ok("torch", found)
    else:
        yield warning("torch", f"{found}; tested is {wanted}", how_to_install("torch"))


def embedded_models(patient: Patient) -> list[ModelSettings]:
    """Those that our own engine serves."""
    models = patient.settings.file.models if patient.settings else ()
    return [model for model in models if model.engine == "embedded"]


def computes_in_torch(model: ModelSettings) -> bool:
    """By its options, and by what is installed. Whether they are good is another check's."""
    try:
        return facts(model.engine, model.path or os.devnull, model.options).backend == "torch"
    except EngineError:
        return not native.HAS_MODEL


def cpu(_: Patient) -> Iterator[Finding]:
    """How many cores we may use, and what they can do."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    features = cpu_features()
    told = f"{cores} cores, {platform.machine()} {' '.join(features)}".rstrip()
    if platform.machine() in ("x86_64", "AMD64") and features and "avx2" not in features:
        yield warning("cpu", f"{told}: no AVX2", "expect the embedded engine to be slow here")
    else:
        yield ok("cpu", told)


def cpu_features(path: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Those that matter to matrix work."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    flags = next((x.split() for x in lines if x.startswith(("flags", "Features"))), [])
    return [name for name in CPU_FEATURES if name in flags]


def memory(patient: Patient) -> Iterator[Finding]:
    """What hosts may take, and what is free now."""
    configured = patient.settings.file.hosts.memory_bytes if patient.settings else 0
    budget, room = configured or memory_for_hosts(), memory_for_hosts()
    told = f"{amount(budget)} for hosts; the machine has {amount(room)} for them"
    if budget > room:
        yield warning("memory", told, "lower hosts.memory_bytes, or hosts may be killed")
    else:
        yield ok("memory", told)


def disk(patient: Patient) -> Iterator[Finding]:
    """Room for the store and for weights."""
    folder = patient.place.state_dir
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    told = f"{amount(free)} free at {folder}"
    if free < MIN_FREE_BYTES:
        yield error("disk", told, "make room: without it no request is served")
    elif free < GOOD_FREE_BYTES:
        yield warning("disk", told, "make room: the ledger grows with every request")
    else:
        yield ok("disk", told)


def open_files(_: Patient) -> Iterator[Finding]:
    """Each stream takes two descriptors: one to its client, one to its engine."""
    most = possible()
    told, todo = f"up to {most} at once", "raise it: `ulimit -n 65536`, or LimitNOFILE= in systemd"
    if most < MIN_OPEN_FILES:
        yield error("open files", told, todo)
    elif most < GOOD_OPEN_FILES:
        yield warning("open files", told, todo)
    else:
        yield ok("open files", told)


def clock(_: Patient, now: Clock = SYSTEM_CLOCK) -> Iterator[Finding]:
    """Usage is billed by it, and certificates are checked by it."""
    moment = datetime.datetime.fromtimestamp(now.now_us() / 1e6, datetime.UTC)
    told = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    if EARLIEST < moment < LATEST:
        yield ok("clock", told)
    else:
        yield error("clock", told, "set the clock; let NTP keep it")
