#include "attention.h"

#include "attention_sizes.h"

namespace bulkhead {

extern const AttentionKernels ATTENTION_SCALAR;
#ifdef BULKHEAD_AMX
extern const AttentionKernels ATTENTION_AMX;
#endif
#ifdef BULKHEAD_X86
extern const AttentionKernels ATTENTION_AVX2, ATTENTION_AVX512, ATTENTION_AVX512VBMI;
#endif

int segment_tokens(const KvPool& pool) { return PIECES * Sizes(pool, pool.num_kv_heads).tokens; }

int num_segments(const KvPool& pool, int context_len) {
  const int tokens = segment_tokens(pool);
  return (context_len + tokens - 1) / tokens;
}

size_t partial_floats(const KvPool& pool, int num_heads) {
  const Sizes sizes(pool, num_heads);
  return sizes.sums_floats(sizes.group);
}

size_t attention_scratch(const KvPool& pool, int num_heads) {
  const auto anywhere = reinterpret_cast<std::byte*>(uintptr_t{64});
  return Room(Sizes(pool, num_heads), anywhere).end - anywhere;
}

const AttentionKernels& attention_kernels(Isa isa, bool use_vbmi) {
#ifdef BULKHEAD_AMX
  if (isa == Isa::amx) return ATTENTION_AMX;
#endif
#ifdef BULKHEAD_X86
  if (isa >= Isa::avx512) {
    const bool has_vbmi = __builtin_cpu_supports("avx512vbmi");
    return use_vbmi && has_vbmi ? ATTENTION_AVX512VBMI : ATTENTION_AVX512;
  }
  if (isa == Isa::avx2) return ATTENTION_AVX2;
#endif
  (void)isa, (void)use_vbmi;
  return ATTENTION_SCALAR;
}

}  // namespace bulkhead
