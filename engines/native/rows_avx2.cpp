#include "rows_lanes.h"

namespace bulkhead {

extern const RowKernels ROWS_AVX2;
const RowKernels ROWS_AVX2 = KERNELS;

}  // namespace bulkhead
