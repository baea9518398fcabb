"""A model's servers as Kubernetes objects: rendered, so that they never say other than the config.

Each server is a Deployment and a Service of its own, since each has an address of its own in the
config, whose host's first label is the Service's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from engines.trtllm import command
from engines.trtllm.command import Address, address_of
from engines.trtllm.commands import Served, addresses
from engines.trtllm.disaggregated import disaggregated_yaml
from engines.trtllm.render import Unrenderable, serve_yaml
from engines.trtllm.rendered import guard
from engines.trtllm.roles import is_disaggregated, roles
from engines.trtllm.yaml_text import Key, Keys, yaml_text

FOLDER = "/etc/bulkhead"  # of the rendered files, in each container
WATCHED = "/run/bulkhead-guard"
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - a pod's own
GPUS = "nvidia.com/gpu"
SHARED_MEMORY = "16Gi"
START_S = 1800  # until weights of hundreds of gigabytes are loaded
LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")
GATEWAY = {"app.kubernetes.io/name": "bulkhead"}


class Pod(NamedTuple):
    """One server: what it runs, where it is called, and with how many GPUs."""

    name: str
    at: Address
    command: Sequence[str]
    gpus: int
    what: str


def kubernetes_yaml(model: Served, gpus_per_machine: int = 8) -> str:
    """All objects, byte for byte the same for the same settings. Raises Unrenderable."""
    _check(model, gpus_per_machine)
    pods = list(_pods(model))
    names = [pod.name for pod in pods]
    if twice := [name for name in names if names.count(name) > 1]:
        raise Unrenderable(f"two servers would be the Service {twice[0]}: give each its own host")
    name = _name(model)
    documents = [_settings(model, name), _policy(model, name)]
    for pod in pods:
        documents += [_service(name, pod), _deployment(model, name, pod)]
    heads = [_head(model), *("" for _ in documents[1:])]
    return "".join(yaml_text(keys, head) for keys, head in zip(documents, heads, strict=True))


def _check(model: Served, gpus_per_machine: int) -> None:
    if not model.trt.image:
        raise Unrenderable("a pod needs an image that has TensorRT-LLM: say which with --image")
    for role in roles(model.path, model.trt):
        if role.ranks > gpus_per_machine:
            raise Unrenderable(
                f"a {role.phase} server needs {role.ranks} GPUs, and a machine has "
                f"{gpus_per_machine}: pods don't start each other by MPI; see --as slurm"
            )
    if model.needs_launchers:
        raise Unrenderable(
            "what the guard saw is told by `bulkhead trt launch`, which none of these pods runs: "
            "serve with a release that has the hook, and without `guard_url`"
        )


def _head(model: Served) -> str:
    return (
        f"{model.id}: TensorRT-LLM {model.trt.version} on Kubernetes.\n"
        "Written by `bulkhead trt render --as kubernetes`. Change the model's [models.trt] and "
        "render it anew.\n"
        f"It needs a claim named `models` whose files are at {_claim_path(model)}, NVIDIA's device "
        "plugin, a network plugin that enforces policies, and a gateway in the same namespace "
        "whose pods are labelled app.kubernetes.io/name: bulkhead."
    )


def _name(model: Served) -> str:
    """A label made of the model's id."""
    found = re.sub(r"[^a-z0-9]+", "-", model.id.lower()).strip("-")[:50].strip("-")
    return found if LABEL.match(found) else f"model-{found}".strip("-")


def _pods(model: Served) -> Iterator[Pod]:
    trt = model.trt
    for role in roles(model.path, trt):
        for at in addresses(role, model.urls):
            config = f"{FOLDER}/{role.phase}.yaml"
            inside = Address(EVERY_ADDRESS, at.port)
            run = command.serve(trt, role, config, inside)
            yield Pod(_service_name(at), at, run, role.ranks, role.phase)
    if is_disaggregated(trt):
        at = address_of(model.urls[0])
        yield Pod(_service_name(at), at, command.front(trt, f"{FOLDER}/front.yaml"), 0, "front")


def _service_name(at: Address) -> str:
    name = at.host.split(".")[0]
    if not LABEL.match(name) or at.host.replace(".", "").isdigit():
        raise Unrenderable(
            f"{at.host} is no name that a Service can have: give the model URLs such as "
            "http://llama-0.trt.svc.cluster.local:8000/v1"
        )
    return name


def _meta(model_name: str, name: str, pod: Pod | None = None) -> Key:
    return Key("metadata", (Key("name", name), Key("labels", _labels(model_name, pod))))


def _labels(model_name: str, pod: Pod | None = None) -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "trtllm", "app.kubernetes.io/instance": model_name}
    return labels | ({"app.kubernetes.io/component": pod.name} if pod else {})


def _settings(model: Served, name: str) -> Keys:
    trt = model.trt
    data = {f"{r.phase}.yaml": serve_yaml(model.id, trt, r) for r in roles(model.path, trt)}
    if is_disaggregated(trt):
        port = address_of(model.urls[0]).port
        data["front.yaml"] = disaggregated_yaml(model.id, model.path, trt, EVERY_ADDRESS, port)
    if trt.guard:
        data |= {path.replace("/", "."): source for path, source in guard(trt).items()}
    return (
        Key("apiVersion", "v1"),
        Key("kind", "ConfigMap"),
        _meta(name, f"{name}-trtllm"),
        Key("data", data),
    )


