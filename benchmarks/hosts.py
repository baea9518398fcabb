"""One engine host without gateway and node: what the engine gives over HTTP."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import json

from benchmarks.bulkhead import MODEL_ID
from benchmarks.load import Target
from benchmarks.process import Child, ChildFailed, child, python
from runtime.capability import Signer
from runtime.host.process import HostSpec, Ready

START_S = 300.0  # the first one packs the weights
DOMAIN = "bench"


@dataclass(frozen=True, slots=True)
class HostServed:
    """A host that answers."""

    target: Target  # completions
    child: Child


@contextmanager
def host(folder: Path, options: Mapping[str, Any]) -> Iterator[HostServed]:
    """Serve the model in `folder`, until the block is left. Raises ChildFailed."""
    signer = Signer(secrets.token_bytes(32))
    with tempfile.TemporaryDirectory(prefix="bh-") as scratch:
        spec = HostSpec(
            id="bench",
            model=MODEL_ID,
            engine="embedded",
            path=str(folder),
            socket=f"{scratch}/host.sock",
            public_keys=signer.public_keys(),
            default_max_tokens=64,
            options=dict(options),
            log_level="warning",
        )
        said = json.encode(spec) + b"\n"
        with child(python("runtime.host"), "{", wait_s=START_S, say=said) as started:
            ready = json.decode(started.lines[-1].encode(), type=Ready)
            if not ready.ready:
                raise ChildFailed(f"the host is not ready: {ready.reason}")
            target = Target(
                "http://host/v1",
                "/completions",
                socket=spec.socket,
                bearer=lambda: signer.mint(DOMAIN, MODEL_ID),
            )
            yield HostServed(target, started)
