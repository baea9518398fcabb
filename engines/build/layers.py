"""Rounds one layer, matrix by matrix, each against what the ones before it have become.

Two streams of hidden states pass through: the exact model's, and that of the model as it is built.
A matrix is fitted to the inputs of the second; the first is what quality is measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from engines.build.dense import (
    Rope,
    attention,
    gated,
    keys_and_values,
    project,
    rms_norm,
    run_layer,
)
from engines.build.feedback import Rounded
from engines.build.grid import to_bf16
from engines.build.kv_range import KvRange
from engines.build.moments import Moments
from engines.build.recipe import OURS, Recipe
from engines.build.shape import Shape
from engines.build.weights import Layer

CHUNK = 4096  # tokens at once
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUTPUT = "self_attn.o_proj"
GATED = ("mlp.gate_proj", "mlp.up_proj")
DOWN = "mlp.down_proj"


@dataclass
class Streams:
    """Hidden states [seqs, window, hidden] of the exact model and of the built one."""

    exact: Tensor
    actual: Tensor
    rope: Rope
    fitted: Tensor  # [seqs] whether the layers are fitted to this one; the others measure quality

    @classmethod
    def of(cls, embedded: Tensor, rope: Rope, held_out: Sequence[int] = ()) -> Streams:
        """Both begin with the embedded text [seqs, window, hidden]."""
        fitted = torch.ones(len(embedded), dtype=torch.bool)
        fitted[list(held_out)] = False
        return cls(embedded, embedded.clone(), rope, fitted)

    def chunks(self) -> Iterator[slice]:
        """Which seqs go through at once."""
        step = max(1, CHUNK // self.exact.shape[1])
        for start in range(0, len(self.exact), step):
            yield slice(start, start + step)


@dataclass
class Built:
    """A layer on the grid."""

    rounded: dict[str, Rounded] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)
    factors: dict[str, Tensor] = field(default_factory=dict)
    biases: dict[str, Tensor] = field(default_factory=dict)

    def layer(self) -> Layer:
        """What an engine would compute with: the weights' values in bf16."""
        weights = {name: one.values.bfloat16() for name, one in self.rounded.items()}
        return Layer(weights, self.biases, self.norms, self.factors)


Pair = tuple[Tensor, Tensor]  # inputs of the exact model and of the built one