def _policy(model: Served, name: str) -> Keys:
    """Who may call whom. TensorRT-LLM asks nobody for a key, and sends KV in the clear."""
    ours = [{"podSelector": {"matchLabels": _labels(name)}}]
    called = sorted({address_of(url).port for url in model.urls})
    gateway = {
        "from": [{"podSelector": {"matchLabels": GATEWAY}}],
        "ports": [{"port": port, "protocol": "TCP"} for port in called],
    }
    ingress: list[dict[str, Any]] = [gateway]
    egress: list[dict[str, Any]] = [
        {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    ]
    if is_disaggregated(model.trt):
        ingress.append({"from": ours})
        egress.append({"to": ours})
    return (
        Key("apiVersion", "networking.k8s.io/v1"),
        Key("kind", "NetworkPolicy"),
        _meta(name, f"{name}-trtllm"),
        Key(
            "spec",
            (
                Key("podSelector", {"matchLabels": _labels(name)}),
                Key("policyTypes", ["Ingress", "Egress"]),
                Key(
                    "ingress",
                    ingress,
                    "trtllm-serve asks nobody for a key, and some of its routes tell all tenants' "
                    "prompts: the gateway alone may call it, and its servers each other.",
                ),
                Key("egress", egress, "Names are looked up; nothing else outside is called."),
            ),
        ),
    )


def _service(name: str, pod: Pod) -> Keys:
    port = {"name": "http", "port": pod.at.port, "targetPort": "http", "protocol": "TCP"}
    return (
        Key("apiVersion", "v1"),
        Key("kind", "Service"),
        _meta(name, pod.name, pod),
        Key("spec", {"selector": _labels(name, pod), "ports": [port]}),
    )


def _deployment(model: Served, name: str, pod: Pod) -> Keys:
    labels = _labels(name, pod)
    spec: Keys = (
        Key("replicas", 1, "One: the address is this server's, and so are its cached prefixes."),
        Key("strategy", {"type": "Recreate"}, "There are no GPUs for two at once."),
        Key("selector", {"matchLabels": labels}),
        Key("template", (Key("metadata", {"labels": labels}), Key("spec", _pod(model, name, pod)))),
    )
    return (
        Key("apiVersion", "apps/v1"),
        Key("kind", "Deployment"),
        _meta(name, pod.name, pod),
        Key("spec", spec),
    )


def _pod(model: Served, name: str, pod: Pod) -> Keys:
    return (
        Key("automountServiceAccountToken", False),
        Key("enableServiceLinks", False),
        Key("terminationGracePeriodSeconds", 120, "Answers that run are given this long."),
        Key(
            "securityContext",
            {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        ),
        Key("containers", [_container(model, pod)]),
        Key("volumes", _volumes(model, name)),
    )


def _container(model: Served, pod: Pod) -> Keys:
    trt = model.trt
    env = command.environment(trt, f"{FOLDER}/python", WATCHED) | {"HOME": "/scratch"}
    health = {"httpGet": {"path": "/health", "port": "http"}}
    limits = {"limits": {GPUS: pod.gpus}} if pod.gpus else {}
    return (
        Key("name", "trtllm"),
        Key("image", trt.image),
        Key("command", list(pod.command)),
        Key("env", [{"name": key, "value": value} for key, value in sorted(env.items())]),
        Key("ports", [{"name": "http", "containerPort": pod.at.port, "protocol": "TCP"}]),
        Key("resources", limits),
        Key("startupProbe", health | {"periodSeconds": 10, "failureThreshold": START_S // 10}),
        Key("readinessProbe", health | {"periodSeconds": 5}),
        Key(
            "livenessProbe",
            health | {"periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 10},
            "It may answer 503 for ever and never end (TensorRT-LLM #18663). What hangs while this "
            "is well is found by the gateway, which asks for a token.",
        ),
        Key(
            "securityContext",
            {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        ),
        Key("volumeMounts", _mounts(model)),
    )


def _mounts(model: Served) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "settings", "mountPath": FOLDER, "readOnly": True},
        {"name": "models", "mountPath": _claim_path(model), "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - a pod's own
        {"name": "scratch", "mountPath": "/scratch"},
    ]
    watched = [{"name": "guard", "mountPath": WATCHED}] if model.trt.guard else []
    return mounts + watched


def _volumes(model: Served, name: str) -> list[dict[str, Any]]:
    items: list[dict[str, str]] = []
    for role in roles(model.path, model.trt):
        items.append({"key": f"{role.phase}.yaml", "path": f"{role.phase}.yaml"})
    if is_disaggregated(model.trt):
        items.append({"key": "front.yaml", "path": "front.yaml"})
    if model.trt.guard:
        paths = guard(model.trt)
        items += [{"key": path.replace("/", "."), "path": f"python/{path}"} for path in paths]
    memory = {"medium": "Memory", "sizeLimit": SHARED_MEMORY}
    volumes: list[dict[str, Any]] = [
        {"name": "settings", "configMap": {"name": f"{name}-trtllm", "items": items}},
        {"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        {"name": "shared-memory", "emptyDir": memory},
        {"name": "scratch", "emptyDir": {}},
    ]
    watched = {"name": "guard", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    return volumes + ([watched] if model.trt.guard else [])


def _claim_path(model: Served) -> str:
    """Where all checkpoints of the model lie. Raises Unrenderable if that is everywhere."""
    folders = {role.path.rpartition("/")[0] for role in roles(model.path, model.trt)}
    shared = min(folders, key=len)
    if not shared or not all(f"{folder}/".startswith(f"{shared}/") for folder in folders):
        raise Unrenderable("the checkpoints don't lie in one folder, which one claim could hold")
    return shared
