"""A native engine serves where torch can't even be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.engines.helpers import needs_native

SERVE = """
import sys
sys.modules["torch"] = None  # whoever imports it gets an ImportError
from engines.api import EngineSpec, Request, Sampling
from engines.registry import load
engine = load("embedded")(EngineSpec("tiny", sys.argv[1], {"kv_memory_bytes": 1 << 20}))
for temperature in (0.0, 1.0):
    sampling = Sampling(5, temperature=temperature)
    engine.add(Request(str(temperature), "a", (1, 2, 3), sampling))
tokens = 0
while engine.has_work():
    tokens += sum(len(output.token_ids) for output in engine.step())
engine.close()
del sys.modules["torch"]
print("tokens", tokens, [name for name in sys.modules if name.startswith("torch")])
"""


@needs_native
def test_a_tiny_model_is_served_without_torch(tiny_dir: Path) -> None:
    """Greedy and drawn, from loading to the last token."""
    command = [sys.executable, "-c", SERVE, str(tiny_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "tokens 10 []"
