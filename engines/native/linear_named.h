// Products by name, as Python tells them.
#pragma once

#include <cstdint>
#include <string>

#include "linear.h"

namespace bulkhead {

struct LinearKind {
  const char* name;  // w16a16, w4a16, w4a8 or w8a8
  Weights weights;
  Product LinearKernels::*product;
  bool takes_int8;
};

// Throws std::invalid_argument for another name.
const LinearKind& linear_kind(const std::string& name);
// Throws std::invalid_argument for a shape that no packed weights have.
void check_matrix(Weights weights, int64_t n, int64_t k, int64_t group);

}  // namespace bulkhead
