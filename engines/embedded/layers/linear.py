"""Matrix products with fixed weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear


class Linear:
    """`(x * factors) @ weight.T + bias` for a weight [out, in], and a bias [out] and factors [in]
    if there are any, that never change.

    bf16 weights are laid out once in oneDNN's own order: plain `linear` does that on every call,
    which costs more than the product itself while few rows decode. Results are the same bits.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, factors: Tensor | None = None
    ) -> None:
        self.dtype = weight.dtype
        self._bias = bias
        self._factors = factors
        self._is_packed = weight.dtype == torch.bfloat16 and _can_pack()
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight, None) if self._is_packed else weight
        )

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]."""
        if self._factors is not None:
            x = x * self._factors
        if not self._is_packed:
            return linear(x, self._weight, self._bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return product


def _can_pack() -> bool:
    # Ops that torch's own compiler uses: in every build with oneDNN, though not public.
    return hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and bool(
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
