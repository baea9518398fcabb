"""A model folder's weights, as numpy arrays over its mapped files. No torch.

Reads safetensors (one file or several) and what ModelOpt writes beside them, and refuses what is
missing or misshapen with an UnsupportedError that names it. Nothing is read before it is asked for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.embedded import quantization
from engines.embedded.config import UnsupportedError
from engines.embedded.int4 import Int4
from engines.embedded.mapped import mapped
from engines.embedded.numbers import bf16_to_float32, float32_to_bf16
from engines.embedded.quantization import Quantization

# What safetensors calls them, and how they lie in memory. BF16 is told as its bit patterns.
DTYPES: Mapping[str, type[np.generic]] = {
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
    "U8": np.uint8,
    "I8": np.int8,
}
FLOATS = ("BF16", "F16", "F32")
# Their inputs' factors have no norm before them that could take them.
UNFOLDED = (".o_proj", ".down_proj")
READING = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors library

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor where it lies in its file: read-only, and perhaps not aligned."""

    dtype: str  # of DTYPES
    data: Array

    @property
    def float32(self) -> NDArray[np.float32]:
        """The numbers, exactly."""
        if self.dtype == "BF16":
            return bf16_to_float32(self.data)
        return self.data.astype(np.float32)

    @property
    def bf16(self) -> NDArray[np.uint16]:
        """Bit patterns of the numbers, rounded to the nearest bfloat16."""
        if self.dtype == "BF16":
            return np.require(self.data, requirements=["C", "A"])
        return float32_to_bf16(self.float32)


class Checkpoint:
    """Finds tensors by name over all files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quantization = Quantization.of_folder(folder)
        self._tensors: dict[str, Tensor] = {}
        for path in weight_files(folder):
            try:
                found = _tensors_of(path)
            except READING as error:
                raise UnsupportedError(f"cannot read the weights in {path}: {error!r}") from error
            for name in self._tensors.keys() & found.keys():
                raise UnsupportedError(f"{name!r} is in {path} and in another file beside it")
            self._tensors |= found

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: Sequence[str] = FLOATS) -> Tensor:
        """The tensor of that name, which must have this shape and one of these dtypes."""
        found = self._tensors.get(name)
        if found is None:
            raise UnsupportedError(f"the checkpoint has no tensor {name!r}")
        if found.data.shape != shape:
            raise UnsupportedError(f"tensor {name!r} is {found.data.shape} instead of {shape}")
        if found.dtype not in dtypes:
            raise UnsupportedError(f"tensor {name!r} is {found.dtype}, not {' or '.join(dtypes)}")
        return found

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        """A vector's numbers, such as a norm's weights or a bias."""
        return self.tensor(name, (size,)).float32

    def matrix(self, name: str, rows: int, columns: int) -> Tensor | Int4:
        """The weights of the linear layer `name`: as they are, or in 4 bits."""
        if not self.is_int4(name):
            return self.tensor(f"{name}.weight", (rows, columns))
        assert self.quantization is not None
        group = self.quantization.group_size
        if columns % group or rows % 2:
            raise UnsupportedError(f"{name!r}: {rows} x {columns} in groups of {group}")
        factors = f"{name}.pre_quant_scale"
        if self.quantization.has_factors and name.endswith(UNFOLDED) and factors not in self:
            raise UnsupportedError(f"the checkpoint has no tensor {factors!r}")
        return Int4(
            nibbles=self.tensor(f"{name}.weight", (rows // 2, columns), ["U8"]).data,
            scales=self.tensor(f"{name}.weight_scale", (rows, columns // group)).float32,
            factors=self.vector(factors, columns) if factors in self else None,
        )

    def is_int4(self, name: str) -> bool:
        """Whether the linear layer `name` lies in 4 bits."""
        weight = self._tensors.get(f"{name}.weight")
        is_packed = weight is not None and weight.dtype == "U8"
        if is_packed and self.quantization is None:
            raise UnsupportedError(
                f"{name!r} is quantized, and no hf_quant_config.json in {self.folder} says how"
            )
        return is_packed

    def positive_numbers(self, names: Sequence[str]) -> tuple[float, ...]:
        """Tensors of one positive number each, such as scales."""
        return tuple(self._positive_number(name) for name in names)

    def _positive_number(self, name: str) -> float:
        tensor = self._tensors[name]
        is_one = tensor.data.size == 1 and tensor.dtype in FLOATS
        value = float(tensor.float32.item()) if is_one else math.nan
        if not 0 < value < math.inf:
            raise UnsupportedError(f"{name!r} is not one positive number")
        return value


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files. Raises UnsupportedError if none are, or one is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UnsupportedError(f"{folder} holds no .safetensors file")
    for path in files:
        if not path.is_file():  # a pipe would be waited for, for ever
            raise UnsupportedError(f"{path} is no regular file")
    return files


def revision(folder: Path) -> str:
    """SHA-256 in hex over the configuration and all weights: what a cached page depends on."""
    digest = hashlib.sha256()
    for path in sources(folder):
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def sources(folder: Path) -> list[Path]:
    """The files that decide what is computed."""
    told = [folder / "config.json", folder / quantization.FILE]
    return [*filter(Path.is_file, told), *weight_files(folder)]


def _tensors_of(path: Path) -> dict[str, Tensor]:
    """Raises ValueError, KeyError or TypeError for a file that isn't what it should be."""
    if path.stat().st_size < 8:
        raise ValueError("the file is cut off")
    content = mapped(path)
    size = int.from_bytes(content[:8].tobytes(), "little")
    if size > min(LONGEST_HEADER, len(content) - 8):
        raise ValueError("the file is cut off, or no safetensors")
    header = json.loads(content[8 : 8 + size].tobytes())
    body = content[8 + size :]
    told = {name: entry for name, entry in header.items() if name != "__metadata__"}
    # Tensors of other kinds (an index, a flag) may lie there too: nobody asks for them.
    return {
        name: _tensor(body, name, entry) for name, entry in told.items() if entry["dtype"] in DTYPES
    }


def _tensor(body: NDArray[np.uint8], name: str, entry: Mapping[str, Any]) -> Tensor:
    start, stop = entry["data_offsets"]
    shape, dtype = tuple(entry["shape"]), DTYPES[entry["dtype"]]
    if not 0 <= start <= stop <= len(body):
        raise ValueError(f"tensor {name!r} lies outside the file, which is cut off")
    if stop - start != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(f"tensor {name!r}: {stop - start} bytes for the shape {shape}")
    return Tensor(entry["dtype"], body[start:stop].view(dtype).reshape(shape))
