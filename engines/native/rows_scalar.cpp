#include "rows_lanes.h"

namespace bulkhead {

extern const RowKernels ROWS_SCALAR;
const RowKernels ROWS_SCALAR = KERNELS;

}  // namespace bulkhead
