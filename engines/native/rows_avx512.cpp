#include "rows_lanes.h"

namespace bulkhead {

extern const RowKernels ROWS_AVX512;
const RowKernels ROWS_AVX512 = KERNELS;

}  // namespace bulkhead
