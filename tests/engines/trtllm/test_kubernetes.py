"""A model as Kubernetes objects: they call each other by the names that the configuration has."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from engines.trtllm.commands import Served
from engines.trtllm.kubernetes import kubernetes_yaml
from engines.trtllm.render import Unrenderable, serve_yaml
from engines.trtllm.roles import roles
from engines.trtllm.settings import TrtServers, TrtSettings

APART: dict[str, Any] = {
    "guard": False,
    "image": "trtllm:1.2.1",
    "context": TrtServers(urls=("ctx-0.trt.svc:8001", "ctx-1.trt.svc:8001")),
    "generation": TrtServers(urls=("gen-0.trt.svc:8002",), tensor_parallel=8),
}


LAUNCHED: dict[str, Any] = {
    "guard_url": "http://llama.trt.svc:9000",
    "guard_secret": "GUARD",
    "image": "both:1",
    "python": "/opt/trtllm/bin/python",
}


def served(url: str = "http://llama.trt.svc:8000/v1", path: str = "/m/x", **said: Any) -> Served:
    return Served("@cf/meta/Llama-3.1", path, (url,), TrtSettings(**said))


def objects(model: Served) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    found = yaml.safe_load_all(kubernetes_yaml(model))
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_every_address_of_the_configuration_is_a_service_before_one_server() -> None:
    found = objects(served(**APART))
    wanted = {"llama": (8000, None), "ctx-0": (8001, 1), "ctx-1": (8001, 1), "gen-0": (8002, 8)}
    for name, (port, gpus) in wanted.items():
        service, deployment = found["Service", name]["spec"], found["Deployment", name]["spec"]
        assert service["ports"][0]["port"] == port
        assert service["selector"] == deployment["template"]["metadata"]["labels"]
        assert service["selector"] == deployment["selector"]["matchLabels"]
        assert deployment["replicas"] == 1
        (container,) = deployment["template"]["spec"]["containers"]
        assert container["resources"].get("limits", {}).get("nvidia.com/gpu") == gpus
        assert container["ports"][0]["containerPort"] == port
        if name != "llama":
            command = container["command"]
            assert command[command.index("--port") + 1] == str(port)
    assert len([kind for kind, _ in found if kind == "Deployment"]) == len(wanted)


def test_the_files_are_those_that_are_rendered_elsewhere() -> None:
    model = served(**APART)
    (data,) = [one["data"] for (kind, _), one in objects(model).items() if kind == "ConfigMap"]
    for role in roles(model.path, model.trt):
        assert data[f"{role.phase}.yaml"] == serve_yaml(model.id, model.trt, role)
    assert yaml.safe_load(data["front.yaml"])["context_servers"]["urls"] == [
        "ctx-0.trt.svc:8001",
        "ctx-1.trt.svc:8001",
    ]


def test_the_gateway_alone_may_call_the_front_and_servers_each_other() -> None:
    found = objects(served(**APART))
    (policy,) = [one["spec"] for (kind, _), one in found.items() if kind == "NetworkPolicy"]
    gateway, ours = policy["ingress"]
    assert gateway["from"][0]["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/name": "bulkhead"
    }
    assert [port["port"] for port in gateway["ports"]] == [8000]
    assert ours["from"] == [{"podSelector": policy["podSelector"]}]
    for (kind, _), one in found.items():
        if kind == "Deployment":
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert labels.items() >= policy["podSelector"]["matchLabels"].items()


def test_the_guard_s_modules_lie_where_python_looks_for_them() -> None:
    found = objects(served(version="1.3.0rc29", image="i"))
    (data,) = [one["data"] for (kind, _), one in found.items() if kind == "ConfigMap"]
    pod = found["Deployment", "llama"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    (items,) = [v["configMap"]["items"] for v in pod["volumes"] if v["name"] == "settings"]
    paths = {item["path"]: item["key"] for item in items}
    assert env["PYTHONPATH"] == "/etc/bulkhead/python"
    assert "class GuardScheduler" in data[paths["python/engines/trtllm/guard.py"]]
    assert set(paths.values()) == set(data)
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert env["BULKHEAD_GUARD_DIR"] in mounts
    assert sum(map(len, data.values())) < 900_000  # of 1 MiB that etcd takes


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"guard": False}, "--image"),
        ({"guard": False, "image": "i", "tensor_parallel": 16}, "--as slurm"),
        ({"guard": False, "image": "i", "url": "http://10.0.0.5:8000/v1"}, "10.0.0.5 is no name"),
        ({"image": "i", "guard_url": "http://llama.trt.svc:9000"}, "--python"),
        (LAUNCHED | {"guard_url": "http://other:9000"}, "at the same Service"),
        (LAUNCHED | {"guard_url": "https://llama.trt.svc:9000"}, "by http"),
        ({"guard": False, "image": "i", "path": "/llama"}, "one folder"),
        (APART | {"context": TrtServers(urls=("gen-0.trt.svc:8001",))}, "the Service gen-0"),
    ],
)
def test_what_can_t_be_is_refused(said: dict[str, Any], told: str) -> None:
    with pytest.raises(Unrenderable, match=told):
        kubernetes_yaml(served(**said))
