"""A checkpoint -> the arrays that the native kernels read: q, k and v in one matrix, gate and up by
turns, all of them in blocks. One matrix at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.embedded.checkpoint import Checkpoint, Tensor
from engines.embedded.config import ModelConfig, UnsupportedError
from engines.embedded.int4 import Factors, Int4, common_factors
from engines.embedded.packed import Writer
from engines.embedded.rope import inverse_frequencies
from engines.kernels import native

ARRAYS = "1"  # which arrays there are; another number makes all packed files anew
GATE_ROWS = 64  # of gate, then as many of up: see engines/native/model.h
HEAD_GROUP = 64  # inputs that share a scale of an 8-bit head

Matrix = Tensor | Int4


def pack(writer: Writer, checkpoint: Checkpoint, model: ModelConfig, lm_head: str) -> None:
    """Write all of a model. Raises UnsupportedError for what can't be served."""
    packer = _Packer(writer, checkpoint, model)
    packer.embedding_and_head(lm_head)
    for index in range(model.num_layers):
        packer.layer(index)
    packer.turns()


def layout() -> str:
    """Names the arrays, and how numbers lie in them: kernels that pack otherwise are noticed."""
    bits = (np.arange(2 * GATE_ROWS * 128) % 16000).astype(np.uint16).reshape(-1, 128)
    nibbles = (np.arange(GATE_ROWS * 128) % 251).astype(np.uint8).reshape(-1, 128)
    scales = np.linspace(0.5, 2, 2 * GATE_ROWS * 2, dtype=np.float32).reshape(-1, 2)
    module, digest = native.module, hashlib.sha256()
    for packed in (
        module.pack_bf16(bits),
        module.pack_int8(bits),
        module.pack_int6(bits),
        module.pack_int4(nibbles, scales),
    ):
        digest.update(packed.data)
    return f"{ARRAYS}-{digest.hexdigest()[:16]}"


