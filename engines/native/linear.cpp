#include "linear.h"

#include "linear_kinds.h"
#include "linear_layout.h"

namespace bulkhead {

size_t block_bytes(Weights weights, int k, int) {
  if (weights == Weights::bf16) return size_t{LINE} * (k / 2);
  const int groups = k / INPUT_GROUP;
  return size_t{LINE} * ((groups + 1) / 2 + groups * lines_of_group(weights));
}

const LinearKernels& linear_kernels(Isa isa) {
#ifdef BULKHEAD_AMX
  if (isa == Isa::amx) return LINEAR_AMX;
#endif
#ifdef BULKHEAD_X86
  if (isa == Isa::avx512) return LINEAR_AVX512;
  if (isa == Isa::avx2) return LINEAR_AVX2;
#endif
  return LINEAR_SCALAR;
}

}  // namespace bulkhead
