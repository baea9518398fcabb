"""The packaged GGUF as Q4_0 throughout: the format that llama.cpp's CPU kernels are fastest at.

The packaged file's Q4_1 has no repacked kernel on x86, so that timing against it alone would
flatter us. Embeddings (and with them the head) become Q4_0 as well. Same weights, rounded once
more: good for timing, not for judging answers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
from gguf import GGMLQuantizationType as Type

MOSTLY_Q4_0 = 2  # general.file_type
SKIPPED = ("GGUF.", "general.architecture", "general.file_type")  # the writer's own


def requantised(source: Path, folder: Path) -> Path:
    """`source` in Q4_0, made in `folder` if it isn't there yet."""
    target = folder / f"{source.parent.name}-q4_0.gguf"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        _write(gguf.GGUFReader(source), partial)
        partial.replace(target)
    return target


def _write(reader: Any, path: Path) -> None:
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith(SKIPPED):
            subtype = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=subtype)
    writer.add_file_type(MOSTLY_Q4_0)
    for tensor in reader.tensors:
        if tensor.tensor_type == Type.F32:
            writer.add_tensor(tensor.name, tensor.data)
        else:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(
                tensor.name, gguf.quants.quantize(values, Type.Q4_0), raw_dtype=Type.Q4_0
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
