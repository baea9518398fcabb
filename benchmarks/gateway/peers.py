"""Other gateways, where they are installed: each in an environment of its own, none in ours.

    python -m benchmarks.gateway.peers

installs them, once, below .bulkhead/bench/peers. One that can't be installed is left out of a run,
which says so. Each in its simplest way: no log, no database, the fake engine behind it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bulkhead import SCRATCH
from benchmarks.gateway.bodies import MODELS
from benchmarks.gateway.programs import READY
from benchmarks.load import Target
from benchmarks.process import Child, child, free_port

PEERS = SCRATCH / "peers"
KEY = "sk-bench"


@dataclass(frozen=True, slots=True)
class Peer:
    """A package and how it is started; `{engine}` and the like in it are filled in.

    It is ready once `health` answers 200, or once it has printed READY and its base URL. `prefix`:
    what it wants before a model's name. `is_slow`: crowds of streams are beyond it.
    """

    name: str
    package: str
    command: tuple[str, ...]
    health: str = ""
    config: str = ""
    prefix: str = ""
    is_slow: bool = False

    @property
    def python(self) -> Path:
        """Its environment's interpreter."""
        return PEERS / self.name / "bin" / "python"


SGLANG_ROUTER = Peer(
    "sglang-router",
    "sglang-router==0.3.2",
    (
        *("-m", "sglang_router.launch_router", "--worker-urls", "{engine}", "--host", "127.0.0.1"),
        *("--port", "{port}", "--policy", "cache_aware", "--log-level", "error"),
        *("--prometheus-port", "{other_port}", "--api-key", KEY),
    ),
    "/health",
)
TENSORZERO = Peer(
    "tensorzero",
    "tensorzero==2026.6.0",
    (str(Path(__file__).with_name("tensorzero_peer.py")), "{config}"),
    config="[gateway]\nobservability.enabled = false\n"
    + "".join(
        f"""
[models.{model}]
routing = ["engine"]
[models.{model}.providers.engine]
type = "openai"
model_name = "{model}"
api_base = "{{engine}}/v1/"
api_key_location = "none"
"""
        for model in MODELS
    ),
    prefix="tensorzero::model_name::",
)
LITELLM = Peer(
    "litellm",
    "litellm[proxy]==1.108.7",
    (
        *("-c", "from litellm import run_server; run_server()", "--config", "{config}"),
        *("--host", "127.0.0.1", "--port", "{port}", "--num_workers", "1"),
    ),
    "/health/liveliness",
    config="""
model_list:
  - model_name: "*"
    litellm_params: {model: "openai/*", api_base: "{engine}/v1", api_key: "none"}
general_settings: {master_key: sk-bench}
""",
    is_slow=True,
)
ALL = (SGLANG_ROUTER, TENSORZERO, LITELLM)


@contextmanager
def peer(one: Peer, engine: str, folder: Path, core: int | None) -> Iterator[tuple[Target, Child]]:
    """It, in front of an engine (a URL without /v1), until the block is left."""
    port = free_port()
    config = folder / f"{one.name}.conf"
    names = {
        "{engine}": engine,
        "{port}": str(port),
        "{other_port}": str(free_port()),
        "{config}": str(config),
    }
    config.write_text(_filled(one.config, names))
    command = [str(one.python), *(_filled(word, names) for word in one.command)]
    url = f"http://127.0.0.1:{port}"
    health, ready = (f"{url}{one.health}", "") if one.health else ("", READY)
    with child(command, ready, url=health, core=core, wait_s=90) as running:
        base = running.printed(READY) if ready else f"{url}/v1"
        bearer = {"authorization": f"Bearer {KEY}"}
        yield Target(base, "/chat/completions", bearer), running


def _filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def main() -> None:
    for one in ALL:
        if one.python.exists():
            continue
        subprocess.run([sys.executable, "-m", "venv", str(PEERS / one.name)], check=True)
        install = [str(one.python), "-m", "pip", "install", "--quiet", one.package]
        if subprocess.run(install, check=False).returncode:
            print(f"{one.package} can't be installed here; it is left out")


if __name__ == "__main__":
    main()
