"""A model's servers as Kubernetes objects: rendered, so that they never say other than the config.

Each server is a Deployment and a Service of its own, since each has an address of its own in the
config, whose host's first label is the Service's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from engines.trtllm.command import address_of
from engines.trtllm.commands import Served
from engines.trtllm.pods import (
    GRACE_S,
    LABEL,
    Pod,
    claim_path,
    container,
    pods_of,
    secret_of,
    settings_of,
    volumes,
)
from engines.trtllm.render import Unrenderable
from engines.trtllm.roles import is_disaggregated, roles
from engines.trtllm.yaml_text import Key, Keys, yaml_text

GATEWAY = {"app.kubernetes.io/name": "bulkhead"}


def kubernetes_yaml(model: Served, gpus_per_machine: int = 8) -> str:
    """All objects, byte for byte the same for the same settings. Raises Unrenderable."""
    _check(model, gpus_per_machine)
    pods = list(pods_of(model))
    names = [pod.name for pod in pods]
    if twice := [name for name in names if names.count(name) > 1]:
        raise Unrenderable(f"two servers would be the Service {twice[0]}: give each its own host")
    name = _name(model)
    documents = [_settings(model, name), _policy(model, name, pods)]
    for pod in pods:
        documents += [_service(name, pod), _deployment(model, name, pod)]
    heads = [_head(model, name), *("" for _ in documents[1:])]
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


def _head(model: Served, name: str) -> str:
    launched = (
        "\nEach pod runs `bulkhead trt launch`: the image has Bulkhead in /opt/bulkhead, beside "
        f"TensorRT-LLM. The Secret {secret_of(name)} holds {model.trt.guard_secret}, which the "
        "gateway shows at `guard_url`."
    )
    return (
        f"{model.id}: TensorRT-LLM {model.trt.version} on Kubernetes.\n"
        "Written by `bulkhead trt render --as kubernetes`. Change the model's [models.trt] and "
        "render it anew.\n"
        f"It needs a claim named `models` whose files are at {claim_path(model)}, NVIDIA's device "
        "plugin, a network plugin that enforces policies, and a gateway in the same namespace "
        "whose pods are labelled app.kubernetes.io/name: bulkhead."
        + (launched if model.needs_launchers else "")
    )


def _name(model: Served) -> str:
    """A label made of the model's id."""
    found = re.sub(r"[^a-z0-9]+", "-", model.id.lower()).strip("-")[:50].strip("-")
    return found if LABEL.match(found) else f"model-{found}".strip("-")


def _meta(model_name: str, name: str, pod: Pod | None = None) -> Key:
    return Key("metadata", (Key("name", name), Key("labels", _labels(model_name, pod))))


def _labels(model_name: str, pod: Pod | None = None) -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "trtllm", "app.kubernetes.io/instance": model_name}
    return labels | ({"app.kubernetes.io/component": pod.name} if pod else {})


def _settings(model: Served, name: str) -> Keys:
    return (
        Key("apiVersion", "v1"),
        Key("kind", "ConfigMap"),
        _meta(name, f"{name}-trtllm"),
        Key("data", settings_of(model)),
    )


def _policy(model: Served, name: str, pods: Sequence[Pod]) -> Keys:
    """Who may call whom. TensorRT-LLM asks nobody for a key, and sends KV in the clear."""
    ours = [{"podSelector": {"matchLabels": _labels(name)}}]
    told = {pod.guard_port for pod in pods if pod.guard_port}
    called = sorted({address_of(url).port for url in model.urls} | told)
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
    ports = [
        {"name": key, "port": port, "targetPort": key, "protocol": "TCP"}
        for key, port in pod.ports.items()
    ]
    spec: dict[str, Any] = {"selector": _labels(name, pod), "ports": ports}
    if pod.guard_port:  # its launcher tells what it does whether or not its server is ready
        spec["publishNotReadyAddresses"] = True
    return (
        Key("apiVersion", "v1"),
        Key("kind", "Service"),
        _meta(name, pod.name, pod),
        Key("spec", spec),
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
        Key("terminationGracePeriodSeconds", GRACE_S, "Answers that run are given this long."),
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
        Key("containers", [container(model, name, pod)]),
        Key("volumes", volumes(model, name)),
    )
