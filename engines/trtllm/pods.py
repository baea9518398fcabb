"""What a model's pods run: trtllm-serve alone, or under a launcher, where the gateway follows one.

A launcher's pod has Bulkhead in its image, too. It renders what its server needs by itself, from a
configuration that has this model alone; the secret that followers show comes from a Secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from engines.trtllm import command
from engines.trtllm.command import Address, address_of
from engines.trtllm.commands import Served, addresses
from engines.trtllm.disaggregated import disaggregated_yaml
from engines.trtllm.launched_config import config_text
from engines.trtllm.render import Unrenderable, serve_yaml
from engines.trtllm.rendered import guard
from engines.trtllm.roles import is_disaggregated, roles
from engines.trtllm.yaml_text import Key, Keys

FOLDER = "/etc/bulkhead"  # of the rendered files, in each container
WATCHED = "/run/bulkhead-guard"
SCRATCH = "/scratch"
BULKHEAD = "/opt/bulkhead/bin/bulkhead"
CONFIG = "bulkhead.toml"
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - a pod's own
GPUS = "nvidia.com/gpu"
SHARED_MEMORY = "16Gi"
START_S = 1800  # until weights of hundreds of gigabytes are loaded
GRACE_S, DRAIN_S = 120, 100
LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")


class Pod(NamedTuple):
    """One server: what it runs, where it is called, and with how many GPUs."""

    name: str
    at: Address
    command: Sequence[str]
    gpus: int
    guard_port: int = 0  # at which its launcher tells of its guard; 0: nobody launches it

    @property
    def ports(self) -> dict[str, int]:
        """By name."""
        return {"http": self.at.port} | ({"guard": self.guard_port} if self.guard_port else {})


def pods_of(model: Served) -> Iterator[Pod]:
    """All of a model's. Raises Unrenderable."""
    trt = model.trt
    if model.needs_launchers:
        yield from _launched_pods(model)
        return
    for role in roles(model.path, trt):
        for at in addresses(role, model.urls):
            config = f"{FOLDER}/{role.phase}.yaml"
            inside = Address(EVERY_ADDRESS, at.port)
            run = command.serve(trt, role, config, inside)
            yield Pod(_service_name(at), at, run, role.ranks)
    if is_disaggregated(trt):
        at = address_of(model.urls[0])
        yield Pod(_service_name(at), at, command.front(trt, f"{FOLDER}/front.yaml"), 0)


def _launched_pods(model: Served) -> Iterator[Pod]:
    """With a guard each server does all of it."""
    (role,) = roles(model.path, model.trt)
    guard_urls = model.guard_urls or (model.trt.guard_url,)
    for at, guard_url in zip(addresses(role, model.urls), guard_urls, strict=True):
        yield _launched(model, at, role.ranks, guard_url)


def _launched(model: Served, at: Address, gpus: int, guard_url: str) -> Pod:
    if not model.trt.python:
        raise Unrenderable(
            "`guard_url` takes a launcher in each pod, and so an image that has Bulkhead beside "
            "TensorRT-LLM: say with --python where TensorRT-LLM's own Python lies in it"
        )
    if not guard_url.startswith("http://") or address_of(guard_url).host != at.host:
        raise Unrenderable(
            f"the launcher of http://{at.host}:{at.port} tells of its guard at the same Service, "
            f"by http: its `guard_url` is {guard_url!r}"
        )
    port = address_of(guard_url).port
    run = [BULKHEAD, "trt", "launch", model.id, "--server", f"{at.host}:{at.port}"]
    run += ["--listen", f"{EVERY_ADDRESS}:{at.port}", "--events", f"{EVERY_ADDRESS}:{port}"]
    run += ["--allow-public", "--gpus-per-machine", str(gpus), "--drain", f"{DRAIN_S}s"]
    return Pod(_service_name(at), at, run, gpus, port)


def _service_name(at: Address) -> str:
    name = at.host.split(".")[0]
    if not LABEL.match(name) or at.host.replace(".", "").isdigit():
        raise Unrenderable(
            f"{at.host} is no name that a Service can have: give the model URLs such as "
            "http://llama-0.trt.svc.cluster.local:8000/v1"
        )
    return name


