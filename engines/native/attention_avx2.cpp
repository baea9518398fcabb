#include "attention_floats.h"

namespace bulkhead {

extern const AttentionKernels ATTENTION_AVX2;
const AttentionKernels ATTENTION_AVX2 = kernels_of<FloatKernel>();

}  // namespace bulkhead
