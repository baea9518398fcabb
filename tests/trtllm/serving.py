"""The fake as a process of a test's own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.stack import REPO, free_port
from tests.trtllm.control import ask

START_S = 60


class Served:
    """One that runs. `url` is its /v1."""

    def __init__(self, folder: Path, *options: str, model: str = "m", **environ: str) -> None:
        self.port = free_port()
        self._control = str(folder / f"c{self.port}.sock")
        self._command = [sys.executable, "-m", "tests.trtllm_serve", model, "--host", "127.0.0.1",
                         "--port", str(self.port), *options]  # fmt: skip
        self._environ = os.environ | environ | {"FAKE_TRTLLM_CONTROL": self._control}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Returns once it is healthy."""
        self.process = subprocess.Popen(self._command, cwd=REPO, env=self._environ)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the fake ended before it answered"
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(self.url.removesuffix("/v1") + "/health")
                return
            time.sleep(0.02)
        raise AssertionError("the fake didn't answer in time")

    def stop(self) -> None:
        """Ended, if it hasn't by itself."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        Path(self._control).unlink(missing_ok=True)

    def fail(self, *names: str, **faults: dict[str, Any]) -> None:
        """Have these faults from now on, and no others."""
        ask(self._control, faults={name: {} for name in names} | faults)

    def seen(self, *, forget: bool = False) -> list[dict[str, Any]]:
        """All requests that came in."""
        found: list[dict[str, Any]] = ask(self._control, seen=True, forget=forget)["seen"]
        return found

    def told(self) -> dict[str, Any]:
        """Counters: `in_hand`, `aborted`, `steps`."""
        return ask(self._control)


@contextlib.contextmanager
def served(
    folder: Path,
    *options: str,
    model: str = "m",
    config: dict[str, Any] | None = None,
    **environ: str,
) -> Iterator[Served]:
    """The fake, with this YAML if any (JSON is YAML)."""
    if config is not None:
        path = folder / "serve.yaml"
        path.write_text(json.dumps(config))
        options = (*options, "--config", str(path))
    found = Served(folder, *options, model=model, **environ)
    try:
        found.start()
        yield found
    finally:
        found.stop()