class _Packer:
    def __init__(self, writer: Writer, checkpoint: Checkpoint, model: ModelConfig) -> None:
        self._writer = writer
        self._checkpoint = checkpoint
        self._model = model

    def embedding_and_head(self, lm_head: str) -> None:
        vocab, hidden = self._model.vocab_size, self._model.hidden_size
        embedding = self._checkpoint.tensor("model.embed_tokens.weight", (vocab, hidden))
        self._writer.add("embedding", embedding.bf16)
        self._vector("norm", "model.norm.weight", hidden)
        tied = self._model.tied_embeddings
        head = embedding if tied else self._checkpoint.matrix("lm_head", vocab, hidden)
        if lm_head in ("int8", "int6") and isinstance(head, Tensor):
            if hidden % HEAD_GROUP:
                raise UnsupportedError(f"option 'lm_head' {lm_head!r}: {hidden} inputs of the head")
            module = native.module
            packed = module.pack_int8 if lm_head == "int8" else module.pack_int6
            self._weights("head", lm_head, packed(head.bf16), head.data.shape)
        else:
            self._linear("head", ["lm_head"], [head])

    def layer(self, index: int) -> None:
        model, prefix = self._model, f"model.layers.{index}"
        hidden, inner = model.hidden_size, model.intermediate_size
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self._vector(f"{index}.attention_norm", f"{prefix}.input_layernorm.weight", hidden)
        self._qkv(index, attention)
        if model.qk_norm:
            for side in "qk":
                name = f"{attention}.{side}_norm.weight"
                self._vector(f"{index}.{side}_norm", name, model.head_dim)
        q_size = model.num_heads * model.head_dim
        self._named(f"{index}.output", {f"{attention}.o_proj": hidden}, q_size)
        self._vector(f"{index}.mlp_norm", f"{prefix}.post_attention_layernorm.weight", hidden)
        names = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
        gate, up = (self._checkpoint.matrix(name, inner, hidden) for name in names)
        self._linear(f"{index}.gate_up", names, _by_turns(names, gate, up))
        self._factors(f"{index}.gate_up", names, [gate, up])
        self._named(f"{index}.down", {f"{mlp}.down_proj": hidden}, inner)

    def turns(self) -> None:
        """cos and sin of every position and pair of a head's numbers."""
        positions = np.arange(self._model.max_context, dtype=np.float32)
        angles = np.outer(positions, inverse_frequencies(self._model)).astype(np.float32)
        self._writer.add("cos", np.cos(angles))
        self._writer.add("sin", np.sin(angles))

    def _qkv(self, index: int, attention: str) -> None:
        model = self._model
        q_size, kv_size = (n * model.head_dim for n in (model.num_heads, model.num_kv_heads))
        sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        outputs = {f"{attention}.{name}": size for name, size in sizes.items()}
        self._named(f"{index}.qkv", outputs, model.hidden_size)
        if model.qkv_bias:
            biases = [self._checkpoint.vector(f"{name}.bias", n) for name, n in outputs.items()]
            self._writer.add(f"{index}.qkv.bias", np.concatenate(biases))

    def _vector(self, name: str, source: str, size: int) -> None:
        self._writer.add(name, self._checkpoint.vector(source, size))

    def _named(self, name: str, outputs: dict[str, int], inputs: int) -> None:
        parts = [self._checkpoint.matrix(source, n, inputs) for source, n in outputs.items()]
        self._linear(name, list(outputs), parts)
        self._factors(name, list(outputs), parts)

    def _linear(self, name: str, sources: Sequence[str], parts: Sequence[Matrix]) -> None:
        """One matrix of the rows of all parts."""
        if quantized := [part for part in parts if isinstance(part, Int4)]:
            if len(quantized) < len(parts):
                raise UnsupportedError(f"{', '.join(sources)}: some are in 4 bits, some are not")
            nibbles = np.concatenate([part.nibbles for part in quantized])
            scales = np.concatenate([part.scales for part in quantized])
            shape = (len(scales), nibbles.shape[1])
            packed = native.module.pack_int4(nibbles, np.ascontiguousarray(scales))
            self._weights(name, "int4", packed, shape, quantized[0].group)
        else:
            rows = np.concatenate([part.bf16 for part in parts if isinstance(part, Tensor)])
            self._weights(name, "bf16", native.module.pack_bf16(rows), rows.shape)

    def _weights(
        self, name: str, kind: str, packed: NDArray[np.uint8], shape: Any, group: int = HEAD_GROUP
    ) -> None:
        self._writer.add(name, packed)
        self._writer.facts[name] = [kind, *shape, group]

    def _factors(self, name: str, sources: Sequence[str], parts: Sequence[Matrix]) -> None:
        found: list[Factors] = [part.factors if isinstance(part, Int4) else None for part in parts]
        if (factors := common_factors(sources, found)) is not None:
            self._writer.add(f"{name}.factors", factors)


def _by_turns(names: Sequence[str], gate: Matrix, up: Matrix) -> list[Matrix]:
    """Some rows of gate, the same rows of up, and so on."""
    if isinstance(gate, Int4) and isinstance(up, Int4):
        pairs = zip(_cut(gate.nibbles, 2), _cut(up.nibbles, 2), strict=True)
        scales = zip(_cut(gate.scales), _cut(up.scales), strict=True)
        return [
            Int4(nibbles, of_part, None)
            for pair, scale in zip(pairs, scales, strict=True)
            for nibbles, of_part in zip(pair, scale, strict=True)
        ]
    if isinstance(gate, Tensor) and isinstance(up, Tensor):
        rows = zip(_cut(gate.bf16), _cut(up.bf16), strict=True)
        return [Tensor("BF16", part) for pair in rows for part in pair]
    raise UnsupportedError(f"{', '.join(names)}: one is in 4 bits, one is not")


def _cut(rows: NDArray[Any], rows_of_byte: int = 1) -> list[NDArray[Any]]:
    step = GATE_ROWS // rows_of_byte
    return [rows[first : first + step] for first in range(0, len(rows), step)]
