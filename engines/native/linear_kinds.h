// The products of each instruction set, for `linear_kernels` to choose from.
#pragma once

#include "linear.h"

namespace bulkhead {

extern const LinearKernels LINEAR_SCALAR, LINEAR_AVX2, LINEAR_AVX512, LINEAR_AMX;

}  // namespace bulkhead
