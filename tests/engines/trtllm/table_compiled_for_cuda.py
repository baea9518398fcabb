"""Compiles the table's kernel for GPUs that this machine needn't have; prints its name.

A process of its own: here it must not be interpreted.
"""

from __future__ import annotations

from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engines.trtllm import table_check_triton as kernels

COMPUTE_CAPABILITIES = [80, 90]  # Ampere, Hopper
POINTERS = {"table", "expected", "counts", "first"}

kernel = kernels._rows_kernel
signature = {name: "*i32" if name in POINTERS else "i32" for name in kernel.arg_names}
signature["at_once"] = "constexpr"
source = ASTSource(kernel, signature, constexprs={"at_once": kernels.AT_ONCE})
for capability in COMPUTE_CAPABILITIES:
    assert compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]
print(kernel.__name__)  # noqa: T201
