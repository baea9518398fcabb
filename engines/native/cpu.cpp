#include "cpu.h"

#ifdef BULKHEAD_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <stdexcept>
#include <string>

namespace bulkhead {
namespace {

#ifdef BULKHEAD_AMX
// A process has to ask for tiles, once for all its threads; Linux before 5.16 and some sandboxes
// refuse. (Documentation/arch/x86/xstate.rst)
bool may_use_tiles() {
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  static const bool may = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
  return may;
}

bool has_tiles() {
  constexpr unsigned TILE = 1u << 24, INT8 = 1u << 25, BF16 = 1u << 22, AMX = TILE | INT8 | BF16;
  constexpr unsigned GFNI = 1u << 8, VBMI = 1u << 1;  // leaf 7, ECX; those of AMX are in EDX
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX) == AMX && (c & GFNI) && (c & VBMI) &&
         may_use_tiles();
}
#endif

}  // namespace

bool has_isa(Isa isa) {
#ifdef BULKHEAD_X86
  // The compiler's own look at cpuid, which also asks whether the system saves the registers.
  __builtin_cpu_init();
  switch (isa) {
    case Isa::amx:
#ifdef BULKHEAD_AMX
      return has_isa(Isa::avx512) && has_tiles();
#else
      return false;
#endif
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
  for (Isa isa : {Isa::amx, Isa::avx512, Isa::avx2})
    if (has_isa(isa)) return isa;
  return Isa::scalar;
}

std::string_view name_of(Isa isa) {
  constexpr std::string_view NAMES[] = {"scalar", "avx2", "avx512", "amx"};
  return NAMES[static_cast<int>(isa)];
}

Isa isa_named(std::string_view name) {
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::amx})
    if (name == name_of(isa)) {
      if (!has_isa(isa)) throw std::invalid_argument("this CPU has no " + std::string(name));
      return isa;
    }
  throw std::invalid_argument("unknown instruction set '" + std::string(name) +
                              "'; known: scalar, avx2, avx512, amx");
}

}  // namespace bulkhead
