"""Reads a Hugging Face folder a layer at a time, as float32, whatever its files hold.

Told a folder and its shape. Anything missing or misshapen is an UnsuitableModel,
and what is no file at all a BadTensorFile.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engines.build.shape import Shape, UnsuitableModel
from engines.build.tensorfile import files_of

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's tensors by their names in it, without `.weight` and `.bias`."""

    weights: dict[str, Tensor]  # of matrices [out, in]
    biases: dict[str, Tensor]  # of those matrices that have one
    norms: dict[str, Tensor]
    factors: dict[str, Tensor] = field(default_factory=dict)  # of a matrix' inputs, where it has


class Weights:
    """The tensors of a folder, found by name over all its files."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._folder = folder
        self._shape = shape
        self._stack = ExitStack()
        self._file_of: dict[str, safe_open] = {}

    def __enter__(self) -> Self:
        paths = files_of(self._folder)
        try:
            files = [self._stack.enter_context(safe_open(path, framework="pt")) for path in paths]
        except (OSError, SafetensorError) as error:
            self._stack.close()
            raise UnsuitableModel(f"cannot read the weights in {self._folder}: {error}") from error
        for file in files:
            for name in file.keys():  # noqa: SIM118 - not iterable itself
                if name in self._file_of:
                    self._stack.close()
                    raise UnsuitableModel(f"{self._folder} has {name!r} in two of its files")
                self._file_of[name] = file
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def layer(self, index: int) -> Layer:
        """One layer, read now."""
        prefix = f"model.layers.{index}."
        linears = self._shape.linears()
        return Layer(
            weights={
                name: self.read(f"{prefix}{name}.weight", size) for name, size in linears.items()
            },
            biases={
                name: self.read(f"{prefix}{name}.bias", (rows,))
                for name, (rows, _) in linears.items()
                if f"{prefix}{name}.bias" in self._file_of
            },
            norms={
                name: self.read(f"{prefix}{name}.weight", (size,))
                for name, size in self._shape.norms().items()
            },
        )

    def embedding(self) -> Tensor:
        """[vocab, hidden]."""
        size = (self._shape.vocab_size, self._shape.hidden_size)
        return self.read("model.embed_tokens.weight", size)

    def norm(self) -> Tensor:
        """The last norm, before the head."""
        return self.read("model.norm.weight", (self._shape.hidden_size,))

    def head(self) -> Tensor:
        """[vocab, hidden]; the embedding, where they are tied."""
        if self._shape.tied_embeddings:
            return self.embedding()
        return self.read("lm_head.weight", (self._shape.vocab_size, self._shape.hidden_size))

    def read(self, name: str, size: tuple[int, ...]) -> Tensor:
        """One tensor in float32."""
        if name not in self._file_of:
            raise UnsuitableModel(f"{self._folder} has no tensor {name!r}")
        tensor: Tensor = self._file_of[name].get_tensor(name)  # type: ignore[no-untyped-call]
        if tuple(tensor.shape) != size:
            raise UnsuitableModel(f"tensor {name!r} is {tuple(tensor.shape)} instead of {size}")
        if tensor.dtype not in FLOATS:
            raise UnsuitableModel(f"tensor {name!r} is {tensor.dtype}; BF16, F16 or F32 is needed")
        if not bool(torch.isfinite(tensor.bfloat16()).all()):
            is_none = not bool(torch.isfinite(tensor).all())
            what = "a NaN or an infinity" if is_none else "a number too large for bf16"
            raise UnsuitableModel(f"tensor {name!r} holds {what}")
        return tensor.to(torch.float32, copy=True)
