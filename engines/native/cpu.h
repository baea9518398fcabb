// Which instruction sets this CPU has. Kernels are chosen by it when the module is used, not built.
#pragma once

#include <string_view>

namespace bulkhead {

// Each has what those before it have. avx512 means F, BW, VL, DQ, VNNI and BF16 together (Zen 4,
// Sapphire Rapids and later); amx that, GFNI, VBMI, and tiles of int8 and bf16 that the system lets
// us use.
enum class Isa { scalar, avx2, avx512, amx };

Isa best_isa();              // of this CPU and its system
bool has_isa(Isa isa);       // whether this CPU runs kernels of that kind
std::string_view name_of(Isa isa);
Isa isa_named(std::string_view name);  // throws std::invalid_argument for one unknown or missing here

}  // namespace bulkhead
