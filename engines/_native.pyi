"""The native kernels: built from engines/native/, absent where there is no compiler."""

from __future__ import annotations

def isas() -> list[str]:
    """The instruction sets that this CPU has kernels for, best first: avx512, avx2, scalar."""