class Work:
    """One layer's way from exact to built; `run` leaves both streams behind it.

    With `known`, what an earlier run has built, the streams move on and nothing is fitted.
    """

    def __init__(
        self,
        shape: Shape,
        layer: Layer,
        streams: Streams,
        group: int,
        recipe: Recipe = OURS,
        known: Built | None = None,
    ) -> None:
        self._shape = shape
        self._streams = streams
        self._group = group
        self._recipe = recipe
        self._source = layer
        self._exact = replace(layer, weights={n: w.bfloat16() for n, w in layer.weights.items()})
        self._actual = replace(layer, weights={}, norms=dict(layer.norms), factors={})
        self._known = known
        self._built = Built(norms=dict(layer.norms), biases=layer.biases)
        self._inputs: list[tuple[Tensor, Tensor]] = []  # of the matrix that is being fitted
        self.kv = KvRange()

    def run(self) -> Built:
        """Round all seven matrices and move the streams on."""
        self._fold("input_layernorm", ATTENTION)
        self._scale(OUTPUT, self._attended)
        self._fold("post_attention_layernorm", GATED)
        self._scale(DOWN, self._gated)
        return self._built

    def _fold(self, norm: str, names: tuple[str, ...]) -> None:
        """Matrices that share an input share its scales, and the norm before takes them in."""
        if self._known:
            self._take(names, self._known)
            self._set_norm(norm, self._known.norms[norm])
            return
        moments = Moments(self._shape.hidden_size)
        for part in self._streams.chunks():
            self._observe(moments, part, self._normed(norm, part))
        weights = torch.cat([self._source.weights[name] for name in names])
        before = self._source.norms[norm]
        folded = to_bf16(before / self._recipe.input_scales(weights, moments, self._group))
        # What rounding the norm to bf16 changes is made good in the weights.
        scales = torch.where(folded == 0, torch.ones_like(folded), before / folded)
        self._take(names, self._fit(names, weights, moments, scales))
        self._set_norm(norm, folded)

    def _scale(self, name: str, inputs: Callable[[slice], Pair]) -> None:
        """The scales stand beside the matrix, as factors of its inputs."""
        moments = Moments(self._source.weights[name].shape[1])
        for part in self._streams.chunks():
            exact, actual = (x.bfloat16() for x in inputs(part))
            self._inputs.append((exact, actual))
            if not self._known:
                self._observe(moments, part, (exact, actual))
        if self._known:
            self._set_factors(name, self._known.factors[name])
            self._take((name,), self._known)
        else:
            weights = self._source.weights[name]
            factors = to_bf16(1 / self._recipe.input_scales(weights, moments, self._group))
            self._set_factors(name, factors)
            self._take((name,), self._fit((name,), weights, moments, 1 / factors))
        self._move_on(name)

    def _fit(
        self, names: tuple[str, ...], weights: Tensor, moments: Moments, scales: Tensor
    ) -> Built:
        found = self._recipe.rounded(weights, moments, scales, self._group)
        built, start = Built(), 0
        for name in names:
            rows = slice(start, start + len(self._source.weights[name]))
            built.rounded[name] = Rounded(found.integers[rows], found.scales[rows], self._group)
            start = rows.stop
        return built

    def _take(self, names: tuple[str, ...], built: Built) -> None:
        for name in names:
            self._built.rounded[name] = built.rounded[name]
            self._actual.weights[name] = built.rounded[name].values.bfloat16()

    def _set_norm(self, norm: str, weight: Tensor) -> None:
        self._built.norms[norm] = self._actual.norms[norm] = weight

    def _set_factors(self, name: str, factors: Tensor) -> None:
        self._built.factors[name] = self._actual.factors[name] = factors

    def _observe(self, moments: Moments, part: slice, inputs: Pair) -> None:
        fitted = self._streams.fitted[part]
        moments.add(inputs[0][fitted], inputs[1][fitted])

    def _normed(self, norm: str, part: slice) -> Pair:
        eps, streams = self._shape.rms_norm_eps, self._streams
        exact = rms_norm(streams.exact[part], self._exact.norms[norm], eps)
        return exact, rms_norm(streams.actual[part], self._actual.norms[norm], eps)

    def _attended(self, part: slice) -> Pair:
        exact, actual = self._normed("input_layernorm", part)
        rope = self._streams.rope
        k, v = keys_and_values(self._shape, self._exact, exact, rope)
        wanted = attention(self._shape, self._exact, exact, k, v, rope)
        k, v = keys_and_values(self._shape, self._actual, actual, rope)
        self.kv.add(k, v)
        return wanted, attention(self._shape, self._actual, actual, k, v, rope)

    def _gated(self, part: slice) -> Pair:
        exact, actual = self._normed("post_attention_layernorm", part)
        return gated(self._exact, exact), gated(self._actual, actual)

    def _move_on(self, name: str) -> None:
        for part, (exact, actual) in zip(self._streams.chunks(), self._inputs, strict=True):
            self._streams.exact[part] += project(self._exact, name, exact)
            self._streams.actual[part] += project(self._actual, name, actual)
        self._inputs.clear()


def observe(shape: Shape, layer: Layer, streams: Streams) -> KvRange:
    """A layer that stays as it is: the exact stream moves on, its K and V are looked at."""
    exact = replace(layer, weights={n: w.bfloat16() for n, w in layer.weights.items()})
    found = KvRange()
    for part in streams.chunks():
        x = rms_norm(streams.exact[part], layer.norms["input_layernorm"], shape.rms_norm_eps)
        found.add(*keys_and_values(shape, exact, x, streams.rope))
        streams.exact[part] = run_layer(shape, exact, streams.exact[part], streams.rope)
    return found
