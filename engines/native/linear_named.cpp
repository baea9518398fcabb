#include "linear_named.h"

#include <stdexcept>

namespace bulkhead {
namespace {

constexpr LinearKind KINDS[] = {
    {"w16a16", Weights::bf16, &LinearKernels::bf16_bf16, false},
    {"w4a16", Weights::int4, &LinearKernels::int4_bf16, false},
    {"w4a8", Weights::int4, &LinearKernels::int4_int8, true},
    {"w8a8", Weights::int8, &LinearKernels::int8_int8, true},
    {"w6a8", Weights::int6, &LinearKernels::int6_int8, true},
};

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

}  // namespace

const LinearKind& linear_kind(const std::string& name) {
  for (const LinearKind& kind : KINDS)
    if (name == kind.name) return kind;
  throw std::invalid_argument("unknown product '" + name +
                              "'; known: w16a16, w4a16, w4a8, w8a8, w6a8");
}

void check_matrix(Weights weights, int64_t n, int64_t k, int64_t group) {
  require(n > 0 && k > 0 && n <= INT32_MAX && k <= INT32_MAX,
          "a matrix of " + std::to_string(n) + " x " + std::to_string(k) + " is none or too large");
  if (weights == Weights::bf16) {
    require(k % 2 == 0, "bf16 weights need an even k, not " + std::to_string(k));
    return;
  }
  const bool is_known = group == 64 || (group == 128 && weights == Weights::int4);
  require(is_known, "weights' groups are of 64 or, int4, 128 values, not " + std::to_string(group));
  require(k % group == 0, "k of " + std::to_string(k) + " is no multiple of its groups' " +
                              std::to_string(group));
}

}  // namespace bulkhead