def settings_of(model: Served) -> dict[str, str]:
    """The files of all its pods, by the name of each in their ConfigMap."""
    trt = model.trt
    if model.needs_launchers:
        return {CONFIG: config_text(model)}
    data = {f"{r.phase}.yaml": serve_yaml(model.id, trt, r) for r in roles(model.path, trt)}
    if is_disaggregated(trt):
        port = address_of(model.urls[0]).port
        data["front.yaml"] = disaggregated_yaml(model.id, model.path, trt, EVERY_ADDRESS, port)
    if trt.guard:
        data |= {path.replace("/", "."): source for path, source in guard(trt).items()}
    return data


def container(model: Served, name: str, pod: Pod) -> Keys:
    """Of one pod; `name` is the model's."""
    limits = {"limits": {GPUS: pod.gpus}} if pod.gpus else {}
    ports = pod.ports.items()
    return (
        Key("name", "trtllm"),
        Key("image", model.trt.image),
        Key("command", list(pod.command)),
        Key("env", _environment(model, name, pod)),
        Key("ports", [{"name": k, "containerPort": v, "protocol": "TCP"} for k, v in ports]),
        Key("resources", limits),
        *_probes(pod),
        Key(
            "securityContext",
            {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        ),
        Key("volumeMounts", _mounts(model)),
    )


def _environment(model: Served, name: str, pod: Pod) -> list[dict[str, Any]]:
    trt = model.trt
    if not pod.guard_port:
        env = command.environment(trt, f"{FOLDER}/python", WATCHED) | {"HOME": SCRATCH}
        return [{"name": key, "value": value} for key, value in sorted(env.items())]
    env = {"BULKHEAD_CONFIG": f"{FOLDER}/{CONFIG}", "BULKHEAD_STATE": f"{SCRATCH}/state"}
    env |= {"HOME": SCRATCH, "TMPDIR": SCRATCH}
    secret = {"secretKeyRef": {"name": secret_of(name), "key": trt.guard_secret}}
    told = [{"name": key, "value": value} for key, value in sorted(env.items())]
    return [*told, {"name": trt.guard_secret, "valueFrom": secret}]


def secret_of(name: str) -> str:
    """The Secret with what followers of a model's launchers show."""
    return f"{name}-guard"


def _probes(pod: Pod) -> Keys:
    health = {"httpGet": {"path": "/health", "port": "http"}}
    if pod.guard_port:
        why = (
            "The only one. The launcher asks for a token, and starts its server again: a probe "
            "that ended the pod meanwhile would end both."
        )
        return (Key("readinessProbe", health | {"periodSeconds": 5}, why),)
    return (
        Key("startupProbe", health | {"periodSeconds": 10, "failureThreshold": START_S // 10}),
        Key("readinessProbe", health | {"periodSeconds": 5}),
        Key(
            "livenessProbe",
            health | {"periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 10},
            "It may answer 503 for ever and never end (TensorRT-LLM #18663). What hangs while this "
            "is well is found by the gateway, which asks for a token.",
        ),
    )


def _mounts(model: Served) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "settings", "mountPath": FOLDER, "readOnly": True},
        {"name": "models", "mountPath": claim_path(model), "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - a pod's own
        {"name": "scratch", "mountPath": SCRATCH},
    ]
    return mounts + ([{"name": "guard", "mountPath": WATCHED}] if _watches_alone(model) else [])


def volumes(model: Served, name: str) -> list[dict[str, Any]]:
    """Of each pod; `name` is the model's."""
    paths = guard(model.trt) if _watches_alone(model) else ()
    modules = {path.replace("/", "."): f"python/{path}" for path in paths}
    items = [{"key": key, "path": modules.get(key, key)} for key in settings_of(model)]
    memory = {"medium": "Memory", "sizeLimit": SHARED_MEMORY}
    found: list[dict[str, Any]] = [
        {"name": "settings", "configMap": {"name": f"{name}-trtllm", "items": items}},
        {"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        {"name": "shared-memory", "emptyDir": memory},
        {"name": "scratch", "emptyDir": {}},
    ]
    watched = {"name": "guard", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    return found + ([watched] if _watches_alone(model) else [])


def _watches_alone(model: Served) -> bool:
    """Whether a guard tells of itself in a folder that no launcher makes for it."""
    return model.trt.guard and not model.needs_launchers


def claim_path(model: Served) -> str:
    """Where all checkpoints of the model lie. Raises Unrenderable if that is everywhere."""
    folders = {role.path.rpartition("/")[0] for role in roles(model.path, model.trt)}
    shared = min(folders, key=len)
    if not shared or not all(f"{folder}/".startswith(f"{shared}/") for folder in folders):
        raise Unrenderable("the checkpoints don't lie in one folder, which one claim could hold")
    return shared
