"""The native module, where this installation has one. Everybody gets it here.

`module` is typed as what it is where it was built: ask IS_BUILT first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from engines import _native as module
except ImportError:  # no compiler when this was installed: the torch twins compute
    module = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from engines._native import Layer, Linear, Model, StepView

IS_BUILT = module is not None
HAS_MODEL = hasattr(module, "Model")

__all__ = ["HAS_MODEL", "IS_BUILT", "Layer", "Linear", "Model", "StepView", "module"]
