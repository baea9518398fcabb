#include "cpu.h"

#include <stdexcept>
#include <string>

namespace bulkhead {

bool has_isa(Isa isa) {
#ifdef BULKHEAD_X86
  // The compiler's own look at cpuid, which also asks whether the system saves the registers.
  __builtin_cpu_init();
  switch (isa) {
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::scalar:
      return true;
  }
#endif
  return isa == Isa::scalar;
}

Isa best_isa() {
  if (has_isa(Isa::avx512)) return Isa::avx512;
  return has_isa(Isa::avx2) ? Isa::avx2 : Isa::scalar;
}

std::string_view name_of(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "scalar";
}

Isa isa_named(std::string_view name) {
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512})
    if (name == name_of(isa)) {
      if (!has_isa(isa)) throw std::invalid_argument("this CPU has no " + std::string(name));
      return isa;
    }
  throw std::invalid_argument("unknown instruction set '" + std::string(name) +
                              "'; known: scalar, avx2, avx512");
}

}  // namespace bulkhead
