#include "attention_floats.h"

namespace bulkhead {

extern const AttentionKernels ATTENTION_SCALAR;
const AttentionKernels ATTENTION_SCALAR = kernels_of<FloatKernel>();

}  // namespace bulkhead
