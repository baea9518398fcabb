#ifdef BULKHEAD_X86

#include <immintrin.h>

#include "check.h"

namespace bulkhead {
namespace {

constexpr int64_t TABLE_AHEAD = 64, TAG_AHEAD = 16;  // pages; found by trying, with cold caches

void fetch(const void* place) { _mm_prefetch(static_cast<const char*>(place), _MM_HINT_T0); }

// After a forward pass nothing of this is in a cache, and a gather waits for each tag in turn. Tables
// may be fetched past their end: a prefetch of what isn't there is none.
void fetch_ahead(const Ledger& ledger, const int64_t* pages, const uint64_t* expected, int64_t left) {
  fetch(pages + TABLE_AHEAD);
  fetch(expected + TABLE_AHEAD);
  if (left > TAG_AHEAD) {
    const uint64_t page = static_cast<uint64_t>(pages[TAG_AHEAD]);
    if (page < static_cast<uint64_t>(ledger.num_pages)) fetch(ledger.tags + page);
  }
}

}  // namespace

bool right_pages_avx512(const Ledger& ledger, const int64_t* pages, const uint64_t* expected,
                        int64_t count, int64_t domain) {
  const __m512i one = _mm512_set1_epi64(1), end = _mm512_set1_epi64(ledger.num_pages - 1);
  const __m512i own = _mm512_set1_epi64(domain);
  __m512i differences = _mm512_setzero_si512();
  __mmask8 outside = 0;
  for (int64_t i = 0; i < count; i += 8) {
    fetch_ahead(ledger, pages + i, expected + i, count - i);
    const __mmask8 read = count - i < 8 ? (1 << (count - i)) - 1 : 0xFF;
    const __m512i page = _mm512_maskz_loadu_epi64(read, pages + i);
    // Without a sign, page 0 and all below it lie far above the end.
    const __mmask8 inside = _mm512_mask_cmplt_epu64_mask(read, _mm512_sub_epi64(page, one), end);
    outside |= read & ~inside;
    const __m512i tag =
        _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), inside, page, ledger.tags, 8);
    const __m512i differs = _mm512_xor_si512(tag, _mm512_maskz_loadu_epi64(read, expected + i));
    const __m512i found = _mm512_maskz_srli_epi64(read, tag, GENERATION_BITS);
    const __m512i other = _mm512_or_si512(differs, _mm512_maskz_xor_epi64(read, found, own));
    differences = _mm512_or_si512(differences, other);
  }
  return !outside && !_mm512_test_epi64_mask(differences, differences);
}

}  // namespace bulkhead

#endif
