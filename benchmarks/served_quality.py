"""The perplexity of what bench_engine serves, so that no speed is told without its price.

Ours as it is served: through the engine, its kernels and its pages. llama.cpp's formats by their
weights alone, read into our BF16 engine, which spares them the rounding of their own kernels.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.kv_texts import DATA, WIKITEXT, Texts
from benchmarks.process import child, python
from engines.build.gguf import convert

WINDOWS = 8  # of 1,024 tokens, spread over WikiText-2's test set
PATIENCE_S = 900.0
MEMORY = 16 << 30
RESULT = '{"result"'


def perplexities(
    source: Path, int4: Path, others: Mapping[str, Path], scratch: Path
) -> dict[str, float]:
    """By name: "bf16", "int4", and each GGUF of `others`. Empty where the text isn't there.

    BF16 weights over BF16 pages, and INT4 weights over FP8 pages.
    """
    if not (DATA / WIKITEXT).is_file():
        return {}
    folders = {name: _as_bf16(gguf, scratch) for name, gguf in others.items()}
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text(_lines(source))
        job = {
            "engine": "embedded",
            "folders": [str(path) for path in (source, int4, *folders.values())],
            "options": {"threads": 2},
            "prompts": str(prompts),
            "rounds": 0,
            "memory_bytes": MEMORY,
        }
        said = json.dumps(job).encode() + b"\n"
        with child(python("engines.evaluate"), RESULT, wait_s=PATIENCE_S, say=said) as done:
            found = json.loads(done.lines[-1])["result"]["choices"]
    by_folder = {(one["folder"], one["kv"]): one["perplexity_prompts"] for one in found}
    bf16 = {name: by_folder[str(path), "bf16"] for name, path in folders.items()}
    return {
        "bf16": by_folder[str(source), "bf16"],
        "int4": by_folder[str(int4), "fp8"],
        **bf16,
    }


def _lines(folder: Path) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = (tokenizer.decode(window) for window in Texts(folder, DATA).windows(WINDOWS))
    return "".join(json.dumps({"prompt": text}) + "\n" for text in texts)


def _as_bf16(gguf: Path, scratch: Path) -> Path:
    """A GGUF's weights as a folder that our engine reads."""
    folder = scratch / f"{gguf.stem}-as-bf16"
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        convert(gguf, folder)
    return folder
