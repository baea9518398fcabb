#include "rows.h"

namespace bulkhead {

extern const RowKernels ROWS_SCALAR;
#ifdef BULKHEAD_X86
extern const RowKernels ROWS_AVX2, ROWS_AVX512;
#endif

const RowKernels& row_kernels(Isa isa) {
#ifdef BULKHEAD_X86
  if (isa >= Isa::avx512) return ROWS_AVX512;
  if (isa == Isa::avx2) return ROWS_AVX2;
#endif
  (void)isa;
  return ROWS_SCALAR;
}

}  // namespace bulkhead
