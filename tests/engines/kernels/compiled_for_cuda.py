"""Compiles the kernels for GPUs that this machine needn't have; prints each kernel's name.

A process of its own: here they must not be interpreted.
"""

from __future__ import annotations

from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engines.kernels import tag_check_triton as kernels

COMPUTE_CAPABILITIES = [80, 90]  # Ampere, Hopper
KERNELS = {
    kernels._pages_kernel: kernels.PAGES_AT_ONCE,
    kernels._slots_kernel: kernels.TOKENS_AT_ONCE,
}
NUMBERS = {"num_tags", "num_tokens", "num_rows", "max_pages", "page_size", "active_state"}
TYPES = dict.fromkeys(NUMBERS, "i32") | {"states": "*u8", "faulty": "*u8", "refs": "*i32"}
IDS = "*i64"  # all the others

for kernel, at_once in KERNELS.items():
    signature = {name: TYPES.get(name, IDS) for name in kernel.arg_names}
    signature["at_once"] = "constexpr"
    source = ASTSource(kernel, signature, constexprs={"at_once": at_once})
    for capability in COMPUTE_CAPABILITIES:
        assert compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]
    print(kernel.__name__)  # noqa: T201
