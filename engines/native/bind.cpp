// engines._native: the kernels, as Python sees them.
#include "bind.h"

NB_MODULE(_native, module) {
  // An engine's thread may outlive the interpreter's end, and what it holds with it: no leak.
  nanobind::set_leak_warnings(false);
  bulkhead::bind_attention(module);
  bulkhead::bind_cpu(module);
  bulkhead::bind_linear(module);
  bulkhead::bind_step(module);
  bulkhead::bind_check(module);
  bulkhead::bind_model(module);
  bulkhead::bind_rows(module);
}
