// engines._native: the kernels, as Python sees them.
#include "bind.h"

NB_MODULE(_native, module) {
  bulkhead::bind_attention(module);
  bulkhead::bind_cpu(module);
  bulkhead::bind_linear(module);
  bulkhead::bind_step(module);
  bulkhead::bind_check(module);
  bulkhead::bind_model(module);
  bulkhead::bind_rows(module);
}
