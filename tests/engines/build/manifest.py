"""What a checkpoint is made of: its tensors' names, dtypes and shapes, and what it says of them.

`python -m tests.engines.build.manifest PYTHON` records ModelOpt's, with the Python that has it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engines.build.tensorfile import entries_of

RECORDED = Path(__file__).parent / "modelopt_0.47.0.json"
# Run where ModelOpt is, in the repository's root: two layers, exported as it likes.
EXPORT = """
import sys
from pathlib import Path
import torch
import modelopt.torch.quantization as mtq
from modelopt.torch.export import export_hf_checkpoint
from transformers import AutoModelForCausalLM
from engines.build.modelopt import _config, _reading
from engines.build.plan import Options
source, out, weights = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
model.config.architectures = [type(model).__name__]
options = Options(weights=weights, group=64)
windows = [[(i * 7 + j) % 290 for i in range(200)] for j in range(4)]
model = mtq.quantize(model, _config(mtq, options), _reading(windows))
with torch.inference_mode():
    export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=out)
"""


def manifest(folder: Path) -> dict[str, Any]:
    """Of the checkpoint in a folder; versions left out."""
    told = json.loads((folder / "hf_quant_config.json").read_text())
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    config["producer"].pop("version")
    return {
        "tensors": {
            name: [entry.dtype, list(entry.shape)]
            for name, entry in sorted(entries_of(folder).items())
        },
        "hf_quant_config": told["quantization"],
        "quantization_config": config,
    }


def exported(python: str, source: Path, out: Path, weights: str) -> dict[str, Any]:
    """ModelOpt's own export of a folder."""
    command = [python, "-W", "ignore", "-c", EXPORT, str(source), str(out), weights]
    subprocess.run(command, check=True, capture_output=True)
    return manifest(out)


def main() -> None:
    from tests.engines.build.tiny import model

    with tempfile.TemporaryDirectory() as scratch:
        found = {}
        for name in ("llama", "qwen2"):
            source = model(name, Path(scratch) / name, num_hidden_layers=2)
            for weights in ("int4-awq", "bf16"):
                out = Path(scratch) / f"{name}-{weights}"
                found[f"{name} {weights}"] = exported(sys.argv[1], source, out, weights)
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
