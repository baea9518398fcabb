"""A pod under a launcher: it is told what a launcher takes, and the gateway reaches both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st
from msgspec.structs import replace

from engines.trtllm.commands import Served
from engines.trtllm.kubernetes import kubernetes_yaml
from engines.trtllm.launched_config import config_text
from engines.trtllm.settings import TrtSettings
from gateway.cli.launching import launch
from runtime import settings as config
from runtime.config.toml_text import tables
from runtime.trt.bind import Bind
from runtime.trt.planning import Wish, events_bind, target_of

CHECKPOINT = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
TRT = TrtSettings(
    guard_secret="GUARD",
    image="both:1",
    python="/opt/trtllm/bin/python",
    tensor_parallel=2,
    memory_fraction=0.85,
    extra={"kv_cache_config": {"max_tokens": 4096}, "stream_interval": 2},
)
WISHES = ("server", "listen", "allow_public", "gpus_per_machine", "runner")
ALONE = (("http://llama:8000/v1",), ("http://llama:9000",))
SEVERAL = (
    ("http://llama-0.trt.svc:8000/v1", "http://llama-1.trt.svc:8001/v1"),
    ("http://llama-0.trt.svc:9000", "http://llama-1.trt.svc:9001"),
)


def model(folder: Path, urls: tuple[str, ...], guards: tuple[str, ...]) -> Served:
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(CHECKPOINT))
    trt = TRT
    if len(urls) == 1:
        trt = replace(trt, guard_url=guards[0])
    return Served("@cf/meta/llama", str(folder / "model"), urls, trt, guards)


def objects(found: Served) -> dict[tuple[str, str], dict[str, Any]]:
    every = yaml.safe_load_all(kubernetes_yaml(found))
    return {(one["kind"], one["metadata"]["name"]): one for one in every}


@pytest.mark.parametrize(("urls", "guards"), [ALONE, SEVERAL])
def test_each_pod_s_launcher_takes_its_command_and_its_configuration(
    urls: tuple[str, ...], guards: tuple[str, ...], tmp_path: Path
) -> None:
    served = model(tmp_path, urls, guards)
    found = objects(served)
    text = found["ConfigMap", "cf-meta-llama-trtllm"]["data"]["bulkhead.toml"]
    (tmp_path / "bulkhead.toml").write_text(text)
    told = config.peek(tmp_path / "bulkhead.toml", tmp_path / "state")
    (one,) = told.file.models
    assert (one.id, one.urls, one.path) == (served.id, urls, served.path)
    assert one.trt == replace(served.trt, image="")
    assert tuple(server.guard_url for server in one.attached) == guards
    ports = []
    for name in [name for kind, name in found if kind == "Deployment"]:
        pod = found["Deployment", name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        program, *words = container["command"]
        assert (program, words[:2]) == ("/opt/bulkhead/bin/bulkhead", ["trt", "launch"])
        asked = launch.make_context("launch", words[2:]).params
        target = target_of(one, Wish(**{name: asked[name] for name in WISHES}))
        assert target.bind.host == "0.0.0.0"
        where = events_bind(target, asked["events"], allow_public=True)
        assert where == Bind("0.0.0.0", asked["events"].port)
        ports.append((target.place.port, where.port))
        by_name = {port["name"]: port["port"] for port in found["Service", name]["spec"]["ports"]}
        assert by_name == {"http": target.place.port, "guard": where.port}
        assert found["Service", name]["spec"]["publishNotReadyAddresses"]
        env = {variable["name"]: variable for variable in container["env"]}
        assert env["GUARD"]["valueFrom"]["secretKeyRef"] == {
            "name": "cf-meta-llama-guard",
            "key": "GUARD",
        }
        assert "livenessProbe" not in container, "the launcher starts its server again"
    allowed = found["NetworkPolicy", "cf-meta-llama-trtllm"]["spec"]["ingress"][0]["ports"]
    assert {port["port"] for port in allowed} == {port for pair in ports for port in pair}


def test_the_objects_are_kubernetes_own(tmp_path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for one in objects(model(tmp_path, *SEVERAL)).values():
        validator.validate(one, "1.37.0", strict=True)


SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=8),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.recursive(
            SCALARS,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_whatever_extra_holds_is_read_as_it_was_written(extra: dict[str, Any]) -> None:
    served = Served("m", "/m", ("http://a:8000/v1",), TrtSettings(extra=extra), ("",))
    (found,) = tables(config_text(served))["models"]
    assert found["trt"] == ({"extra": extra} if extra else {})
