"""Whether a source is whole, and the model that its config.json tells of: by its files' headers.

Told before anything is computed. What is missing would stop a build half-way; what has no place in
the model (a layer too many, the head norms of another family) would be lost without a word.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engines.build.preflight import BUFFERS, biased
from engines.build.shape import Shape, UnsuitableModel, read_json
from engines.build.tensorfile import Entry, entries_of

DTYPES = ("BF16", "F16", "F32")
HEAD = "lm_head.weight"


def refuse_incomplete(folder: Path, shape: Shape) -> None:
    """Raises UnsuitableModel, or BadTensorFile for a file that can't be read."""
    entries = entries_of(folder)
    if not entries:
        raise UnsuitableModel(f"{folder} holds no .safetensors file")
    if shape.num_layers > len(entries):
        raise UnsuitableModel(
            f"{folder}: num_hidden_layers is {shape.num_layers}, and there are {len(entries)} "
            "tensors"
        )
    wanted = dict(_wanted(folder, shape))
    if missing := [name for name in wanted if name not in entries]:
        rest = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise UnsuitableModel(f"{folder} has no tensor {missing[0]!r}{rest}: is a file missing?")
    for name, size in wanted.items():
        _refuse_misshapen(name, entries[name], size)
    unread = [name for name in entries.keys() - wanted.keys() if not name.endswith(BUFFERS)]
    if shape.tied_embeddings:  # a copy of the embedding, which some writers leave there
        unread = [name for name in unread if name != HEAD]
    if unread:
        raise UnsuitableModel(
            f"{folder} has a tensor {min(unread)!r}, and the model that config.json tells of has "
            "no place for it: it would be lost"
        )


def _refuse_misshapen(name: str, entry: Entry, size: tuple[int, ...]) -> None:
    if entry.shape != size:
        raise UnsuitableModel(f"tensor {name!r} is {entry.shape} instead of {size}")
    if entry.dtype not in DTYPES:
        raise UnsuitableModel(f"tensor {name!r} is {entry.dtype}; BF16, F16 or F32 is needed")


def _wanted(folder: Path, shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of the model, and its shape."""
    hidden = shape.hidden_size
    yield "model.embed_tokens.weight", (shape.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    if not shape.tied_embeddings:
        yield HEAD, (shape.vocab_size, hidden)
    has_bias = biased(read_json(folder / "config.json"), shape)
    for index in range(shape.num_layers):
        prefix = f"model.layers.{index}."
        for name, size in shape.norms().items():
            yield f"{prefix}{name}.weight", (size,)
        for name, (rows, columns) in shape.linears().items():
            yield f"{prefix}{name}.weight", (rows, columns)
            if name in has_bias:
                yield f"{prefix}{name}.bias", (rows,)
