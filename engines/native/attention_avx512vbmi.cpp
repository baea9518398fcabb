// The AVX-512 kernels where bytes can be looked up in a table of 128, as on Zen 4 and Ice Lake.
#include "attention_bf16_kernel.h"
#include "attention_codes_vbmi.h"

namespace bulkhead {

extern const AttentionKernels ATTENTION_AVX512VBMI;
const AttentionKernels ATTENTION_AVX512VBMI = kernels_of<Bf16Kernel<Codes>>();

}  // namespace bulkhead
