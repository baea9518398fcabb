"""The examples of `config/examples/trtllm`, rendered from the configuration beside them.

After a change: python -m tests.engines.trtllm.examples
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from engines.trtllm.commands import Laid, Served
from engines.trtllm.kubernetes import kubernetes_yaml
from engines.trtllm.slurm import slurm_script
from gateway.cli.trt import served_of
from runtime import settings

FOLDER = Path(__file__).resolve().parents[3] / "config" / "examples" / "trtllm"
IMAGE = "registry.example.com/tensorrt-llm:1.2.1"
BOTH = {
    "image": "registry.example.com/tensorrt-llm-bulkhead:1.2.1",
    "python": "/usr/local/bin/python3",
}
SHARED = "/shared/bulkhead/llama-70b"


def model(name: str = "llama-70b", **trt: str) -> Served:
    """One of those that are configured there."""
    found = served_of(settings.peek(FOLDER / "bulkhead.toml", None), name)
    return found._replace(trt=replace(found.trt, **({"image": IMAGE} | trt)))


def rendered() -> dict[str, str]:
    """The files, by name."""
    return {
        "guarded.yaml": kubernetes_yaml(model("llama-8b", **BOTH)),
        "kubernetes.yaml": kubernetes_yaml(model()),
        "slurm.sh": slurm_script(model(), Laid(SHARED, {})),
    }


if __name__ == "__main__":
    for name, text in rendered().items():
        (FOLDER / name).write_text(text)
